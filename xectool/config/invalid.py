"""The one error of an invalid configuration, carrying every finding."""

from __future__ import annotations

from collections.abc import Sequence

from xectool.errors import ConfigError, counted
from xectool.findings import Finding, Severity

NOTE = "CFG-NOTE"


class InvalidConfigError(ConfigError):
    """A configuration breaks the schema or its rules.

    Attributes:
        findings: One finding an error, in the order of the file; then warnings and notes.
    """

    def __init__(self, errors: Sequence[Finding], source: str, notes: Sequence[Finding] = ()) -> None:
        self.findings = (*errors, *notes)
        self.source = source
        self._errors, self._notes = tuple(errors), tuple(notes)
        first = self._errors[0]
        if len(self._errors) == 1:
            super().__init__(first.problem, where=first.where, fix=first.fix, code=first.code)
            return
        listed = [f"  {found.where}: {found.problem}" for found in self._errors]
        problem = "\n".join([f"{counted(len(self._errors), 'error')} in {source}", *listed])
        fixes = [found.fix for found in self._errors if found.fix]
        super().__init__(problem, where=first.where, fix="\n".join(dict.fromkeys(fixes)), code=first.code)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._errors, self.source, self._notes)


def config_finding(code: str, problem: str, origin: str, key: str, fix: str = "") -> Finding:
    """Return an error finding; its place reads ``file:line (key)``."""
    return Finding(code, Severity.ERROR, problem, place(origin, key), fix=fix)


def place(origin: str, key: str) -> str:
    """Return ``file:line (key)``."""
    return f"{origin} ({key})" if key else origin

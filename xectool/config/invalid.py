"""The one error of an invalid configuration, carrying every finding."""

from __future__ import annotations

from collections.abc import Sequence

from xectool.errors import ConfigError, counted
from xectool.findings import Finding, Severity

NOTE = "CFG-NOTE"


class InvalidConfigError(ConfigError):
    """A configuration breaks the schema or its rules.

    Attributes:
        findings: One finding an error, in the order of the file.
    """

    def __init__(self, findings: Sequence[Finding], source: str) -> None:
        self.findings = tuple(findings)
        self.source = source
        first = self.findings[0]
        if len(self.findings) == 1:
            super().__init__(first.problem, where=first.where, fix=first.fix, code=first.code)
            return
        listed = [f"  {found.where}: {found.problem}" for found in self.findings]
        problem = "\n".join([f"{counted(len(self.findings), 'error')} in {source}", *listed])
        fixes = [found.fix for found in self.findings if found.fix]
        super().__init__(problem, where=first.where, fix="\n".join(dict.fromkeys(fixes)), code=first.code)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.findings, self.source)


def config_finding(code: str, problem: str, origin: str, key: str, fix: str = "") -> Finding:
    """Return an error finding; its place reads ``file:line (key)``."""
    return Finding(code, Severity.ERROR, problem, place(origin, key), fix=fix)


def place(origin: str, key: str) -> str:
    """Return ``file:line (key)``."""
    return f"{origin} ({key})" if key else origin

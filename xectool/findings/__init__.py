"""What a rule, a check or a guard found: one frozen record with evidence and a fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from xectool.errors import XecError
from xectool.findings.mends import Mend


class Severity(Enum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        code: Stable identifier such as ``CFG-15``; ``xectool explain CODE`` describes it.
        severity: Error, warning or information.
        problem: One sentence, with the offending value.
        where: File and line, configuration key, branch, event or sensor.
        evidence: Quoted numbers or lines, each with its source.
        fix: What to do, with a line to paste.
        other_unit: The branch whose values are in another unit, where that is what was found.
        mends: What `convert` is to do; one line is made of those of all findings, and stands before the fix.
    """

    code: str
    severity: Severity
    problem: str
    where: str = ""
    evidence: tuple[str, ...] = ()
    fix: str = ""
    other_unit: str = ""
    mends: tuple[Mend, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the finding in the shape of the ``--json`` contract."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "problem": self.problem,
            "where": self.where,
            "evidence": list(self.evidence),
            "fix": self.fix,
        }


@dataclass(frozen=True)
class Report:
    """An ordered set of findings."""

    findings: tuple[Finding, ...] = field(default=())

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity ``ERROR``."""
        return tuple(found for found in self.findings if found.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings of severity ``WARNING``."""
        return tuple(found for found in self.findings if found.severity is Severity.WARNING)

    def merged(self, other: Report) -> Report:
        """Return both sets of findings, this one first."""
        return Report(self.findings + other.findings)


def findings_of(error: XecError) -> tuple[Finding, ...]:
    """Return the findings that an error carries, or the one that it is."""
    carried: tuple[Finding, ...] = tuple(getattr(error, "findings", ()))
    return carried or (Finding(error.code, Severity.ERROR, error.problem, where=error.where, fix=error.fix),)


def in_lines(found: Finding) -> list[str]:
    """Return a finding as it is told everywhere: what, where, evidence, and what is to be pasted.

    >>> in_lines(Finding("CFG-15", Severity.WARNING, "too much", "a.yaml:3", ("8 of 4",), fix="--time 1:00:00"))
    ['warning CFG-15: too much', '  where: a.yaml:3', '  evidence: 8 of 4', '  fix: --time 1:00:00']
    """
    where = [f"  where: {found.where}"] if found.where else []
    fix = [to_paste("  fix:", found.fix)] if found.fix else []
    evidence = (f"  evidence: {line}" for line in found.evidence)
    return [f"{found.severity.value} {found.code}: {found.problem}", *where, *evidence, *fix]


def to_paste(label: str, lines: str) -> str:
    """Return what is to be pasted behind its label; several lines stand below it as they are, from the first column on.

    Remarks below a line are no lines to paste.

    >>> to_paste("  fix:", "--time 1:00:00"), to_paste("  fix:", "data.batch_size: 8\\ntraining.lr: 1e-4")
    ('  fix: --time 1:00:00', '  fix:\\ndata.batch_size: 8\\ntraining.lr: 1e-4')
    """
    first, *rest = lines.split("\n")
    if any(not line.startswith("#") for line in rest):
        return f"{label}\n{lines}"
    return "\n".join((f"{label} {first}", *(f"{' ' * len(label)} {line}" for line in rest)))


def few(lines: Sequence[str], most: int = 6) -> list[str]:
    """Return the first lines of evidence, and how many more there are; no single line is hidden so.

    >>> few("abc", most=2), few("abcd", most=2)
    (['a', 'b', 'c'], ['a', 'b', 'and 2 more (--json)'])
    """
    more = len(lines) - most
    return [*lines[:most], f"and {more} more (--json)"] if more > 1 else [*lines]

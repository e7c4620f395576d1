"""What the diagnosis says: one cause with its confidence, its evidence and the line that cures it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from xectool.findings import Finding, Severity

if TYPE_CHECKING:
    from xectool.diagnosis.evidence.evidence import Evidence


@dataclass(frozen=True)
class Cause:
    """One possible cause of what went wrong.

    Attributes:
        code: Stable identifier; ``xectool explain CODE`` describes it.
        confidence: From 0 to 1.
        problem: One sentence with the numbers that matter.
        evidence: What speaks for it, each with its source.
        fix: A command to paste.
        ruled_out: Other causes of the same symptom and what speaks against each.
        severity: INFO is worth knowing and no fault.
        step: Optimizer step at which it first showed, 0 where it has none.
        symptom: What it explains; of the causes of one symptom only the likeliest stays.
        follows: Code of the cause that led to this one.
        blamed: Events that are bad by themselves, as (file, entry): its line leaves out those of all causes.
    """

    code: str
    confidence: float
    problem: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    ruled_out: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR
    step: int = 0
    symptom: str = ""
    follows: str = ""
    blamed: tuple[tuple[str, int], ...] = ()

    def after(self, mended: str) -> Cause:
        """Return the cause as a note without a line to paste, where it is told to be mended; else as it is."""
        if not mended:
            return self
        return replace(self, problem=f"{self.problem}; {mended}", fix="", severity=Severity.INFO, blamed=())

    def finding(self, where: str) -> Finding:
        """Return the cause as a finding about ``where``."""
        return Finding(self.code, self.severity, self.problem, where, self.evidence, self.fix)


@dataclass(frozen=True)
class RuledOut:
    """A cause of a symptom that the evidence speaks against."""

    code: str
    symptom: str
    reason: str


Opinion = Cause | RuledOut


class DiagnosisRule(ABC):
    """Abstract: one rule over the evidence of a run.

    Attributes:
        code: Code of the cause it looks for.
        title: One sentence that says what it looks for.
    """

    code: ClassVar[str]
    title: ClassVar[str]

    @property
    def name(self) -> str:
        """Name of the rule, as ``rules_run`` shows it."""
        return type(self).__name__

    def unseen(self, evidence: Evidence) -> str:
        """Return what the rule would need and the record does not hold; empty where it can look."""
        return ""

    @abstractmethod
    def look(self, evidence: Evidence) -> Iterator[Opinion]:
        """Yield what the evidence says about this cause; nothing where it does not come into question."""


@dataclass(frozen=True)
class Diagnosis:
    """What all rules together say.

    Attributes:
        verdict: One line.
        causes: Faults, most likely first, a root before what follows from it.
        notes: What is worth knowing and no fault.
        rules_run: Names of the rules that looked.
        rules_skipped: Names of the rules that could not, with what they would have needed.
    """

    verdict: str
    causes: tuple[Cause, ...] = ()
    notes: tuple[Cause, ...] = ()
    rules_run: tuple[str, ...] = ()
    rules_skipped: dict[str, str] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether nothing above a note was found."""
        return not self.causes


def in_one_line(causes: Sequence[Cause]) -> str:
    """Return the problem of the first cause with the codes of those that do not follow from another."""
    more = [cause.code for cause in causes[1:] if not cause.follows]
    return causes[0].problem + (f" (and {', '.join(more)})" if more else "")

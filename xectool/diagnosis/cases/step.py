"""Neighbouring steps in which one thing went wrong, and a rule that weighs one cause of it."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis.cases.growth import Before, before, input_absmax
from xectool.diagnosis.cause import Cause, DiagnosisRule, Opinion, RuledOut
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import Incident, Triage
from xectool.findings import Severity
from xectool.runlog.records import EventRecord

NAMED_FROM: Final = 0.2  # confidence below which a cause is ruled out

Weight = tuple[float, list[str]]


@dataclass(frozen=True)
class StepCase:
    """Abstract: a group of neighbouring steps of a run.

    Attributes:
        evidence: The run.
        rows: Its steps.
        other_kind: Kind of incident that may lie among its steps and be about something else.
    """

    other_kind: ClassVar[str] = ""
    evidence: Evidence
    rows: NDArray[np.intp]

    @cached_property
    def row(self) -> int:
        """First row."""
        return int(self.rows[0])

    @cached_property
    def step(self) -> int:
        """First step."""
        return int(self.evidence.steps["step"][self.row])

    @property
    @abstractmethod
    def symptom(self) -> str:
        """Name under which the rules speak about it."""

    @cached_property
    def before(self) -> Before:
        """How the run moved before it."""
        return before(self.evidence, self.row)

    @cached_property
    def steps_since_resume(self) -> int | None:
        """Steps since the attempt resumed, None where it started from nothing."""
        number = self.evidence.steps.attempt[self.row]
        attempt = next((item for item in self.evidence.attempts if item.number == number), None)
        if attempt is None or attempt.resumed_after is None:
            return None
        return self.step - attempt.resumed_after

    @property
    def last_attempt(self) -> int:
        """The attempt of its last step."""
        return int(self.evidence.steps.attempt[self.rows[-1]])

    @cached_property
    def incident(self) -> Incident | None:
        """The first incident folder of one of its steps; of the ranks' folders one that names events at fault."""
        kept = (item for item in self.evidence.incidents if item.kind != self.other_kind)
        found = [item for item in kept if item.step in self.step_numbers]
        same = [item for item in found if item.step == found[0].step]
        return next((item for item in same if item.suspects), next(iter(same), None))

    @cached_property
    def triage(self) -> Triage:
        """What the automatic look at the incident found; empty where there was none."""
        return self.incident.triage if self.incident is not None else Triage()

    @cached_property
    def num_events(self) -> int:
        """Events in its first step."""
        return int(self.evidence.steps["num_events"][self.row])

    @cached_property
    def largest_input(self) -> float:
        """Largest normalised input, of the batch or else of the first batch of the run; NaN where unknown."""
        own = self.triage.input_absmax
        return own if not math.isnan(own) else input_absmax(self.evidence)

    @cached_property
    def step_numbers(self) -> frozenset[int]:
        """Numbers of its steps."""
        return frozenset(int(step) for step in self.evidence.steps["step"][self.rows])

    def told(self, kind: str) -> EventRecord | None:
        """Return the first event of a kind at one of its steps."""
        return next((event for event in self.evidence.of(kind) if event.step in self.step_numbers), None)


Case = TypeVar("Case", bound=StepCase)


class CaseRule(DiagnosisRule, Generic[Case]):
    """Abstract: one cause of what a case shows."""

    problem: ClassVar[str]

    def unseen(self, evidence: Evidence) -> str:
        """Return that the steps are missing where they are."""
        return "" if len(evidence.steps) else "no step was recorded"

    @abstractmethod
    def weigh(self, case: Case) -> Weight:
        """Return how much speaks for this cause, from 0 to 1, and what."""

    @abstractmethod
    def with_triage(self, case: Case, own: float) -> float:
        """Join the own weight with what the automatic look at the batch settled on."""

    @abstractmethod
    def describe(self, case: Case) -> str:
        """Return the problem with its numbers."""

    @abstractmethod
    def facts(self, case: Case) -> tuple[str, ...]:
        """Return what is known whatever the cause."""

    @abstractmethod
    def fix(self, case: Case) -> str:
        """Return the line that cures it."""

    def mended(self, case: Case) -> str:
        """Return that a later attempt goes on without what it comes from; empty where none does."""
        return ""

    def blamed(self, case: Case) -> tuple[tuple[str, int], ...]:
        """Return the events that are to be left out, as (file, entry)."""
        return ()

    def opinion(self, case: Case, severity: Severity = Severity.ERROR) -> Opinion:
        """Return what speaks for this cause, or that it is ruled out."""
        own, lines = self.weigh(case)
        confidence = self.with_triage(case, own)
        if confidence < NAMED_FROM:
            return RuledOut(self.code, case.symptom, lines[0] if lines else "nothing speaks for it")
        cause = Cause(
            code=self.code,
            confidence=round(confidence, 2),
            problem=self.describe(case),
            evidence=(*self.facts(case), *lines),
            fix=self.fix(case),
            severity=severity,
            step=case.step,
            symptom=case.symptom,
            blamed=self.blamed(case),
        )
        return cause.after(self.mended(case))

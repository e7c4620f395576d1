"""Steps that were taken twice: by their numbers, by their batches, or by the count of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.runlog.records import EventRecord

_COUNTS: Final = ("run_start", "resume", "rewind", "checkpoint")


class DuplicateSteps(DiagnosisRule):
    """A step is taken once, a batch is used once an epoch."""

    code = "XT-DUPLICATE-STEPS"
    title = "steps or batches were repeated"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the steps are missing where they are."""
        return "" if len(evidence.steps) else "no step was recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for step numbers and batches that come again without a rewind, and for updates beyond the steps."""
        if evidence.repeated or evidence.repeated_batches:
            yield _recorded_again(evidence)
        else:
            yield from _counted_again(evidence)


def _recorded_again(evidence: Evidence) -> Cause:
    lines = []
    if evidence.repeated:
        lines.append(f"step numbers recorded again: {', '.join(map(str, evidence.repeated[:5]))}")
    if evidence.repeated_batches:
        named = ", ".join(f"{batch} of epoch {epoch}" for epoch, batch in evidence.repeated_batches[:5])
        lines.append(f"batches trained on again: {named}")
    return Cause(
        code=DuplicateSteps.code,
        confidence=0.95,
        problem=f"{max(len(evidence.repeated), len(evidence.repeated_batches))} steps were taken twice",
        evidence=tuple(lines),
        fix=fixes.train_again(evidence, name="once"),
        step=min([*evidence.repeated, *([1] if evidence.repeated_batches else [])]),
        symptom="steps",
    )


def _counted_again(evidence: Evidence) -> Iterator[Cause]:
    """Compare what the optimizer counts from one checkpoint to the next with the steps between them.

    It counts fewer where steps were refused, never more.
    """
    since, before = 0, 0.0
    for event in evidence.of(*_COUNTS):
        if event.kind == "run_start" and event.step:  # follows the resume that says what is counted
            continue
        counted = 0.0 if event.kind == "run_start" else _updates(event)
        steps, updates = event.step - since, counted - before
        if event.kind == "checkpoint" and updates > steps > 0:
            yield Cause(
                code=DuplicateSteps.code,
                confidence=0.93,
                problem=f"the optimizer counts {updates:.0f} updates in the {steps} steps up to step {event.step}: it "
                "took steps that the loop did not ask for",
                evidence=("something beside the training loop steps its optimizer, such as a wrapper or a hook",),
                fix=fixes.train_again(evidence, name="once"),
                step=since + 1,
                symptom="steps",
            )
            return
        if event.kind != "checkpoint" or math.isfinite(counted):
            since, before = event.step, counted


def _updates(event: EventRecord) -> float:
    """Return how many updates the moments have seen; NaN, which compares false, where it is not recorded."""
    marks = event.data.get("marks")
    return number(marks.get("updates")) if isinstance(marks, Mapping) else math.nan

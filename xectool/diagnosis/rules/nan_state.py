"""Non-finite steps that come from the state of the model: its gradient, its weights, what a resume brought back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.nan import NanCase
from xectool.diagnosis.cases.step import Weight
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import finite
from xectool.diagnosis.rules.nan import NanRule
from xectool.runlog.records import EventRecord

LARGEST_MOMENT: Final = 1e6  # AdamW moments are means of gradients and of their squares
ADAM_STEP: Final = 3.2  # learning rates that AdamW moves a weight by at most: (1 - beta1) / sqrt(1 - beta2)
OVER_REACH: Final = 10.0  # times the norm of weights of size 1 after such steps; those of a start are below 1
SLIGHT: Final = 0.05  # of a norm, beside what the steps add
OTHER_WEIGHTS: Final = 5.0  # times the norm of all weights, which a run changes by per cents
OVER_LARGEST: Final = 10.0  # gradients of norm g, clipped, leave none above g and g^2; not every step is on record


class NanFromGradient(NanRule):
    """The loss is finite and its gradient is not."""

    code = "XT-NAN-GRAD"
    title = "a finite loss has a non-finite gradient: the root of 0, a masked infinity"
    problem = "the loss is finite and its gradient is not"

    def trusts_triage(self, case: NanCase) -> bool:
        """Return whether the loss itself was finite, which is what this cause means."""
        return case.loss_finite

    def weigh(self, case: NanCase) -> Weight:
        """Look for a finite loss without growth before it."""
        if not case.loss_finite:
            return 0.05, ["the loss itself is not finite"]
        named = case.skip.data.get("parameters") if case.skip else None
        lines = [f"parameters: {', '.join(str(name) for name in list(named)[:3])}"] if named else []
        if case.before.grew or case.driven:
            return 0.4, [*lines, "gradient norm or loss grew before, so it may be plain size"]
        return 0.72, [*lines, "the loss of the same step is finite"]


class NanFromWeights(NanRule):
    """The weights themselves are not finite."""

    code = "XT-NAN-WEIGHTS"
    title = "weights are not finite"
    problem = "weights of the model, or their norm, are not finite"

    def trusts_triage(self, case: NanCase) -> bool:
        """Return False where something else is known to have ruined the weights."""
        return not (case.before.ran_away or case.after_resume)

    def weigh(self, case: NanCase) -> Weight:
        """Look at the weights of the moment, or for a run in which nothing is finite from one step on."""
        failure = case.evidence.failure
        named = failure is not None and failure.data.get("code") == self.code
        ran_away = case.before.grew or case.after_resume
        if case.triage.weights_finite:
            return 0.05, ["the weights were looked at and are finite"]
        if case.triage.weights_finite is False or named or case.stage == "weights":
            why = case.before.ran_away or case.after_resume
            return (0.5 if why else 0.93), ["the weights were looked at: they, or their norm, are not finite"]
        if case.triage.finite_with_saved_weights and not case.before.grew:
            return 0.7, ["the same batch is finite with the weights of the last checkpoint, and nothing grew before"]
        if case.lasting and not case.first_of_run and not ran_away:
            return 0.62, [f"nothing is finite from here on ({case.rows.size} steps), and nothing grew before"]
        return 0.1, ["other steps are finite with the same weights"]

    def fix(self, case: NanCase) -> str:
        """Return the continuation from the last sound checkpoint; one with such weights is never written."""
        return fixes.resume(case.evidence)


class WeightsOutOfReach(DiagnosisRule):
    """Weights are larger than any step could have made them."""

    code = "XT-NAN-WEIGHTS"
    title = "weights are larger than the steps can have made them"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the size of the weights is not on record."""
        return "" if finite(evidence.steps["weight_norm"]).size else "the weights have not been looked at"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare their norm with that of a start and of all steps at full length."""
        steps, started = evidence.steps, evidence.last("run_start")
        count = number(started.data.get("parameters")) if started else math.nan
        travelled = ADAM_STEP * np.nancumsum(steps["lr"]) * max(1.0, steps.seen / max(len(steps), 1))
        reach = OVER_REACH * math.sqrt(count if count > 0 else math.nan) * (1.0 + travelled)
        norms = steps["weight_norm"]
        with np.errstate(invalid="ignore"):
            beyond = np.flatnonzero(np.isfinite(norms) & (norms > reach))
        grown = _grown_at_once(evidence, count)
        if not beyond.size and grown is None:
            return
        row = min(int(item) for item in (*beyond[:1], *([] if grown is None else [grown.row])))
        own = f"{count:.0f} weights at these learning rates reach {reach[row] / OVER_REACH:.3g}"
        looks = [step for step, at, _ in _looks(evidence) if at < row]
        last = max(looks, default=0)
        resumed = [event.step for event in evidence.of("resume") if last <= event.step < int(steps["step"][row])]
        why = f", and the run was resumed at step {resumed[-1]}: what it brought back is damaged" if resumed else ""
        yield Cause(
            code="XT-NAN-RESUME" if resumed else self.code,
            confidence=0.95,
            problem=f"between steps {last} and {int(steps['step'][row])} weights became larger than any step can make "
            f"them: norm {norms[row]:.3g}{why}",
            evidence=(
                grown.text() if grown is not None and row == grown.row else own,
                f"no step moves one by more than {ADAM_STEP:g} learning rates",
            ),
            fix=fixes.continue_from_best(evidence, step=last + 1),
            step=last + 1,
            symptom="weights",
        )


@dataclass(frozen=True)
class _Growth:
    """The norm of the weights at a row, and when it was looked at before.

    Attributes:
        row: Row of the step.
        since: Step of the look before.
        was: Norm then.
        added: What the steps between can add at most.
    """

    row: int
    since: int
    was: float
    added: float

    def text(self) -> str:
        """Return what the norm could have become."""
        return f"their norm was {self.was:.3g} at step {self.since}; the steps since add {self.added:.3g} at most"


def _grown_at_once(evidence: Evidence, count: float) -> _Growth | None:
    """Return the row at which the norm of the weights grew by more than the steps since it was known can add."""
    steps = evidence.steps
    travelled = np.nancumsum(steps["lr"]) * max(1.0, steps.seen / max(len(steps), 1))
    travelled = np.append(travelled, 0.0)  # of row -1, before the first
    for (since, before, was), (_, row, now) in pairwise(_looks(evidence)):
        added = ADAM_STEP * math.sqrt(count if count > 0 else math.nan) * (travelled[row] - travelled[before])
        if now - was > added + SLIGHT * was:
            return _Growth(row, since, was, added)
    return None


def _looks(evidence: Evidence) -> list[tuple[int, int, float]]:
    """Return step, row of the record and norm of the weights wherever it was looked at, -1 before the first row."""
    steps = evidence.steps
    rows = np.flatnonzero(np.isfinite(steps["weight_norm"]))
    known = [(int(steps["step"][row]), int(row), float(steps["weight_norm"][row])) for row in rows]
    for event in evidence.of("run_start", "resume"):
        at = int(np.searchsorted(steps["step"], event.step, side="right")) - 1
        norm = number(event.data.get("weight_norm"))
        if norm == norm and (at >= 0 or len(evidence.attempts) <= 1):
            known.append((event.step, at, norm))
    return sorted(known)


class NanFromResume(NanRule):
    """What a resume loaded is damaged."""

    code = "XT-NAN-RESUME"
    title = "a resume brought back a damaged state"
    problem = "the state that the resume brought back is damaged"

    def weigh(self, case: NanCase) -> Weight:
        """Look for a beginning right after a resume, and at the state that was loaded."""
        if not case.after_resume:
            return 0.0, ["no resume came just before"]
        resume = _last_resume(case)
        damage = state_damage(resume.data, moment_limit(case.evidence, resume.step)) if resume else ""
        if resume and damage:
            return 0.97, [f"the resume at step {resume.step} loaded {damage}"]
        if case.few_suspects:
            return 0.2, ["events of the batch are bad by themselves"]
        if case.recovered and case.rows.size <= 2:
            return 0.3, ["it began right after a resume, but later steps are finite"]
        lines = [f"it began {case.steps_since_resume} steps after the resume, and lasts"]
        if case.triage.finite_with_saved_weights:
            lines.append("the same batch is finite with the weights of a few steps earlier")
        return 0.9, lines

    def with_triage(self, case: NanCase, own: float) -> float:
        """Return the own weight: the look at the batch knows nothing of resumes, and sees what the state has done."""
        return own

    def fix(self, case: NanCase) -> str:
        """Return the continuation from the best checkpoint, another file than the one that was resumed."""
        resume = _last_resume(case)
        return fixes.continue_from_best(case.evidence, step=max(1, resume.step) if resume else case.step)


def _last_resume(case: NanCase) -> EventRecord | None:
    resumes = [event for event in case.evidence.of("resume") if event.step < case.step]
    return resumes[-1] if resumes else None


def moment_limit(evidence: Evidence, step: int) -> float:
    """Return how large the moments of AdamW can be after a step, by the gradients on record, else by the clip.

    The clip of the configuration may be another than that of the steps before: it is often set for the resume.
    """
    steps = evidence.steps
    rows = steps.good_rows
    rows = rows[(steps["step"][rows] <= step) & (steps["skipped"][rows] == 0)]
    taken = finite(steps["grad_norm"][rows] * steps["clip_coef"][rows])
    largest = float(taken.max()) if taken.size else float(evidence.setting("training.grad_clip", 0.0) or 0.0)
    return OVER_LARGEST * max(1.0, largest, largest**2) if largest > 0 else LARGEST_MOMENT


def state_damage(data: object, largest_moment: float, weight_norm_before: float = math.nan) -> str:
    """Return what is wrong with the state that a ``resume`` event describes, or an empty string.

    Args:
        data: What the event says.
        largest_moment: What no moment of the optimizer can exceed.
        weight_norm_before: Norm of all weights some steps earlier, or NaN.
    """
    if not isinstance(data, dict):
        return ""
    if data.get("weights_finite") is False:
        return "weights that are not finite"
    if data.get("average_finite") is False:
        return "averaged weights that are not finite"
    if data.get("optimizer_finite") is False:
        return "optimizer moments that are not finite"
    if data.get("digest_ok") is False:
        return "a file whose digest does not match"
    norm = number(data.get("weight_norm"))
    if norm > OTHER_WEIGHTS * weight_norm_before:
        return f"weights of norm {norm:.4g}, {norm / weight_norm_before:.3g} times that of the steps before"
    largest = number(data.get("optimizer_absmax"))
    if largest > largest_moment:
        return f"optimizer moments up to {largest:.3g}"
    return ""

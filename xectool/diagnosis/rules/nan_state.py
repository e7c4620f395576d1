"""Non-finite steps that come from the state of the model: its gradient, its weights, what a resume brought back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from xectool.config.adam import ADAM_REACH
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
NO_FARTHER: Final = f"no step moves one by more than {ADAM_REACH:g} learning rates"
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
        travelled = ADAM_REACH * np.nancumsum(steps["lr"]) * max(1.0, steps.seen / max(len(steps), 1))
        reach = OVER_REACH * math.sqrt(count if count > 0 else math.nan) * (1.0 + travelled)
        norms = steps["weight_norm"]
        with np.errstate(invalid="ignore"):
            beyond = np.flatnonzero(np.isfinite(norms) & (norms > reach))
        grown = _grown_at_once(evidence, count)
        if grown is not None and not (beyond.size and beyond[0] < grown.row):
            yield self._grown(evidence, grown)
        elif beyond.size:
            row = int(beyond[0])
            own = f"{count:.0f} weights at these learning rates reach {reach[row] / OVER_REACH:.3g}"
            last = max((look.step for look in _looks(evidence) if look.row < row), default=0)
            yield self._between(evidence, (last, int(steps["step"][row])), float(norms[row]), own)

    def _grown(self, evidence: Evidence, grown: _Growth) -> Cause:
        """Return the resume that brought the weights back, or what happened between two looks at them."""
        before, now = grown.before, grown.now
        if not now.resumed:
            return self._between(evidence, (before.step, now.step), now.norm, grown.text())
        return Cause(
            code=NanFromResume.code,
            confidence=0.95,
            problem=f"the resume at step {now.step} brought back weights that no step can make: norm {now.norm:.3g}",
            evidence=(grown.text(), NO_FARTHER),
            fix=fixes.continue_from_best(evidence, step=max(1, now.step)),
            step=now.step + 1,
            symptom="weights",
        )

    def _between(self, evidence: Evidence, span: tuple[int, int], norm: float, own: str) -> Cause:
        """Return what made weights of a norm between two steps, the resume in between if there was one."""
        last, step = span
        resumed = [event for event in evidence.of("resume") if last <= event.step < step]
        why = ""
        if resumed:
            sound = number(resumed[-1].data.get("weight_norm")) < (1 - SLIGHT) * norm
            what = (
                "the damage is in its optimizer state or in a step since"
                if sound
                else "what it brought back is damaged"
            )
            why = f", and the run was resumed at step {resumed[-1].step}: {what}"
        return Cause(
            code=NanFromResume.code if resumed else self.code,
            confidence=0.95,
            problem=f"between steps {last} and {step} weights became larger than any step can make them: "
            f"norm {norm:.3g}{why}",
            evidence=(own, NO_FARTHER),
            fix=fixes.continue_from_best(evidence, step=last + 1),
            step=last + 1,
            symptom="weights",
        )


@dataclass(frozen=True, order=True)
class _Look:
    """A look at the norm of the weights; at one step that of a resume comes after that of the step.

    Attributes:
        step: Step after which it was.
        row: Row of that step in the record, -1 before the first.
        resumed: Whether a resume had just brought the weights back.
        norm: Norm of all weights.
    """

    step: int
    row: int
    resumed: bool
    norm: float


@dataclass(frozen=True)
class _Growth:
    """Two looks at the weights, one after the other, between which they grew too much.

    Attributes:
        before: The earlier.
        now: The later.
        added: What the steps between can add to the norm at most.
    """

    before: _Look
    now: _Look
    added: float

    @property
    def row(self) -> int:
        """Row of the later look."""
        return self.now.row

    def text(self) -> str:
        """Return what the norm could have become."""
        was = self.before
        return f"their norm was {was.norm:.3g} at step {was.step}; the steps since add {self.added:.3g} at most"


def _grown_at_once(evidence: Evidence, count: float) -> _Growth | None:
    """Return where the norm of the weights grew by more than the steps since it was known can add."""
    steps = evidence.steps
    travelled = np.nancumsum(steps["lr"]) * max(1.0, steps.seen / max(len(steps), 1))
    travelled = np.append(travelled, 0.0)  # of row -1, before the first
    for before, now in pairwise(_looks(evidence)):
        added = ADAM_REACH * math.sqrt(count if count > 0 else math.nan) * (travelled[now.row] - travelled[before.row])
        if now.norm - before.norm > added + SLIGHT * before.norm:
            return _Growth(before, now, added)
    return None


def _looks(evidence: Evidence) -> list[_Look]:
    """Return the looks at the weights in order: those of steps, of starts and of resumes."""
    steps = evidence.steps
    rows = np.flatnonzero(np.isfinite(steps["weight_norm"]))
    known = [
        _Look(int(steps["step"][row]), int(row), resumed=False, norm=float(steps["weight_norm"][row])) for row in rows
    ]
    resumes = {event.step for event in evidence.of("resume")}
    for event in evidence.of("run_start", "resume"):  # an attempt that goes on records both
        at = int(np.searchsorted(steps["step"], event.step, side="right")) - 1
        norm = number(event.data.get("weight_norm"))
        if norm == norm and (at >= 0 or len(evidence.attempts) <= 1):
            known.append(_Look(event.step, at, event.step in resumes, norm))
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

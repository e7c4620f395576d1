"""Runs in which nothing breaks and nothing is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from xectool.config.model import RegressorModelConfig
from xectool.config.training import RegressorTrainingConfig
from xectool.diagnosis import fixes
from xectool.diagnosis.cases.averaged import averages_the_start, averages_too_long, same_validations
from xectool.diagnosis.cases.falling import learned_beside, still_falling
from xectool.diagnosis.cases.plateau import (
    DEAD_STEPS,
    TRIVIAL_SHARE,
    TermLevel,
    collapsed,
    enough_to_learn,
    few_events,
    lowered,
    no_step_size,
    term_levels,
)
from xectool.diagnosis.cases.spike import spike_cases
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import mapping, number
from xectool.diagnosis.evidence.statistics import median
from xectool.findings import Severity

ADAM_EPS: Final = 1e-8
LEFT_SHARE: Final = 0.1  # of that, as the mean over all weights: they move by a tenth of what they should
CONSTANT: Final = 1e-4  # spread of predictions over that of the truth, far below what a young network gives
CLIPPED_MOST: Final = 0.5  # E.7
_MODEL_DROPOUTS: Final = ("dropout", "head_dropout", "drop_path_rate")
DROPOUTS: Final = {
    **{f"model.{key}": RegressorModelConfig.model_fields[key].default for key in _MODEL_DROPOUTS},
    "training.channel_dropout_rate": RegressorTrainingConfig.model_fields["channel_dropout_rate"].default,
}
"""What leaves a part of each event out, with the default of each."""
STRONG_DROPOUT: Final = 0.5  # of the features, branches or sensors of an event
MOST_FORGOTTEN: Final = 0.01  # of a weight in a step; 1e-5 is much


class NoLearning(DiagnosisRule):
    """The loss stays at what the best constant prediction gives."""

    code = "XT-NO-LEARNING"
    title = "the loss stays at the trivial baseline"

    def unseen(self, evidence: Evidence) -> str:
        """Return that nothing was recorded to compare."""
        return "" if len(evidence.steps) else "no step was recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the loss with the baseline, and look at the rate and the gradient."""
        levels, told = term_levels(evidence), evidence.last("no_learning")
        lines = [level.text() for level in levels]
        certain = self._certain(evidence, levels, lines)
        if certain is not None:
            yield certain
            return
        flat = [level for level in levels if level.trivial_reached]
        telling = flat if told is not None else [level for level in flat if level.tells_alone]
        # One term of several says little: a head may learn late, and the total still falls.
        falls = still_falling(evidence)
        if (levels and len(flat) < len(levels)) or falls:
            if telling:
                said = _slow_text(telling, _falling(evidence) if falls else "")
                yield replace(self._cause(evidence, 0.5, said, lines), severity=Severity.INFO)
        elif told is not None:
            text = told.message or "the loss stays at that of the best constant prediction"
            found = self._cause(evidence, 0.85, text, lines or _told_lines(told.data))
            yield replace(found, severity=Severity.INFO) if few_events(evidence) else found
        elif telling and enough_to_learn(evidence):
            text = f"the loss is still at {TRIVIAL_SHARE:g} or more of what a constant prediction gives"
            yield self._cause(evidence, 0.8, text, lines)

    def _certain(self, evidence: Evidence, levels: Sequence[TermLevel], lines: list[str]) -> Cause | None:
        """Return what lets no weight move, or none stay."""
        if clipped_away(evidence):
            clip = evidence.setting("training.grad_clip")
            text = (
                f"training.grad_clip {clip} leaves most weights less of a gradient than AdamW adds to it (1e-8): they "
                "hardly move"
            )
            fix = fixes.train_again(evidence, "training.grad_clip=1.0", name="clip")
            return replace(self._cause(evidence, 0.95, text, lines), fix=fix)
        stuck = self._frozen(evidence, levels)
        if stuck:
            cause = self._cause(evidence, 0.95, stuck, lines)
            own = fixes.train_again(evidence, "training.ema_decay=auto", name="averaged")
            why_known = bool(no_step_size(evidence) or _strong_dropout(evidence))
            other = cause.fix if why_known else fixes.sweep_lr(evidence)  # the default rate may be the lower one
            return replace(cause, fix=own if averages_too_long(evidence) else other)
        behind = averages_the_start(evidence, levels)
        if behind:
            fix = fixes.train_again(evidence, "training.ema_decay=auto", name="averaged")
            return replace(self._cause(evidence, 0.9, behind, lines), fix=fix)
        forgets = _forgetting(evidence)
        idle = all(level.loss + level.loss_error >= lowered(level.trivial, TRIVIAL_SHARE) for level in levels)
        if forgets and levels and idle and not still_falling(evidence):
            fix = fixes.train_again(evidence, "training.weight_decay=0.0001", name="less-decay")
            return replace(self._cause(evidence, 0.9, forgets, lines), fix=fix)
        return None

    def _frozen(self, evidence: Evidence, levels: Sequence[TermLevel]) -> str:
        tiny = no_step_size(evidence)
        if tiny:
            return tiny
        same = same_validations(evidence, levels)
        if same:
            return same
        norms = evidence.steps["grad_norm"][evidence.steps.good_rows]
        if norms.size >= DEAD_STEPS and not np.any(norms[np.isfinite(norms)]) and np.isfinite(norms).any():
            return "every gradient is exactly zero: nothing that is trained reaches the loss"
        return ""

    def _cause(self, evidence: Evidence, confidence: float, problem: str, lines: list[str]) -> Cause:
        told = (*lines, *_dropout_lines(evidence))
        return Cause(self.code, confidence, problem, told, _cure(evidence), symptom="plateau")


class Collapsed(DiagnosisRule):
    """Predictions are nearly constant."""

    code = "XT-COLLAPSED"
    title = "predictions have collapsed to a constant"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the spread of the predictions is recorded only by validations."""
        return "" if evidence.epochs or evidence.of("collapsed") else "no validation has been recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report tasks whose predictions spread less than a hundredth of the truth."""
        event = collapsed(evidence)
        if event is None or no_step_size(evidence) or same_validations(evidence, term_levels(evidence)):
            return
        tasks = {name: values for name, values in (event.data.get("tasks") or {}).items() if isinstance(values, dict)}
        baseline = evidence.last("baseline")
        other_unit = mapping(baseline.data.get("val_target_unit")) if baseline else {}  # beside it none spreads
        if other_unit and not (tasks := {name: values for name, values in tasks.items() if name not in other_unit}):
            return
        lines = [
            f"{name}: predictions spread {_of(values, 'pred_std')}, truth {_of(values, 'target_std')}"
            for name, values in tasks.items()
        ]
        sure = self._constant(tasks) or self._useless(evidence)
        beside = [] if sure else learned_beside(evidence, list(tasks))
        yield Cause(
            code=self.code,
            confidence=0.88 if sure else 0.5,
            problem=f"predictions of {', '.join(tasks) or 'a task'} have collapsed to a constant{_elsewhere(beside)}",
            evidence=(
                *(lines or [event.message]),
                *(level.text() for level in term_levels(evidence)),
                *_dropout_lines(evidence),
            ),
            fix=fixes.check_named_files(evidence, "train") if beside else _cure(evidence),
            severity=Severity.ERROR if sure else Severity.INFO,
            symptom="collapsed",
        )

    def _constant(self, tasks: Mapping[str, Mapping[str, Any]]) -> bool:
        """Return whether a prediction does not vary at all, which slow learning does not explain."""
        known = [(number(values.get("pred_std")), number(values.get("target_std"))) for values in tasks.values()]
        ratios = [predicted / truth for predicted, truth in known if truth > 0]
        return bool(ratios) and min(ratios) < CONSTANT

    def _useless(self, evidence: Evidence) -> bool:
        """Return whether the losses agree: no task is better than a constant although there was time to learn."""
        known = term_levels(evidence)
        if not known:
            return enough_to_learn(evidence)
        if not (evidence.of("no_learning") or any(level.tells_alone for level in known)):
            return False
        flat = all(level.trivial_reached for level in known)
        return flat and enough_to_learn(evidence) and not still_falling(evidence)


class ClippingMostSteps(DiagnosisRule):
    """Most gradients are clipped; AdamW takes no harm from it, so this is a note."""

    code = "XT-GRAD-CLIP"
    title = "the gradient is clipped in most steps"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the steps are missing where they are."""
        return "" if len(evidence.steps) else "no step was recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Count clipped steps."""
        rows = evidence.steps.good_rows
        coefficients = evidence.steps["clip_coef"][rows]
        if rows.size < DEAD_STEPS or float(np.mean(coefficients < 1)) <= CLIPPED_MOST:
            return
        norms = evidence.steps["grad_norm"][rows]
        yield Cause(
            code=self.code,
            confidence=0.9,
            problem=f"{np.mean(coefficients < 1):.0%} of the steps are clipped (median norm {median(norms):.3g})",
            evidence=("clipping keeps the direction, and AdamW divides by the size: this alone does no harm",),
            severity=Severity.INFO,
            step=1,
            symptom="clipping",
        )


def _forgetting(evidence: Evidence) -> str:
    """Return that weights decay to nothing within some tens of steps, or an empty string."""
    decay, rates = evidence.setting("training.weight_decay"), evidence.steps["lr"][evidence.steps.good_rows]
    if not isinstance(decay, int | float) or rates.size < DEAD_STEPS or not (steps := float(decay * median(rates))):
        return ""
    text = f"training.weight_decay {decay:g} at lr {median(rates):.3g} takes {steps:.1%} of every weight in each step"
    return text if steps >= MOST_FORGOTTEN else ""


def clipped_away(evidence: Evidence) -> bool:
    """Return whether clipping leaves no step enough of a gradient for AdamW, which adds 1e-8 to that of each weight."""
    rows, started = evidence.steps.good_rows, evidence.last("run_start")
    count = number(started.data.get("parameters")) if started else math.nan
    needed = ADAM_EPS * max(1.0, LEFT_SHARE * math.sqrt(count if count > 0 else 1.0))
    norms = evidence.steps["grad_norm"][rows]
    factors = evidence.steps["clip_coef"][rows]
    tiny = (norms > 0) & (factors < 1) & (norms * factors < needed)
    return bool(rows.size >= DEAD_STEPS and tiny.all())


def other_lr(evidence: Evidence) -> str:
    """Return the run at the default rate of its kind, or the sweep of rates where it had about that one."""
    settings = fixes.usual_lr(evidence)
    return fixes.train_again(evidence, *settings, name="other-lr") if settings else fixes.sweep_lr(evidence)


def _cure(evidence: Evidence) -> str:
    """Return the run with less dropout where that leaves the network little to learn from, else another rate."""
    strong = [] if no_step_size(evidence) else _strong_dropout(evidence)
    if not strong:
        return other_lr(evidence)
    less = (f"{key}={DROPOUTS[key]:g}" for key in strong)
    return fixes.train_again(evidence, *less, *fixes.usual_lr(evidence), name="less-dropout")


def _strong_dropout(evidence: Evidence) -> list[str]:
    """Return the keys that leave out half of the features, branches or sensors of an event, or more."""
    known = ((key, evidence.setting(key)) for key in DROPOUTS)
    return [key for key, rate in known if isinstance(rate, int | float) and rate >= STRONG_DROPOUT]


def _dropout_lines(evidence: Evidence) -> list[str]:
    strong = _strong_dropout(evidence)
    return [f"{key} is {evidence.setting(key):g}: it may leave too little of an event to learn from" for key in strong]


def _slow_text(flat: list[TermLevel], falling: str) -> str:
    return f"not better than a constant so far{falling}: {', '.join(level.term for level in flat)}"


def _falling(evidence: Evidence) -> str:
    """Return how the loss falls: of a jump that it has not come back from that is no progress."""
    jumped = any(not case.recovered for case in spike_cases(evidence))
    return ", while the loss comes down from its jump" if jumped else ", while the loss falls"


def _elsewhere(learned: list[str]) -> str:
    text = "its truth may not depend on what is measured, or belong to other events"
    return f", beside {', '.join(learned)}, learned: {text}" if learned else ""


def _told_lines(data: object) -> list[str]:
    terms = data.get("terms") if isinstance(data, dict) else None
    return [
        f"{term}: loss {_of(values, 'loss')}, best constant {_of(values, 'trivial')}"
        for term, values in (terms or {}).items()
        if isinstance(values, dict)
    ]


def _of(values: Mapping[str, Any], name: str) -> str:
    return f"{number(values.get(name)):.4g}"

"""Guards on the numbers of the optimizer: weights, float16 scale, gradient norm, learning rate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np

from xectool.errors import RunDiverged, counted
from xectool.training.guards.base import Guard, Notice, StepFacts
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

AMP_WINDOW: Final = 200
AMP_SKIP_SHARE: Final = 0.05  # a scale that has settled overflows about once in 2000 steps
AMP_WARMUP: Final = 20  # steps in which the scale finds its place
VERDICT_AFTER: Final = 50
MOST_STEPS: Final = 0.5  # of the steps clipped
_BEYOND: Final = 1e6  # times the limit, in half of the steps: no network that learns
LR_JUMP: Final = 2.0


class AmpScale(Guard):
    """G05: steps that float16 loses, and a scale that cannot get lower."""

    code = "G05"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self.done = not parts.execution.use_scaler
        self._seen = self._said = 0
        self._recent: deque[bool] = deque(maxlen=AMP_WINDOW)

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Count overflows; say so once an epoch."""
        if self.done:
            return
        self._seen += 1
        if self._seen <= AMP_WARMUP:
            return
        self._recent.append(step.result.overflow)
        scale, skipped = float(self.parts.stepper.scaler.get_scale()), sum(self._recent)
        share = skipped / len(self._recent)
        often = len(self._recent) >= AMP_WINDOW // 2 and share > AMP_SKIP_SHARE
        if (often or scale < 1.0) and self._said != progress.epoch:
            self._said = progress.epoch
            yield Notice(
                "amp_scale",
                {"scale": scale, "skipped": skipped, "fraction": share},
                f"{skipped} of the last {len(self._recent)} steps exceeded the range of float16 (65504), scale "
                f"{scale:g}; training.amp: bf16 has no such limit",
            )


class GradientNorm(Guard):
    """G07: what the gradient norms mean, early and once an epoch."""

    code = "G07"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._norms: list[float] = []
        self._clipped = 0
        self._first = VERDICT_AFTER  # step, where a run was resumed

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """After 50 steps of a run, say what its norms are; nothing where a resume has seen the last few alone."""
        self.done = progress.step >= VERDICT_AFTER
        if progress.step > VERDICT_AFTER:
            return
        self._first = min(self._first, progress.step)
        if step.result.taken:
            self._norms.append(step.result.grad_norm)
            self._clipped += step.result.clip_coef < 1.0
        if progress.step == VERDICT_AFTER and self._norms and self._first <= VERDICT_AFTER // 2:
            median, p95, top = (float(np.quantile(self._norms, share)) for share in (0.5, 0.95, 1.0))
            clip = self.parts.config.training.grad_clip
            text = gradient_verdict(top, clip, self._clipped / len(self._norms), median)
            numbers = f"median {median:.3g}, 95 % {p95:.3g}, largest {top:.3g}"
            yield Notice("grad_norm", {"median": median, "p95": p95, "max": top, "verdict": text}, "", say=False)
            of = f"after {VERDICT_AFTER} steps" if self._first == 1 else f"of steps {self._first} to {VERDICT_AFTER}"
            yield Notice("", {}, f"gradient norm {of}: {numbers}: {text}")


def gradient_verdict(largest: float, clip: float, clipped: float, usual: float) -> str:
    """Return what the largest gradient norm before clipping means; every number has a verdict.

    Args:
        largest: Largest norm.
        clip: ``training.grad_clip``; 0 where nothing is clipped.
        clipped: Share of the steps that were clipped.
        usual: Median norm.
    """
    if not math.isfinite(largest):
        return "not finite"
    if usual > _BEYOND * max(clip, 1.0):
        return "the weights or the inputs are far off, see xectool explain grad-norm"
    if clip and clipped > MOST_STEPS:
        return f"{100 * clipped:.0f} % of the steps are clipped; AdamW divides by the size, so this alone does no harm"
    if clip and clipped > 0.05:
        return f"clipped often ({100 * clipped:.0f} %)"
    if clip and clipped > 0:
        return f"clipped now and then ({100 * clipped:.1f} %)"
    unit = clip or 1.0
    bands = ((1e-3, "very small, vanishing? check training.lr"), (0.01, "stable"), (0.1, "healthy"), (0.5, "normal"))
    for edge, verdict in bands:
        if largest < edge * unit:
            return verdict
    return "moderate" if largest < 0.8 * unit else "near the ceiling" if clip else "large"


class LearningRateSanity(Guard):
    """G26: the rate is a number above zero until the planned end; jumps are on record."""

    code = "G26"

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._last = math.nan

    def after_step(self, progress: Progress, step: StepFacts) -> Iterator[Notice]:
        """Compare with the rate of the step before.

        Raises:
            RunDiverged: The rate is not a number, or zero long before the end.
        """
        schedule, lr, before = self.parts.schedule, step.result.lr, self._last
        self._last = lr
        planned = schedule.start_step + schedule.total_steps
        left = planned - schedule.place(progress.epoch, progress.batch)
        if not math.isfinite(lr) or lr < 0 or (lr == 0 and left > max(1, planned // 100)):
            raise RunDiverged(
                f"the learning rate of step {progress.step} is {lr}, {counted(left, 'step')} before the planned end",
                where="training.lr_scheduler, training.lr_min",
                fix="--set training.lr_min=1e-7",
                code="XT-CONFIG-LR",
            )
        if not (before > 0 and lr > LR_JUMP * before):
            return
        if self.parts.config.training.lr_scheduler == "cosine_restarts":
            yield Notice("schedule_restart", {"lr_before": before, "lr_after": lr}, "", say=False)
        elif schedule.place(progress.epoch, progress.batch) > schedule.warmup_steps + 1 and not self._rises():
            yield Notice("lr_change", {"lr_before": before, "lr_after": lr, "reason": "schedule"}, "", say=False)

    def _rises(self) -> bool:
        return self.parts.config.training.lr_scheduler == "onecycle"

"""How long a run will still take, by what its steps and validations took."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

_MEASURED: Final = 200  # steps whose time counts: a cache, or a neighbour that ended, changes the pace


class TimeLeft:
    """Estimates the rest of a run; early stopping, checkpoints and artifacts are not foreseen.

    Args:
        parts: What is trained, on what.
        max_steps: Optimizer steps the run stops after, or None.
    """

    def __init__(self, parts: RunParts, max_steps: int | None) -> None:
        self.parts = parts
        self.max_steps = max_steps
        self._steps: deque[tuple[int, float]] | None = None
        self._batches, self._seconds = 0, 0.0  # of those steps

    def after(self, progress: Progress, num_batches: int, step_s: float) -> dict[str, float]:
        """Return the seconds left as ``run_left_s``, and the validations ahead that are not in it: none was measured.

        The first step compiles and warms up: it says nothing of those to come, and after it nothing is known.
        """
        if self._steps is None:
            self._steps = deque()
            return {}
        self._count(self._steps, num_batches, step_s)
        batches, validations = self._ahead(progress)
        a_batch = self._seconds / self._batches
        a_validation = self._validation_s(progress)
        known = 0 if math.isnan(a_validation) else validations
        left_s = batches * a_batch + (known * a_validation if known else 0.0)
        return {"run_left_s": left_s, "unmeasured_validations": float(validations - known)}

    def _count(self, steps: deque[tuple[int, float]], num_batches: int, step_s: float) -> None:
        if len(steps) == _MEASURED:
            gone, gone_s = steps.popleft()
            self._batches, self._seconds = self._batches - gone, self._seconds - gone_s
        steps.append((num_batches, step_s))
        self._batches, self._seconds = self._batches + num_batches, self._seconds + step_s

    def _ahead(self, progress: Progress) -> tuple[int, int]:
        """Return the batches and the validations that are to come."""
        config, a_epoch = self.parts.config, self.parts.train_loader.plan.num_steps
        epochs, accum = config.training.epochs, config.training.grad_accum_steps
        rest, whole = a_epoch - progress.batch, 1 + epochs - progress.epoch
        batches = rest + a_epoch * (whole - 1)
        if self.max_steps is not None:  # the last step of an epoch may be of fewer batches
            steps = self.max_steps - progress.step + math.ceil(progress.batch / accum)
            of_steps = divmod(steps, math.ceil(a_epoch / accum))
            if of_steps[0] < whole:
                whole, batches = of_steps[0], of_steps[0] * a_epoch + of_steps[1] * accum - progress.batch
        last, interval = progress.epoch + whole - 1, config.validation.interval
        due = last // interval - (progress.epoch - 1) // interval
        return batches, due + int(whole > 0 and last == epochs and epochs % interval > 0)

    def _validation_s(self, progress: Progress) -> float:
        """Return the seconds of the last validation; NaN before the first."""
        rates = (metrics.get("perf/val_events_per_s", 0.0) for metrics in reversed(progress.history))
        rate = next((rate for rate in rates if rate > 0), math.nan)
        return self.parts.val_loader.plan.num_events / rate

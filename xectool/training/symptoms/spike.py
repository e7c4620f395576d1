"""G06: a loss far above what the steps before had, known before the update is made."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from enum import Enum
from typing import Any, Final

from xectool.config.guards import GuardsConfig

RECENT: Final = 50  # steps whose spread counts; the median is taken over more
FEWEST: Final = 5  # steps that say anything about what is normal
ENOUGH: Final = 10  # steps that show a divergence without the help of single events
GIVEN_UP: Final = 100  # steps after which a level that stays is the new normal
SHARE_OF_RUN: Final = 10  # a short run trusts the median after this part of its steps
LEVEL: Final = 25  # steps that show that the loss has risen for good
LEVELS: Final = 3  # times as many with those before
BEFORE: Final = 0.95  # share of the losses before that lie below such a level


class Judgement(Enum):
    """What a loss is: ``CALM``, a ``SPIKE``, or ``SUSPECT``: a spike only if a few events alone make it."""

    CALM = "calm"
    SUSPECT = "suspect"
    SPIKE = "spike"


class RunningOrder:
    """The last so many values, in order of size.

    Args:
        size: How many.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        """Add a value; the oldest goes when there are too many."""
        if len(self.values) == self.size:
            del self._sorted[bisect_left(self._sorted, self.values.popleft())]
        self.values.append(value)
        insort(self._sorted, value)

    def quantile(self, share: float) -> float:
        """Return the value that ``share`` of all do not exceed, without interpolation."""
        return self._sorted[min(len(self._sorted) - 1, math.floor(share * len(self._sorted)))]

    def replace(self, values: list[float]) -> None:
        """Forget everything and take ``values`` instead."""
        self.values = deque(values[-self.size :])
        self._sorted = sorted(self.values)


class SpikeDetector:
    """Says whether the loss of a step is a spike.

    The limit is ``median + (factor - 1) * scale``; the scale is the size of the median, as for a loss that is always
    positive, or the distance from the median to the 95th percentile of the last 50 steps where that is larger. So a
    likelihood that passes through zero and a batch of few events do not look like spikes. Losses of a spike do not
    enter the median; a level that stays for 100 steps is the new normal.

    Args:
        config: The guards section.
        total_steps: Optimizer steps of the whole run.
        trivial: Loss of the best constant prediction, or NaN; what is normal before the first steps.
    """

    def __init__(self, config: GuardsConfig, total_steps: int, trivial: float = math.nan) -> None:
        self.factor = config.spike_factor
        self.trusted_after = min(config.spike_after, max(ENOUGH, total_steps // SHARE_OF_RUN))
        self.trivial = trivial
        self.steps_high = 0
        self._losses = RunningOrder(config.spike_window)
        self._recent = RunningOrder(RECENT)
        self._high: list[float] = []

    @property
    def last_loss(self) -> float:
        """The last loss that was normal, or NaN."""
        return self._losses.values[-1] if self._losses.values else math.nan

    @property
    def typical(self) -> float:
        """The running median; the trivial loss where that is larger and there are few steps yet; NaN where unknown."""
        if len(self._losses) < FEWEST:
            return self.trivial
        median = self._losses.quantile(0.5)
        if len(self._losses) < self.trusted_after and self.trivial > median:
            return self.trivial
        return median

    @property
    def limit(self) -> float:
        """The loss beyond which a step is a spike; infinite where nothing is known."""
        typical = self.typical
        if math.isnan(typical):
            return math.inf
        spread = self._recent.quantile(0.95) - self._recent.quantile(0.5) if len(self._recent) >= FEWEST else 0.0
        return typical + (self.factor - 1) * max(abs(typical), spread)

    @property
    def rise(self) -> float:
        """How far the middle of the last 25 losses lies above that of the 50 before; 0 where no level has risen.

        It lies above 95 % of them, which 25 losses of one distribution do three times in a million. Losses that follow
        other data, or a higher rate, do it, too. A ``spike_window`` of fewer than 75 steps does not show it.
        """
        losses = list(self._losses.values)
        before, recent = sorted(losses[-LEVELS * LEVEL : -LEVEL]), sorted(losses[-LEVEL:])
        if len(before) < (LEVELS - 1) * LEVEL or recent[LEVEL // 2] <= before[math.floor(BEFORE * len(before))]:
            return 0.0
        return recent[LEVEL // 2] - before[len(before) // 2]

    def judge(self, loss: float) -> Judgement:
        """Return what a finite loss is; nothing is remembered."""
        if not loss > self.limit:
            return Judgement.CALM
        if len(self._losses) >= self.trusted_after:
            return Judgement.SPIKE
        highest = self._losses.quantile(1.0) if len(self._losses) >= ENOUGH else math.inf
        diverged = loss > highest + (self.factor - 1) * abs(highest)
        return Judgement.SPIKE if diverged else Judgement.SUSPECT

    def accept(self, loss: float, judgement: Judgement) -> int:
        """Remember the loss of a step.

        Returns:
            The steps since the spike began where this loss ends it, else 0.
        """
        if not math.isfinite(loss):
            return 0
        if self.steps_high == 0 and judgement is not Judgement.SPIKE:
            self._add(loss)
            return 0
        self.steps_high += 1
        self._high.append(loss)
        if loss <= self.typical + (self.limit - self.typical) / 3:
            after, self.steps_high, self._high = self.steps_high - 1, 0, []
            self._add(loss)
            return after
        if self.steps_high > GIVEN_UP:
            self._losses.replace(self._high)
            self._recent.replace(self._high)
            self.steps_high, self._high = 0, []
        return 0

    def forget_spike(self) -> None:
        """Begin anew after the step was taken back: what follows is measured by what was normal before."""
        self.steps_high, self._high = 0, []

    def forget_last(self, steps: int) -> None:
        """Forget the losses of the last steps, whose weights were taken back."""
        for order in (self._losses, self._recent):
            order.replace(list(order.values)[: max(0, len(order) - steps)])

    def forget_losses(self) -> None:
        """Begin anew with another objective, whose losses do not compare with those of before."""
        self._losses.replace([])
        self._recent.replace([])
        self.forget_spike()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs."""
        return {"losses": list(self._losses.values), "recent": list(self._recent.values), "high": list(self._high)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._losses.replace(list(state["losses"]))
        self._recent.replace(list(state["recent"]))
        self._high = list(state["high"])
        self.steps_high = len(self._high)

    def _add(self, loss: float) -> None:
        self._losses.add(loss)
        self._recent.add(loss)

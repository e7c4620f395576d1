"""Which steps of a record have a loss far above the ones before."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis.cases.growth import LOOK_BACK, LR_JUMP
from xectool.diagnosis.cases.start import SPIKE_FACTOR
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.history import StepHistory
from xectool.diagnosis.evidence.statistics import finite, median, quantile

LEAST_BEFORE: Final = 20  # finite steps before; a median of fewer says little
WIDE_SIGMA: Final = 3.0  # a loss near zero (a likelihood) is measured by its own spread instead
RECENT: Final = 50  # steps whose upper end says what single batches reach, as for the guard
CLIMB_STEPS: Final = 4  # before the loss is ten times too high, a growth of up to 1.7 a step shows in so many
CLIMBED: Final = 2.0
_RISEN: Final = 3.0  # times the level, in several steps after the rate jumped: the jump makes the rest of the case
_RISEN_STEPS: Final = 20
_RISEN_ROWS: Final = 3


def high_rows(evidence: Evidence) -> NDArray[np.intp]:
    """Return the rows whose loss exceeds ten times the running median, or ten times spread or tail above it."""
    steps = evidence.steps
    level = steps.loss_level
    with np.errstate(invalid="ignore"):
        high = (steps["loss"] - level > (SPIKE_FACTOR - 1) * np.abs(level)) & ~steps.bad
    high[steps.good_rows[:LEAST_BEFORE]] = False
    for row in np.flatnonzero(high):
        scale = max(abs(float(level[row])), WIDE_SIGMA * steps.loss_spread(int(row)), _tail(steps, int(row), high))
        high[row] = steps["loss"][row] - level[row] > (SPIKE_FACTOR - 1) * scale > 0
    high |= _after_a_rise(steps)
    recorded = {event.step for event in evidence.of("spike")}
    if recorded:
        high |= np.isin(steps["step"], list(recorded)) & np.isfinite(steps["loss"])
    return np.flatnonzero(high)


def _tail(steps: StepHistory, row: int, high: NDArray[np.bool_]) -> float:
    """Return how far the 95th percentile of the steps before lies above their median, as the guard takes it.

    A truth that few events have, such as a second gamma, makes such a loss in every few batches.
    """
    before = steps.before(row, RECENT)
    losses = finite(steps["loss"][before[~high[before]]])
    if not losses.size or losses[-CLIMB_STEPS:].min() > CLIMBED * median(losses):  # it climbs
        return 0.0
    return quantile(losses, 0.95) - median(losses)


def _after_a_rise(steps: StepHistory) -> NDArray[np.bool_]:
    """Return the rows soon after a jump of the learning rate whose loss is above all before it and twice the level."""
    found = np.zeros(len(steps), dtype=bool)
    rates = steps["lr"]
    with np.errstate(invalid="ignore", divide="ignore"):
        jumps = np.flatnonzero(rates[1:] >= LR_JUMP * rates[:-1]) + 1
    for row in jumps[jumps > LEAST_BEFORE]:
        before, level = steps["loss"][steps.before(int(row), LOOK_BACK)], float(steps.loss_level[row])
        if before.size < LEAST_BEFORE or not math.isfinite(level):
            continue
        limit = level + (_RISEN - 1) * max(abs(level), WIDE_SIGMA * steps.loss_spread(int(row)))
        soon = steps.after(int(row) - 1, _RISEN_STEPS)
        above = soon[steps["loss"][soon] > max(limit, float(before.max()))]
        if above.size >= _RISEN_ROWS:
            found[above] = True
    return found

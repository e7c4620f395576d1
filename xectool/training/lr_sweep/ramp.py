"""What a ramp says: the rate rises by the same factor at each step of one run.

Two readings of the smoothed curve were measured against full trainings of a small network and hold in all seeds, where
the steepest slope of several libraries does not (four of six and fewer): a tenth of the rate with the smallest loss,
and the valley, the middle of the longest falling
stretch. They come from the same curve by different ways, so where they
disagree the curve says nothing.

Axes: T steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from xectool.training.lr_sweep.choice import Choice, rounded
from xectool.training.lr_sweep.curves import Curve, Numbers
from xectool.training.lr_sweep.rows import BORDERLINE, EXPLODES, STABLE, TOO_SLOW, RateRow, loss_size

RAMP_RULE = "the geometric mean of the valley and of a tenth of the rate with the smallest loss, which agree"
AGREEMENT = 4.0  # largest ratio of the two readings that still counts as agreement
SMOOTHING_SHARE = 0.1  # of the steps: over so many an exponential average remembers
STOP = 4.0  # a smoothed loss beyond so many times the best ends the curve
RESOLUTION = 0.02  # of the span of a curve, below which it counts as level
FEWEST = 10  # steps of a curve that can be read
ROWS = 12
FALLEN = 4.0  # errors; of curves that only scatter 0.5 % fall by so much somewhere


@dataclass(frozen=True)
class Reading:
    """Two independent readings of one curve.

    Attributes:
        valley: The middle of the longest falling stretch; None where nothing falls.
        tenth: A tenth of the rate with the smallest smoothed loss.
        open_end: Whether the loss was lowest at the highest rate, so that neither reading has seen the end of the fall.
    """

    valley: float | None
    tenth: float
    open_end: bool = False

    @property
    def agreed(self) -> float | None:
        """Their geometric mean, where they agree within a factor of four."""
        if (
            self.open_end
            or self.valley is None
            or max(self.valley, self.tenth) > AGREEMENT * min(self.valley, self.tenth)
        ):
            return None
        return math.sqrt(self.valley * self.tenth)


def ramp_rates(low: float, high: float, steps: int) -> list[float]:
    """Return the rate of each step.

    >>> [f"{lr:g}" for lr in ramp_rates(1e-6, 1e-2, 5)]
    ['1e-06', '1e-05', '0.0001', '0.001', '0.01']
    """
    return [float(lr) for lr in np.geomspace(low, high, steps)]


def read_ramp(rates: Sequence[float], losses: Numbers) -> Reading | None:
    """Return what a curve says; None where fewer than ten steps of it can be used.

    Args:
        rates: Rate of each step, shape (T,).
        losses: Objective before each step, shape (T,).
    """
    smooth = usable(losses)
    if len(smooth) < FEWEST:
        return None
    # In steps of a fiftieth of its span, the first loss in the middle of one: a fall that is too small to matter would
    # stretch the valley to any length.
    span = float(smooth.max() - smooth.min())
    low, high = longest_fall(np.rint((smooth - smooth[0]) / (RESOLUTION * span))) if span else (0, 0)
    middle = low + (high - low) // 2
    tenth = rates[int(smooth.argmin())] / 10.0
    open_end = len(smooth) == len(rates) and bool(smooth[-1] <= smooth.min() + RESOLUTION * span)
    return Reading(rates[middle] if high > low else None, tenth, open_end)


def usable(losses: Numbers) -> Numbers:
    """Return the smoothed curve up to the first value that is not finite, or until it left its best far behind."""
    bad = np.flatnonzero(~np.isfinite(losses))
    smooth = smoothed(losses[: bad[0]] if len(bad) else losses, max(2.0, SMOOTHING_SHARE * len(losses)))
    if not len(smooth):
        return smooth
    best = np.minimum.accumulate(smooth)
    span = np.maximum(np.abs(best), np.abs(smooth[0] - best))
    far = np.flatnonzero(smooth - best > (STOP - 1.0) * np.maximum(span, 1e-30))
    return smooth[: far[0]] if len(far) else smooth


def smoothed(losses: Numbers, memory: float) -> Numbers:
    """Return the exponential average without bias at the start.

    Args:
        losses: Finite numbers, shape (T,).
        memory: Over how many steps it remembers.
    """
    keep, total, weight = 1.0 - 1.0 / memory, 0.0, 0.0
    out = np.empty_like(losses)
    for place, loss in enumerate(losses):
        total, weight = keep * total + loss, keep * weight + 1.0
        out[place] = total / weight
    return out


def longest_fall(values: Numbers) -> tuple[int, int]:
    """Return first and last place of the longest subsequence that falls at each of its members.

    >>> longest_fall(np.array([5.0, 4.0, 6.0, 3.0, 2.0, 7.0, 8.0]))
    (0, 4)
    """
    tails: list[float] = []  # negated value on which a fall of that length may end best
    places: list[int] = []
    before = [-1] * len(values)
    for place, value in enumerate(values):
        length = bisect_left(tails, -float(value))
        before[place] = places[length - 1] if length else -1
        tails[length:] = [-float(value), *tails[length + 1 :]]
        places[length:] = [place, *places[length + 1 :]]
    first = last = places[-1] if places else 0
    while before[first] >= 0:
        first = before[first]
    return first, last


def mean_losses(curves: Sequence[Curve]) -> Numbers:
    """Return the mean over seeds, NaN from the step on from which a seed has no finite loss any more, shape (T,).

    A loss that is not finite before that is the fault of its batch and is replaced by its neighbours'.
    """
    mean: Numbers = np.mean([_bridged(curve.losses) for curve in curves], axis=0)
    return mean


def _bridged(losses: Numbers) -> Numbers:
    known = np.flatnonzero(np.isfinite(losses))
    if not len(known):
        return losses
    steps = np.arange(len(losses))
    return np.where(steps <= known[-1], np.interp(steps, known, losses[known]), math.nan)


def choose_ramp(rates: Sequence[float], curves: Sequence[Curve]) -> Choice | None:
    """Return the recommended rate; None where the readings of the mean curve disagree or there is none."""
    whole = read_ramp(rates, mean_losses(curves))
    if whole is None or whole.agreed is None:
        return None
    readings = [read_ramp(rates, _bridged(curve.losses)) for curve in curves]
    singles = [reading.agreed for reading in readings if reading is not None and reading.agreed is not None]
    agreed = [whole.agreed, *singles]  # the mean curve may be read outside of what its seeds are
    return Choice(rounded(whole.agreed), (rounded(min(agreed)), rounded(max(agreed))), RAMP_RULE)


def falls(curves: Sequence[Curve]) -> bool:
    """Return whether the loss of a ramp gets below that of its first steps somewhere, by more than its steps scatter.

    An interval of the table holds few steps, and in small batches these scatter by more than the loss falls within it.
    """
    losses = mean_losses(curves)
    losses = losses[np.isfinite(losses)]
    width = max(3, round(SMOOTHING_SHARE * len(losses)))
    if len(losses) < 2 * width:
        return False
    parts = np.lib.stride_tricks.sliding_window_view(losses, width)
    lowest = width + int(parts[width:].mean(axis=1).argmin())
    fallen = float(parts[0].mean() - parts[lowest].mean())
    # Neighbours differ by the scatter of the batches alone: by the variance twice.
    error = math.sqrt(float((np.diff(losses[: lowest + width]) ** 2).mean()) / width)
    return fallen > FALLEN * error and fallen >= RESOLUTION * abs(float(parts[0].mean()))


def ramp_rows(rates: Sequence[float], curves: Sequence[Curve]) -> tuple[RateRow, ...]:
    """Return the ramp in intervals of the rate: losses at both ends of each, and what happened between."""
    edges = np.unique(np.linspace(0, len(rates), min(ROWS, max(1, len(rates) // 3)) + 1).astype(int))
    pieces = [slice(int(low), int(high)) for low, high in pairwise(edges)]
    losses, best = mean_losses(curves), [math.inf]
    return tuple(_interval(rates, losses, curves, piece, best) for piece in pieces)


def _interval(
    rates: Sequence[float], whole: Numbers, curves: Sequence[Curve], piece: slice, best: list[float]
) -> RateRow:
    """Return one interval; ``best`` holds the smallest loss so far and is brought up to date."""
    losses, span = whole[piece], rates[piece]
    norms = np.concatenate([curve.grad_norms[piece] for curve in curves])
    norms, bad = norms[np.isfinite(norms)], int(sum((~curve.finite[piece]).sum() for curve in curves))
    third = max(1, len(losses) // 3)
    start, end = float(losses[:third].mean()), float(losses[-third:].mean())
    # Neighbours differ by the scatter of the batches alone: by the variance twice.
    error = math.sqrt(float((np.diff(losses) ** 2).mean()) / third)
    size = float(np.nanmean([loss_size(curve) for curve in curves]))
    verdict = STABLE if start - end > max(2.0 * error, 0.01 * size) else TOO_SLOW
    if end > best[0] + 0.2 * size:
        verdict = BORDERLINE
    if not end <= best[0] + size:
        verdict = EXPLODES
    best[0] = min(best[0], end) if math.isfinite(end) else best[0]
    middle = math.sqrt(span[0] * span[-1])
    high, median = (float(norms.max()), float(np.median(norms))) if len(norms) else (math.nan, math.nan)
    return RateRow(middle, start, end, start - end, error, start - end > 2.0 * error, high, median, bad, verdict)

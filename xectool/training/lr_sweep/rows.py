"""From curves to the table of a grid: what each rate reached, and the verdict on it.

Verdicts, in the order they are tried:

- ``explodes``: a step was not finite that was finite at the lowest rate, or none was from some step on; or gradients
  grew a thousand times beyond those of the lowest rate; or the loss ended more than its own size above the start;
- ``too slow``: the loss fell by less than 1 % of its size, by less than a fifth of what the best rate reached, or by
  no more than two errors, without having been higher in between;
- ``borderline``: on the way the loss rose by more than its own size, beyond that of the lowest rate as well; or it
  ended above its start by more than two errors; or less was reached than at a lower rate by more than two errors and a
  fifth;
- ``stable``; and ``optimal`` for the stable one nearest to the recommended rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xectool.training.lr_sweep.curves import Curve, Numbers, mean_and_error

EXPLODED_NORM = 1e3  # F046: gradients against those of the lowest rate
SMALLEST_DECREASE = 0.01  # F046: of the size of the loss
SLOW_SHARE = 0.2  # of the decrease of the best rate
ERRORS = 2.0

EXPLODES, TOO_SLOW, BORDERLINE, STABLE, OPTIMAL = "explodes", "too slow", "borderline", "stable", "optimal"
USABLE = (STABLE, OPTIMAL, BORDERLINE)


@dataclass(frozen=True)
class RateRow:
    """What one rate did, over all seeds.

    Attributes:
        lr: The rate.
        loss_start: Objective of the weights it began with, over the batches of the last steps.
        loss_end: Objective of the last steps.
        loss_decrease: Mean of the first minus the second on the same batch; NaN where nothing finite is left.
        loss_decrease_error: Its standard error, by steps or by seeds, whichever is larger.
        loss_decreasing: Whether it is above zero by more than two errors, of all seeds together or of each alone: these
            may begin at losses so different that the mean of what they fall by says nothing.
        grad_norm_max: Largest global gradient norm before clipping.
        grad_norm_median: Their median.
        nonfinite_steps: Steps that could not be taken.
        verdict: See the module.
    """

    lr: float
    loss_start: float
    loss_end: float
    loss_decrease: float
    loss_decrease_error: float
    loss_decreasing: bool
    grad_norm_max: float
    grad_norm_median: float
    nonfinite_steps: int
    verdict: str


def grid_rows(curves: Sequence[Curve]) -> tuple[RateRow, ...]:
    """Return the rows of a grid, the lowest rate first, with verdicts short of ``optimal``.

    Args:
        curves: At least one seed of each rate.
    """
    rates = sorted({curve.lr for curve in curves})
    groups = [[curve for curve in curves if curve.lr == lr] for lr in rates]
    rows = [_measured(lr, group) for lr, group in zip(rates, groups, strict=True)]
    exploded = [_explodes(group, groups[0]) for group in groups]
    sound = [row for row, bad in zip(rows, exploded, strict=True) if not bad and math.isfinite(row.loss_decrease)]
    best = max((row.loss_decrease for row in sound), default=math.nan)
    judged, usual = list[RateRow](), {curve.seed: curve for curve in groups[0]}
    for row, group, bad in zip(rows, groups, exploded, strict=True):
        lower = [other for other in judged if other.verdict != EXPLODES]
        judged.append(replace(row, verdict=EXPLODES if bad else _verdict(row, group, usual, best, lower)))
    return tuple(judged)


def with_optimal(rows: Sequence[RateRow], recommended: float | None) -> tuple[RateRow, ...]:
    """Return the rows with the stable one nearest to the recommended rate named ``optimal``."""
    stable = [row for row in rows if row.verdict == STABLE]
    if recommended is None or not stable:
        return tuple(rows)
    nearest = min(stable, key=lambda row: abs(math.log(row.lr / recommended)))
    return tuple(replace(row, verdict=OPTIMAL) if row is nearest else row for row in rows)


def loss_size(curve: Curve) -> float:
    """Return what a change of the loss is measured by: its value at the start, or its scatter where that is larger.

    A likelihood may be close to zero or below it, so the value alone is no measure.
    """
    start = _finite(curve.start_losses) if len(curve.start_losses) else _finite(curve.losses)[:1]
    if not len(start):
        return math.nan
    return max(abs(float(start.mean())), float(start.std()), 1e-30)


def _measured(lr: float, group: Sequence[Curve]) -> RateRow:
    decrease, error = mean_and_error([curve.gains for curve in group])
    starts = np.concatenate([_finite(curve.start_losses) for curve in group])
    ends = np.concatenate([_finite(curve.losses[len(curve.losses) - len(curve.start_losses) :]) for curve in group])
    norms = _finite(np.concatenate([curve.grad_norms for curve in group]))
    return RateRow(
        lr=lr,
        loss_start=_mean(starts),
        loss_end=_mean(ends),
        loss_decrease=decrease,
        loss_decrease_error=error,
        loss_decreasing=decrease > ERRORS * error or all(_falls(curve) for curve in group),
        grad_norm_max=float(norms.max()) if len(norms) else math.nan,
        grad_norm_median=float(np.median(norms)) if len(norms) else math.nan,
        nonfinite_steps=int(sum((~curve.finite).sum() for curve in group)),
        verdict="",
    )


def _falls(curve: Curve) -> bool:
    decrease, error = mean_and_error([curve.gains])
    return len(curve.gains) > 1 and decrease > ERRORS * error


def _explodes(group: Sequence[Curve], lowest: Sequence[Curve]) -> bool:
    """Return whether a rate does not hold in one of its seeds."""
    reference = {curve.seed: curve for curve in lowest}
    return any(_curve_explodes(curve, reference[curve.seed]) for curve in group)


def _curve_explodes(curve: Curve, lowest: Curve) -> bool:
    if bool(((lowest.finite | ~curve.bad_batches) & ~curve.finite).any()):
        return True
    norms, usual = _finite(curve.grad_norms), _finite(lowest.grad_norms)
    if len(norms) and len(usual) and norms.max() > EXPLODED_NORM * max(usual.max(), 1e-30):
        return True
    gains = curve.gains
    return bool(len(gains) and -gains.mean() > loss_size(curve))


def _verdict(
    row: RateRow, group: Sequence[Curve], usual: Mapping[int, Curve], best: float, lower: Sequence[RateRow]
) -> str:
    size = float(np.nanmean([loss_size(curve) for curve in group])) if math.isfinite(row.loss_start) else math.nan
    smallest = max(SMALLEST_DECREASE * size, SLOW_SHARE * best)
    passed = [other for other in lower if other.loss_decreasing and other.loss_decrease >= smallest]
    if any(_rose(curve, usual[curve.seed]) for curve in group):
        return BORDERLINE
    for other in passed:
        error = math.hypot(row.loss_decrease_error, other.loss_decrease_error)
        lost = other.loss_decrease - row.loss_decrease
        if lost > ERRORS * error and lost > SLOW_SHARE * other.loss_decrease:
            return BORDERLINE
    if not (row.loss_decreasing and row.loss_decrease >= smallest):
        rose = row.loss_decrease < -ERRORS * row.loss_decrease_error
        return BORDERLINE if passed or rose else TOO_SLOW
    return STABLE


def _rose(curve: Curve, lowest: Curve) -> bool:
    """Return whether the loss was above its start by more than its own size on the way.

    A single batch scatters, and does so at the lowest rate as well: only what is beyond the loss there counts.
    """
    known, starts = np.isfinite(curve.losses) & np.isfinite(lowest.losses), _finite(curve.start_losses)
    if curve is lowest or not known.any() or not len(starts):
        return False
    start = max(float(starts.mean()), curve.first_loss)  # NaN where the first batch is bad
    above = np.minimum(curve.losses - start, curve.losses - lowest.losses)[known]
    return bool(above.max() > max(loss_size(curve), 4.0 * float(starts.std())))


def _finite(values: Numbers) -> Numbers:
    return np.asarray(values[np.isfinite(values)])


def _mean(values: Numbers) -> float:
    return float(values.mean()) if len(values) else math.nan

"""The rate a grid recommends, by a stated rule, with what each seed alone would say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from xectool.training.lr_sweep.curves import Curve, Numbers, mean_and_error
from xectool.training.lr_sweep.rows import ERRORS, EXPLODES, RateRow

GRID_RULE = (
    "the centre, on the scale of the logarithm, of the rates that come close to the largest decrease, each counted "
    "with exp(-d / 0.1) where d is the share of that decrease it misses; where a rate below this centre does as well "
    "as the best within two errors, half way to the lowest such one, since a run is longer than a sweep; rates that "
    "explode do not count"
)
CLOSE = 0.1
AS_WELL = 2.0 * CLOSE  # share of the largest decrease that a rate may miss, however large the errors are
DIGITS = 2


@dataclass(frozen=True)
class Choice:
    """A recommended rate.

    Attributes:
        lr: The rate, two digits.
        band: Lowest and highest rate that is recommended by a single seed, or by all.
        rule: How it was found.
        good: Rates of a grid that do as well as ``best`` within two errors, rising, it among them.
        best: Rate of a grid with the largest decrease of all that do not explode.
    """

    lr: float
    band: tuple[float, float]
    rule: str
    good: tuple[float, ...] = ()
    best: float = math.nan

    @property
    def whole_band(self) -> tuple[float, float]:
        """Lowest and highest rate of ``band`` and ``good``."""
        return min(*self.band, *self.good), max(*self.band, *self.good)


def choose(rows: Sequence[RateRow], curves: Sequence[Curve]) -> Choice:
    """Return the recommended rate of a grid that has a usable row.

    Args:
        rows: The table.
        curves: What it was made of.
    """
    sound = [row.lr for row in rows if row.verdict != EXPLODES and math.isfinite(row.loss_decrease)]
    usable = [curve for curve in curves if curve.lr in sound and len(curve.gains)]
    whole, good, best = _recommended(usable)
    band = band_of(usable, lambda own: _recommended(own)[0])
    return Choice(rounded(whole), band, GRID_RULE, good, best)


def band_of(curves: Sequence[Curve], recommend: Callable[[Sequence[Curve]], float]) -> tuple[float, float]:
    """Return the limits of what all seeds together and each alone recommend, but for those in which no loss falls.

    The seeds differ from each other, so that together they are less sure than each alone: their rate may be outside.
    """
    seeds = sorted({curve.seed for curve in curves})
    groups = [[curve for curve in curves if curve.seed == seed] for seed in seeds]
    falling = [own for own in groups if max(float(curve.gains.mean()) for curve in own) > 0]
    rates = [recommend(own) for own in (curves, *falling)]
    return rounded(min(rates)), rounded(max(rates))


def _recommended(curves: Sequence[Curve]) -> tuple[float, tuple[float, ...], float]:
    """Return the rate, the rates that do as well as the best one within two errors, and the best one.

    Noise decides between those, and over a longer run it costs less at a lower rate, which by then has caught up. The
    batches are the same, so what is compared is the difference on each.
    """
    decreases = decreases_of(curves)
    best = max(decreases, key=lambda lr: decreases[lr])
    good = as_good_as(best, curves)
    middle = centre(list(decreases), list(decreases.values()))
    return math.sqrt(middle * min(middle, *good)), good, best


def decreases_of(curves: Sequence[Curve]) -> dict[float, float]:
    """Return how far the loss fell at each rate, the lowest rate first."""
    rates = sorted({curve.lr for curve in curves})
    return {lr: mean_and_error([curve.gains for curve in curves if curve.lr == lr])[0] for lr in rates}


def as_good_as(best: float, curves: Sequence[Curve]) -> tuple[float, ...]:
    """Return the rates that do as well as the best one within two errors of the difference on each batch, rising."""
    decreases, found = decreases_of(curves), [best]
    for lr in (lr for lr in decreases if lr != best):
        missed, error = missed_by(lr, best, curves)
        if missed <= min(ERRORS * error, AS_WELL * decreases[best]):
            found.append(lr)
    return tuple(sorted(found))


def missed_by(lr: float, best: float, curves: Sequence[Curve]) -> tuple[float, float]:
    """Return by how much the last losses of a rate miss those of the best on the same batches, and its error."""
    return mean_and_error(differences(lr, best, curves))


def differences(lr: float, best: float, curves: Sequence[Curve]) -> list[Numbers]:
    """Return by how much each last loss of a rate misses that of the best on the same batch, seed by seed."""
    others = {curve.seed: curve for curve in curves if curve.lr == best}
    return [curve.behind(others[curve.seed]) for curve in curves if curve.lr == lr]


def centre(rates: Sequence[float], decreases: Sequence[float]) -> float:
    """Return the centre of the rates that come close to the largest decrease.

    >>> centre([1e-4, 1e-3, 1e-2], [0.1, 1.0, 0.1])  # doctest: +ELLIPSIS
    0.001...
    """
    reached = np.asarray(decreases, dtype=np.float64)
    weights = np.exp(-(reached.max() - reached) / (CLOSE * reached.max()))
    return float(np.exp(np.average(np.log(rates), weights=weights)))


def rounded(lr: float) -> float:
    """Return a rate with two digits.

    >>> rounded(0.00031622)
    0.00032
    """
    return float(f"{lr:.{DIGITS}g}")


def beyond(rates: Sequence[float]) -> float:
    """Return the rate one step above a grid, in the ratio of its last two, at most ten.

    >>> rounded(beyond([1e-4, 3e-4, 1e-3]))
    0.0033
    """
    ratio = rates[-1] / rates[-2] if len(rates) > 1 else 3.0
    return rates[-1] * min(10.0, max(ratio, 1.5))

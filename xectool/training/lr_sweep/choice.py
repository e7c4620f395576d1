"""The rate a grid recommends, by a stated rule, with what each seed alone would say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xectool.training.lr_sweep.curves import Curve, mean_and_error
from xectool.training.lr_sweep.rows import EXPLODES, RateRow

GRID_RULE = (
    "the centre, on the scale of the logarithm, of the rates that come close to the largest decrease: each counts with "
    "exp(-d / 0.1) where d is the share of that decrease it misses; rates that explode do not count"
)
CLOSE = 0.1
DIGITS = 2


@dataclass(frozen=True)
class Choice:
    """A recommended rate.

    Attributes:
        lr: The rate, two digits.
        band: Lowest and highest rate that a single seed recommends.
        rule: How it was found.
    """

    lr: float
    band: tuple[float, float]
    rule: str


def choose(rows: Sequence[RateRow], curves: Sequence[Curve]) -> Choice:
    """Return the recommended rate of a grid that has a usable row.

    Args:
        rows: The table.
        curves: What it was made of.
    """
    sound = [row.lr for row in rows if row.verdict != EXPLODES and math.isfinite(row.loss_decrease)]
    decrease = {row.lr: row.loss_decrease for row in rows}
    whole = centre(sound, [decrease[lr] for lr in sound])
    singles = []
    for seed in sorted({curve.seed for curve in curves}):
        of_seed = {curve.lr: mean_and_error([curve.gains])[0] for curve in curves if curve.seed == seed}
        known = [lr for lr in sound if math.isfinite(of_seed.get(lr, math.nan))]
        if known and max(of_seed[lr] for lr in known) > 0:
            singles.append(centre(known, [of_seed[lr] for lr in known]))
    singles = singles or [whole]
    return Choice(rounded(whole), (rounded(min(singles)), rounded(max(singles))), GRID_RULE)


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

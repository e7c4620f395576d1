"""Robust statistics of step series: medians and quantiles, so that one wild value decides nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

Series = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826  # of a normal distribution
MAX_SLOPE_POINTS = 400  # Theil-Sen looks at all pairs


def finite(values: Series) -> Series:
    """Return the finite values, in order."""
    kept: Series = values[np.isfinite(values)]
    return kept


def median(values: Series) -> float:
    """Return the median of the finite values, NaN without any."""
    kept = finite(values)
    return float(np.median(kept)) if kept.size else float("nan")


def quantile(values: Series, share: float) -> float:
    """Return a quantile of the finite values, NaN without any."""
    kept = finite(values)
    return float(np.quantile(kept, share)) if kept.size else float("nan")


def spread(values: Series) -> float:
    """Return the robust standard deviation of the finite values: 1.4826 x MAD; NaN without any."""
    kept = finite(values)
    return float(MAD_TO_SIGMA * np.median(np.abs(kept - np.median(kept)))) if kept.size else float("nan")


def thinned(values: Series, count: int) -> Series:
    """Return at most ``count`` values at equal distances, first and last included."""
    if values.size <= count:
        return values
    chosen: Series = values[np.linspace(0, values.size - 1, count).round().astype(int)]
    return chosen


def slope(x: Series, y: Series) -> float:
    """Return the Theil-Sen slope of ``y`` over ``x``; 0 with fewer than two distinct ``x``."""
    if x.size < 2 or float(np.ptp(x)) == 0:
        return 0.0
    x, y = thinned(x, MAX_SLOPE_POINTS), thinned(y, MAX_SLOPE_POINTS)
    # by hand: importing scipy.stats for it took half a second of every process that trains
    run, rise = np.subtract.outer(x, x), np.subtract.outer(y, y)
    return float(np.median(rise[run > 0] / run[run > 0]))


def trailing_median(values: Series, window: int) -> Series:
    """Return for each value the median of the up to ``window`` values before it; NaN for the first.

    Args:
        values: Finite values, shape (N,).
        window: Values to look back at; odd, so that their median is one of them.
    """
    medians = np.full(values.size, np.nan)
    for index in range(1, min(window, values.size)):
        medians[index] = np.median(values[:index])
    if values.size > window:
        # The filter's window ends at its own row; each row takes that of the row before.
        filtered = median_filter(values, size=window, mode="nearest", origin=window // 2)
        medians[window:] = filtered[window - 1 : -1]
    return medians


def groups(rows: NDArray[np.intp], gap: int) -> list[NDArray[np.intp]]:
    """Split sorted row numbers where two neighbours are more than ``gap`` rows apart."""
    if not rows.size:
        return []
    return np.split(rows, np.flatnonzero(np.diff(rows) > gap) + 1)

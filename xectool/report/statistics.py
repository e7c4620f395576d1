"""Widths of residual distributions with their errors, over all events and in bins.

Axes: B events, N bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Statistic = Callable[[FloatArray], float]

CONTAINED = 0.68
MIN_BIN_EVENTS = 10
NUM_REPLICAS = 200
MAX_REPLICA_EVENTS = 2000
BOOTSTRAP_SEED = 42


def effective_width(values: FloatArray) -> float:
    """Return half the width of the smallest interval that holds 68 % of the values (sigma_eff).

    >>> effective_width(np.arange(101.0))
    34.0
    """
    ordered = np.sort(values)
    inside = max(int(np.ceil(CONTAINED * len(ordered))), 2) if len(ordered) > 1 else 1
    widths = ordered[inside - 1 :] - ordered[: len(ordered) - inside + 1]
    return float(widths.min()) / 2


def contained_width(values: FloatArray) -> float:
    """Return the 68th percentile of the absolute values."""
    return float(np.percentile(np.abs(values), 100 * CONTAINED))


def mean(values: FloatArray) -> float:
    """Return the mean."""
    return float(values.mean())


def bootstrap_error(values: FloatArray, statistic: Statistic) -> float:
    """Return the standard deviation of a statistic over 200 resamplings with a fixed seed.

    Above 2000 values each replica draws 2000 of them and the error is scaled by sqrt(2000 / B), which is exact for
    statistics whose error falls with the root of the sample.
    """
    size = min(len(values), MAX_REPLICA_EVENTS)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    replicas = [statistic(rng.choice(values, size)) for _ in range(NUM_REPLICAS)]
    return float(np.std(replicas)) * float(np.sqrt(size / len(values)))


@dataclass(frozen=True)
class Profile:
    """A statistic of the residual in bins of another quantity.

    Attributes:
        centre: Mean of the quantity in each bin, shape (N,).
        low: Smallest value of each bin, shape (N,).
        high: Largest value of each bin, shape (N,).
        value: The statistic, shape (N,).
        error: Its bootstrap error, shape (N,).
    """

    centre: FloatArray
    low: FloatArray
    high: FloatArray
    value: FloatArray
    error: FloatArray


def profile(quantity: FloatArray, residual: FloatArray, statistic: Statistic, max_bins: int = 12) -> Profile:
    """Return a statistic of the residual in bins of about equal population.

    Args:
        quantity: What is binned in, shape (B,).
        residual: Shape (B,).
        statistic: Applied to the residuals of each bin.
        max_bins: Upper limit; there are fewer when a bin would hold under 50 events.

    Returns:
        One entry for each bin with at least ten events; none at all for fewer events than that.
    """
    num_bins = int(np.clip(len(quantity) // 50, 1, max_bins))
    rows = []
    for part in _equal_parts(quantity, num_bins):
        if len(part) >= MIN_BIN_EVENTS:
            inside, values = quantity[part], residual[part]
            error = bootstrap_error(values, statistic)
            rows.append((inside.mean(), inside.min(), inside.max(), statistic(values), error))
    return Profile(*np.array(rows, dtype=np.float64).reshape(-1, 5).T)


def _equal_parts(quantity: FloatArray, num_bins: int) -> list[npt.NDArray[np.int64]]:
    """Return the events of each bin; equal values always fall into one bin."""
    if len(quantity) == 0:
        return []
    edges = np.unique(np.quantile(quantity, np.linspace(0, 1, num_bins + 1)))
    places = np.searchsorted(edges[1:-1], quantity, side="right")
    return [np.flatnonzero(places == index) for index in range(max(len(edges) - 1, 1))]

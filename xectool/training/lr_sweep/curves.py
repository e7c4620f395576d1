"""What a sweep measures: one curve for each rate and seed.

Axes: T steps, W steps of the last window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
WINDOW_SHARE = 0.2  # of the steps, whose mean is "the last loss"


@dataclass(frozen=True)
class Curve:
    """The steps at one rate, or along a ramp of rates, from one set of weights.

    Attributes:
        lr: The rate; the first one of a ramp.
        seed: Which weights and batches.
        losses: Objective before each step, shape (T,).
        grad_norms: L2 norm of all gradients before clipping, shape (T,).
        finite: Whether the step could be taken, shape (T,).
        start_losses: Objective of the weights it began with, over the batches of the last W steps, shape (W,); empty
            for a ramp.
    """

    lr: float
    seed: int
    losses: Numbers
    grad_norms: Numbers
    finite: NDArray[np.bool_]
    start_losses: Numbers

    @property
    def first_loss(self) -> float:
        """The objective before the first step."""
        return float(self.losses[0])

    @property
    def gains(self) -> Numbers:
        """How much lower each loss of the last window is than that of the first weights on the same batch."""
        gains = self.start_losses - self.losses[len(self.losses) - len(self.start_losses) :]
        return np.asarray(gains[np.isfinite(gains)])

    def behind(self, other: Curve) -> Numbers:
        """Return how much higher each loss of the last window is than that of another rate on the same batch."""
        window = slice(len(self.losses) - len(self.start_losses), None)
        missed = self.losses[window] - other.losses[window]
        return np.asarray(missed[np.isfinite(missed)])

    @property
    def bad_batches(self) -> NDArray[np.bool_]:
        """Steps that are not finite through no fault of the rate, shape (T,).

        Such a step changes no weight, so a later one is finite again, or the first weights fail on the last batches.
        """
        bad, finite = ~self.finite, np.flatnonzero(self.finite)
        if len(finite) and (np.isfinite(self.start_losses).any() or not len(self.start_losses)):
            bad[finite[-1] + 1 :] = False
        return bad


def window_length(steps: int) -> int:
    """Return how many steps at the end are averaged.

    >>> window_length(40), window_length(20), window_length(3)
    (8, 5, 3)
    """
    return min(steps, max(5, math.ceil(WINDOW_SHARE * steps)))


def compared_length(steps: int, num_rates: int) -> int:
    """Return over how many of the last batches the first weights are compared; a sweep of one rate takes fewer.

    Each costs a third of a step or somewhat more; so many are about 3 % of the steps of a usual sweep.

    >>> compared_length(40, 5), compared_length(40, 1), compared_length(5, 1)
    (8, 3, 3)
    """
    return min(window_length(steps), max(3, steps * num_rates // 12))


def mean_and_error(groups: list[Numbers]) -> tuple[float, float]:
    """Return the mean over seeds and its standard error: what steps scatter and what seeds scatter, the larger.

    Args:
        groups: Values of one seed each, shape (W,); NaN where a seed has none.
    """
    mean, steps_error, seeds_error = mean_and_errors(groups)
    return mean, max(steps_error, seeds_error)


def mean_and_errors(groups: list[Numbers]) -> tuple[float, float, float]:
    """Return the mean over seeds, and its standard error by the scatter of steps and by that of seeds.

    Args:
        groups: As of `mean_and_error`.
    """
    filled = [group for group in groups if len(group)]
    if not filled:
        return math.nan, math.nan, math.nan
    means = np.array([group.mean() for group in filled])
    within = [group.var(ddof=1) / len(group) if len(group) > 1 else 0.0 for group in filled]
    steps_error = math.sqrt(sum(within)) / len(filled)
    seeds_error = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return float(means.mean()), steps_error, seeds_error

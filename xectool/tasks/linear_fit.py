"""Least-squares planes that single bad events do not bend: least trimmed squares, then everything that lies on it.

Axes: B events, K features, D components of a target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

OUTLYING = 10.0  # half widths of the central 68 % of residuals: beyond it an event is bad, not a tail
MIN_EVENTS_A_FEATURE = 10  # of fewer events none can be told to be the bad one
BAD_AT_MOST = 0.05  # more events off the plane are a population of their own, and belong to the fit
STARTS = 20  # with 5 % of bad events a start of 8 is free of them in 2 of 3 draws
TRIMMED_STEPS = 3


@dataclass(frozen=True)
class LinearFit:
    """A least-squares plane ``truth = offset + slope . features`` for each component.

    Attributes:
        offset: Shape (D,).
        slope: Shape (K, D).
    """

    offset: FloatArray
    slope: FloatArray

    @classmethod
    def fit(cls, features: FloatArray, truth: FloatArray) -> LinearFit:
        """Return the fit to all events but those far off the plane that most events lie on.

        An event with a hot sensor draws a plain least-squares plane to itself, so its own residual does not tell.
        The distance is therefore taken from the plane of the half that fits best (least trimmed squares: Rousseeuw and
        Van Driessen, Technometrics 41 (1999) 212). Features that do not vary get slope zero.

        Args:
            features: Shape (B, K), at least one event.
            truth: Shape (B, D).
        """
        every = cls._plane(features, truth)
        if len(features) < MIN_EVENTS_A_FEATURE * (features.shape[1] + 1):
            return every
        distance = cls._trimmed(features, truth)._distance(features, truth)
        near = distance <= OUTLYING * np.percentile(distance, 68)
        return every if near.all() or near.mean() < 1 - BAD_AT_MOST else cls._plane(features[near], truth[near])

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return estimates, shape (B, D), from features, shape (B, K)."""
        return self.offset + features @ self.slope

    @classmethod
    def _plane(cls, features: FloatArray, truth: FloatArray) -> LinearFit:
        centre, spread = features.mean(axis=0), features.std(axis=0)
        # Standardised first: seconds beside centimetres would fall below the rank threshold.
        scale = np.where(spread > 1e-9 * np.abs(centre), spread, np.inf)
        mean = truth.mean(axis=0)
        solution = np.linalg.lstsq((features - centre) / scale, truth - mean, rcond=None)[0]
        slope = solution / scale[:, np.newaxis]
        return cls(offset=mean - centre @ slope, slope=slope)

    @classmethod
    def _trimmed(cls, features: FloatArray, truth: FloatArray) -> LinearFit:
        """Return the plane with the smallest sum of squares over the half of the events that lies nearest to it."""
        draw, half = np.random.default_rng(0), (len(features) + 1) // 2
        size = 4 * (features.shape[1] + 1)
        found = []
        for _ in range(STARTS):
            chosen = draw.choice(len(features), size, replace=False)
            for _ in range(TRIMMED_STEPS):
                plane = cls._plane(features[chosen], truth[chosen])
                distance = plane._distance(features, truth)
                chosen = np.argpartition(distance, half - 1)[:half]
            found.append((float(np.square(distance[chosen]).sum()), plane))
        return min(found, key=lambda pair: pair[0])[1]

    def _distance(self, features: FloatArray, truth: FloatArray) -> FloatArray:
        """Return how far each event lies from the plane, shape (B,)."""
        distance: FloatArray = np.linalg.norm(truth - self(features), axis=1)
        return distance

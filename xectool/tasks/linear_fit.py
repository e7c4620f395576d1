"""Least-squares planes that single bad events do not bend.

Axes: B events, K features, D components of a target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FEW, FEW_OF = 3, 200  # so many events, or one of so many, are single events; more are a population
FEWEST = 20 * FEW  # of fewer, sound ones are often as far away as that
FAR = 10.0  # times as far from the median as the farthest of all the others: no tail reaches there
SCALE = 1e-6  # of the median: what varies less is a constant, and few others beside it are all that tells of a slope


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
        """Return the fit; features that do not vary get slope zero, and events of `lone` take no part.

        Args:
            features: Shape (B, K), at least one event.
            truth: Shape (B, D).
        """
        kept = ~lone(np.concatenate([features, truth], axis=1))
        features, truth = features[kept], truth[kept]
        centre, spread = features.mean(axis=0), features.std(axis=0)
        # Standardised first: seconds beside centimetres would fall below the rank threshold.
        scale = np.where(spread > 1e-9 * np.abs(centre), spread, np.inf)
        mean = truth.mean(axis=0)
        solution = np.linalg.lstsq((features - centre) / scale, truth - mean, rcond=None)[0]
        slope = solution / scale[:, np.newaxis]
        return cls(offset=mean - centre @ slope, slope=slope)

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return estimates, shape (B, D), from features, shape (B, K)."""
        return self.offset + features @ self.slope


def lone(values: FloatArray) -> Mask:
    """Return which events have a value far beyond those of all but a few others, shape (B,).

    A sensor with 1e9 photons or a truth of 1e6 GeV draws a plane to itself, so the residual of its event tells nothing.

    Args:
        values: Shape (B, C); each of C columns is looked at by itself.
    """
    rare = max(FEW, len(values) // FEW_OF)
    if len(values) < FEWEST:
        return np.zeros(len(values), dtype=np.bool_)
    centre = np.median(values, axis=0)
    distance = np.abs(values - centre)
    farthest = np.partition(distance, -1 - rare, axis=0)[-1 - rare]
    return np.asarray(((distance > FAR * farthest) & (farthest > SCALE * np.abs(centre))).any(axis=1))

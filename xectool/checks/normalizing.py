"""The normalisation of the first layer in NumPy, for judging raw values; the model's own works on tensors.

Both are compared by a test. Any shape.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.config.normalization import NormalizationConfig

Array = npt.NDArray[Any]

_ANSCOMBE: Final = 3.0 / 8.0
COLLISION_WIDTH: Final = 1e-3  # network units: what lies nearer to a sentinel looks like one


class NphoMap:
    """Photons and seconds to network units.

    Args:
        settings: The constants.
    """

    def __init__(self, settings: NormalizationConfig) -> None:
        self.settings = settings

    @property
    def lowest(self) -> float:
        """Smallest photon count the scheme is defined for."""
        scale = self.settings.npho_scale
        overflow = -float(np.finfo(np.float32).max) * min(1.0, scale)
        return {"log1p": -0.999 * scale, "sqrt": 0.0, "anscombe": -_ANSCOMBE}.get(self.settings.npho_scheme, overflow)

    def npho(self, photons: Array) -> Array:
        """Return network units of photon counts at or above `lowest`."""
        scheme, scale = self.settings.npho_scheme, self.settings.npho_scale
        photons = np.asarray(photons, np.float64)
        if scheme == "log1p":
            return np.log1p(photons / scale) / self.settings.npho_scale2
        if scheme == "anscombe":
            return np.sqrt(photons + _ANSCOMBE) / math.sqrt(scale + _ANSCOMBE)
        return np.sqrt(photons) / math.sqrt(scale) if scheme == "sqrt" else photons / scale

    def photons(self, value: float) -> float:
        """Return the photon count of a network value; NaN where there is none."""
        scheme, scale = self.settings.npho_scheme, self.settings.npho_scale
        if scheme == "log1p":
            return scale * math.expm1(min(self.settings.npho_scale2 * value, 700.0))
        if scheme == "linear":
            return scale * value
        if value < 0:
            return math.nan
        return value**2 * scale if scheme == "sqrt" else value**2 * (scale + _ANSCOMBE) - _ANSCOMBE

    def time(self, seconds: Array) -> Array:
        """Return network units of times."""
        return np.asarray(seconds, np.float64) / self.settings.time_scale - self.settings.time_shift

    def raw_sentinels(self) -> tuple[tuple[float | None, float | None], tuple[float, float]]:
        """Return raw photons and raw time, s, that normalise to the sentinels, and how near is too near, raw."""
        settings = self.settings
        value = settings.sentinel_npho
        photons: float | None = self.photons(value)
        if photons is None or not photons >= self.lowest:
            photons = None
        high, low = self.photons(value + COLLISION_WIDTH), self.photons(value - COLLISION_WIDTH)
        width = (high - low) / 2 if math.isfinite(high - low) else 0.0
        seconds = (settings.sentinel_time + settings.time_shift) * settings.time_scale
        return (photons, seconds), (width, COLLISION_WIDTH * settings.time_scale)

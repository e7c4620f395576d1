"""Raw sensor readings to network units and back: the only normaliser, a layer of every model.

Axes: B events, S sensors, 2 channels (npho, time).
Formulas and constants follow the older system, so that its checkpoints keep their meaning.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from xectool.config.normalization import NormalizationConfig
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.errors import ConfigError, did_you_mean

SCHEMES = ("log1p", "anscombe", "sqrt", "linear")
ANSCOMBE_OFFSET = 3.0 / 8.0


class NphoScheme(nn.Module):
    """Monotonic map of photon counts to network units.

    ======== ============================== =========================== ==================
    scheme   value                          inverse                     smallest argument
    ======== ============================== =========================== ==================
    log1p    ln(1 + n/s) / s2               s (exp(s2 y) - 1)           -0.999 s
    anscombe sqrt(n + 3/8) / sqrt(s + 3/8)  y^2 (s + 3/8) - 3/8         -3/8
    sqrt     sqrt(n) / sqrt(s)              y^2 s                       0
    linear   n / s                          y s                         none
    ======== ============================== =========================== ==================

    Args:
        name: One of :data:`SCHEMES`.
        scale: s, photons.
        scale2: s2; only log1p uses it.

    Raises:
        ConfigError: The scheme is unknown.
    """

    def __init__(self, name: str, scale: float, scale2: float = 1.0) -> None:
        super().__init__()
        if name not in SCHEMES:
            raise ConfigError(
                f"unknown npho scheme '{name}'",
                where="normalization.npho_scheme",
                fix=did_you_mean(name, SCHEMES) or f"npho_scheme: {SCHEMES[0]}   # or {', '.join(SCHEMES[1:])}",
            )
        self.name = name
        self.scale = float(scale)
        self.scale2 = float(scale2)

    @property
    def lowest(self) -> float:
        """Smallest photon count the scheme is defined for; for linear, where float32 would overflow."""
        overflow = -torch.finfo(torch.float32).max * min(1.0, self.scale)
        return {"log1p": -0.999 * self.scale, "sqrt": 0.0, "anscombe": -ANSCOMBE_OFFSET}.get(self.name, overflow)

    def forward(self, npho: Tensor) -> Tensor:
        """Return network units of photon counts, any shape, all counts at or above :attr:`lowest`."""
        if self.name == "log1p":
            return torch.log1p(npho / self.scale) / self.scale2
        if self.name == "anscombe":
            return torch.sqrt(npho + ANSCOMBE_OFFSET) / math.sqrt(self.scale + ANSCOMBE_OFFSET)
        if self.name == "sqrt":
            return torch.sqrt(npho) / math.sqrt(self.scale)
        return npho / self.scale

    def inverse(self, value: Tensor) -> Tensor:
        """Return photon counts of network units, any shape; at most 9e9, beyond which a count means "not available".

        A network that has not learnt yet says numbers whose exponential no float32 holds.
        """
        return self._inverse(value).clamp_max(UNKNOWN_ABOVE)

    def _inverse(self, value: Tensor) -> Tensor:
        if self.name == "log1p":
            return self.scale * torch.expm1(self.scale2 * value)
        if self.name == "anscombe":
            return value.square() * (self.scale + ANSCOMBE_OFFSET) - ANSCOMBE_OFFSET
        if self.name == "sqrt":
            return value.square() * self.scale
        return value * self.scale


class Normalizer(nn.Module):
    """First layer of every model: raw npho and time to network units, with sentinels where there is no reading.

    The sentinel is only a fill. A valid time may normalise to the same number (-166.44 ns with the default constants),
    so whether a reading is valid travels as a mask of its own: see :meth:`valid`.

    A reading is not valid when

    * npho is NaN, infinite or above 9e9; or below the domain of the scheme;
    * for the time also when npho is below ``npho_threshold``, or the time is NaN or beyond ±9e9.

    Constants are plain numbers, not tensors: they never enter a state dict and keep full precision at any dtype.
    """

    def __init__(self, settings: NormalizationConfig) -> None:
        super().__init__()
        self.scheme = NphoScheme(settings.npho_scheme, settings.npho_scale, settings.npho_scale2)
        self.time_scale = float(settings.time_scale)
        self.time_shift = float(settings.time_shift)
        self.sentinel_npho = float(settings.sentinel_npho)
        self.sentinel_time = float(settings.sentinel_time)
        self.npho_threshold = float(settings.npho_threshold)
        # The older system wrote 0.0 (a plausible dim reading) for counts below the domain.
        self.below_domain_fill = 0.0 if settings.below_domain == "zero" else self.sentinel_npho

    @property
    def threshold(self) -> float:
        """The photon threshold for a valid time, in network units."""
        return float(self.scheme(torch.tensor(self.npho_threshold, dtype=torch.float64)))

    def forward(self, npho: Tensor, time: Tensor) -> Tensor:
        """Return network units x (B, S, 2) of raw npho (B, S) in photons and time (B, S) in seconds."""
        return self.normalize(npho, time)[0]

    def valid(self, npho: Tensor, time: Tensor) -> Tensor:
        """Return which readings are valid, bool (B, S, 2), of raw npho (B, S) and time (B, S)."""
        return self.normalize(npho, time)[1]

    def normalize(self, npho: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return network units (B, S, 2) and validity (B, S, 2) of raw npho (B, S) and time (B, S)."""
        measured = (npho <= UNKNOWN_ABOVE) & (npho > -math.inf)  # NaN compares false
        in_domain = measured & (npho >= self.scheme.lowest)
        time_valid = measured & (npho >= self.npho_threshold) & (time.abs() <= UNKNOWN_ABOVE)
        safe_npho = torch.where(in_domain, npho, torch.zeros_like(npho))
        npho_value = torch.where(in_domain, self.scheme(safe_npho), self.below_domain_fill)
        npho_value = torch.where(measured, npho_value, self.sentinel_npho)
        safe_time = torch.where(time_valid, time, torch.zeros_like(time))
        time_value = torch.where(time_valid, safe_time / self.time_scale - self.time_shift, self.sentinel_time)
        return torch.stack((npho_value, time_value), dim=-1), torch.stack((in_domain, time_valid), dim=-1)

    def inverse_npho(self, value: Tensor) -> Tensor:
        """Return photons of npho in network units, any shape."""
        photons: Tensor = self.scheme.inverse(value)
        return photons

    def inverse_time(self, value: Tensor) -> Tensor:
        """Return seconds of time in network units, any shape."""
        return (value + self.time_shift) * self.time_scale

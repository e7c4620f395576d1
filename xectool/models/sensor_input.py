"""What the sensor-level networks see of an event: readings, validity, and what is hidden from them.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from xectool.config.model import InpainterModelConfig, MaeModelConfig
from xectool.config.normalization import NormalizationConfig
from xectool.config.training import TimeLossConfig
from xectool.models.masking import (
    MaskPolicy,
    Random,
    draw_mask,
    hide,
    maskable_like_older,
    maskable_sensors,
)
from xectool.models.normalize import Normalizer

DEFAULT_BRIGHT_PHOTONS = 100.0


class HiddenEvent(NamedTuple):
    """An event of which some sensors are hidden.

    Attributes:
        x: The readings themselves, network units, shape (B, S, 2).
        valid: Whether a reading is valid, bool (B, S, 2).
        maskable: Which sensors could have been hidden, bool (B, S).
        mask: Which sensors are hidden on purpose, bool (B, S).
        shown: x with sentinels where ``mask``, shape (B, S, 2).
        shown_valid: Whether a shown reading is valid, bool (B, S, 2).
        hidden: Which sensors the encoder leaves out, bool (B, S): ``mask`` and those without a reading.
    """

    x: Tensor
    valid: Tensor
    maskable: Tensor
    mask: Tensor
    shown: Tensor
    shown_valid: Tensor
    hidden: Tensor

    def training_facts(self) -> dict[str, Tensor]:
        """Return what a loss needs beside the predictions."""
        return {name: getattr(self, name) for name in ("x", "valid", "maskable", "mask", "hidden")}


class SensorHider:
    """Decides which sensors may be hidden, draws masks, and hides.

    With ``geometry: compat`` and time predicted, sensors without a valid time count as invalid whatever their npho:
    95 % of a typical event is then neither hidden nor seen. ``physical`` hides and shows every valid npho.

    Args:
        normalizer: Holds the sentinels.
        channels: Predicted channels.
        geometry: Of the model.
        policy: How masks are drawn.
    """

    def __init__(self, normalizer: Normalizer, channels: tuple[str, ...], geometry: str, policy: MaskPolicy) -> None:
        self.sentinels = (normalizer.sentinel_npho, normalizer.sentinel_time)
        self.channels = channels
        self.older = geometry == "compat"
        self.policy = policy

    def maskable(self, x: Tensor, valid: Tensor) -> Tensor:
        """Return which sensors may be hidden, bool (B, S), of x (B, S, 2) and its validity, bool (B, S, 2)."""
        if self.older:
            return maskable_like_older(x, self.channels, self.sentinels)
        return maskable_sensors(valid, self.channels)

    def readable(self, x: Tensor, valid: Tensor) -> Tensor:
        """Return which sensors the encoder sees unless they are hidden, bool (B, S); arguments as for `maskable`."""
        return self.maskable(x, valid) if self.older else valid[..., 0]

    def draw(self, x: Tensor, valid: Tensor, random: Random = None) -> Tensor:
        """Return a random mask, bool (B, S); arguments as for :meth:`maskable`."""
        return draw_mask(x[..., 0], self.maskable(x, valid), self.policy, random)

    def apply(self, x: Tensor, mask: Tensor, valid: Tensor | None = None) -> HiddenEvent:
        """Return the event with the sensors of ``mask`` hidden.

        Args:
            x: Network units, shape (B, S, 2).
            mask: 1 or True where a sensor is hidden, shape (B, S).
            valid: Whether a reading is valid, bool (B, S, 2); None takes a reading equal to its sentinel for missing.
        """
        mask = mask.bool()
        valid = x != x.new_tensor(self.sentinels) if valid is None else valid
        maskable = self.maskable(x, valid)
        hidden = mask | ~self.readable(x, valid)
        shown = hide(x, mask, self.sentinels)
        return HiddenEvent(x, valid, maskable, mask, shown, valid & ~mask.unsqueeze(-1), hidden)


def mask_policy(
    model: MaeModelConfig | InpainterModelConfig, normalization: NormalizationConfig, time: TimeLossConfig
) -> MaskPolicy:
    """Return how masks are drawn under a configuration.

    Args:
        model: The ``model`` section.
        normalization: Maps the photon threshold to network units.
        time: ``training.time``; its threshold and scale say which sensors are bright and how much likelier they are.
    """
    photons = DEFAULT_BRIGHT_PHOTONS if time.npho_threshold is None else time.npho_threshold
    scheme = Normalizer(normalization).scheme
    threshold = float(scheme(torch.tensor(max(photons, scheme.lowest), dtype=torch.float64)))
    return MaskPolicy(
        model.mask_ratio,
        model.mask_npho_flat,
        time.mask_ratio_scale,
        threshold,
        older=model.geometry == "compat",
        patterns=model.mask_patterns.sensors if model.mask_patterns.wanted else None,
    )

"""Regression heads, and the map between a task's physical units and what a head learns.

Axes: B events, F features (T*D), K numbers of a task.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.errors import ConfigError
from xectool.models.products import PositionLinear

LOG_FLOOR = 1e-6
"""Smallest target whose logarithm is taken; the older system's value."""


def regression_head(features: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Return a head (B, F) to (B, outputs): two hidden layers, the first normalised."""
    return nn.Sequential(
        PositionLinear(features, hidden),
        nn.LayerNorm(hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, outputs),
    )


class TargetTransform(nn.Module):
    """Physical targets to the units a head is trained in, and back.

    Network units are ``(t - shift) / scale`` with t the target, or its natural logarithm with ``log_transform``. Scale
    and shift then refer to the logarithm. Numbers are kept outside the state dict: they are part of the configuration.

    Args:
        width: K.
        scale: One number, K numbers, None for 1, or ``"auto"`` while it is not known yet.
        shift: The same, None for 0.
        log_transform: Whether to learn the logarithm; every component is then floored at 1e-6.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        width: int,
        scale: float | Sequence[float] | str | None = None,
        shift: float | Sequence[float] | str | None = None,
        log_transform: bool = False,
    ) -> None:
        super().__init__()
        self.width = width
        self.log_transform = log_transform
        self.resolved = not (isinstance(scale, str) or isinstance(shift, str))
        self.register_buffer("scale", _vector(scale, width, 1.0, "scale"), persistent=False)
        self.register_buffer("shift", _vector(shift, width, 0.0, "shift"), persistent=False)

    def encode(self, target: Tensor) -> Tensor:
        """Return network units (B, K) of physical targets (B, K)."""
        self._require_numbers()
        value = target.clamp_min(LOG_FLOOR).log() if self.log_transform else target
        return (value - self.shift) / self.scale

    def decode(self, value: Tensor) -> Tensor:
        """Return physical values (B, K) of network units (B, K); with a logarithm at most 9e9, as a file may hold."""
        self._require_numbers()
        unscaled = value * self.scale + self.shift
        return unscaled.exp().clamp_max(UNKNOWN_ABOVE) if self.log_transform else unscaled

    def decode_sigma(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Return standard deviations in physical units, (B, K), at most 9e9 scales.

        With a logarithm to first order: the physical value times the standard deviation of its logarithm.

        Args:
            mean: Predicted mean in network units, (B, K).
            log_variance: Logarithm of the predicted variance in network units, (B, K).
        """
        sigma = (0.5 * log_variance).exp().clamp_max(UNKNOWN_ABOVE) * self.scale
        return sigma * self.decode(mean) if self.log_transform else sigma

    def _require_numbers(self) -> None:
        if not self.resolved:
            raise ConfigError(
                "the target's scale is still 'auto'",
                where="tasks.<name>.scale",
                fix="train first (training measures it), or give a number: scale: 1.0",
            )


def _vector(value: float | Sequence[float] | str | None, width: int, default: float, key: str) -> Tensor:
    if value is None or isinstance(value, str):
        value = default
    numbers = torch.as_tensor(value, dtype=torch.get_default_dtype())
    if numbers.ndim > 0 and numbers.numel() != width:
        raise ConfigError(
            f"{key} has {numbers.numel()} numbers, the task has {width}",
            where=f"tasks.<name>.{key}",
            fix=f"give one number, or {width}",
        )
    if key == "scale" and not bool((numbers > 0).all()):
        raise ConfigError(f"scale must be positive, not {value}", where="tasks.<name>.scale", fix="scale: 1.0")
    return numbers.expand(width).clone()

"""How large a difference matters: the resolution of each output, where it is known, and where from.

Axes: B events, K numbers of an output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.models.heads import TargetTransform

FloatArray = npt.NDArray[np.float64]

SHARE_OF_RESOLUTION: Final = 1e-3
SHARE_OF_SPREAD: Final = 3e-4
"""An export that differs by less than these cannot be told from the original by any physics."""

_FROM_METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "angle": ("angle_resolution_68pct",),
    "energy": ("energy_res_68pct",),
    "timing": ("timing_res_68pct",),
    "uvwFI": ("uvw_u_res_68pct", "uvw_v_res_68pct", "uvw_w_res_68pct"),
    "angleVec": ("angleVec_resolution_68pct",),
    "n_gamma": ("n_gamma_res_68pct",),
    "pred_npho": ("rmse_npho",),  # a spread, as the 68 % of the others are
    "pred_time": ("rmse_time",),
}
_LEAST_SPREAD: Final = 1e-3
_IN_DEGREES: Final = ("angleVec",)


@dataclass(frozen=True)
class Yardstick:
    """What differences of one output are measured in.

    Attributes:
        value: One resolution, or one spread, of each number, shape (K,) or (1,).
        share: How much of it an export may differ by.
        source: Where it is known from.
    """

    value: FloatArray
    share: float
    source: str

    @property
    def limit(self) -> FloatArray:
        """Largest difference that is accepted, of each number."""
        return self.value * self.share


def from_metrics(name: str, metrics: Mapping[str, Any]) -> Yardstick | None:
    """Return the resolution of a task, or of a predicted channel in network units, from figures of merit.

    Args:
        name: Of the output; ``sigma_<task>`` is measured like the task.
        metrics: As validation or a prediction gives them.
    """
    task = name.removeprefix("sigma_")
    keys = _FROM_METRICS.get(task, ())
    values = [metrics.get(key) for key in keys]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not keys or len(numbers) < len(keys) or not all(math.isfinite(number) and number > 0 for number in numbers):
        return None
    resolution = np.asarray(numbers)
    resolution = np.radians(resolution) if task in _IN_DEGREES else resolution
    return Yardstick(resolution, SHARE_OF_RESOLUTION, f"resolution ({', '.join(keys)})")


def from_residuals(residuals: FloatArray) -> Yardstick:
    """Return the root mean square of what predictions are off by, shape (N,), N > 0."""
    source = f"resolution (root mean square error of {len(residuals)} hidden readings)"
    return Yardstick(np.sqrt(np.mean(residuals**2, keepdims=True)), SHARE_OF_RESOLUTION, source)


def from_spread(outputs: Sequence[npt.NDArray[np.generic]]) -> Yardstick:
    """Return the spread of the network's own outputs over events, for a task whose resolution is not known.

    Outputs that hardly differ, as those of one event or of a network that says the same of all, have no spread to
    measure in: at least a thousandth of their size is taken.

    Args:
        outputs: What the network gave, each (B, K).
    """
    values = np.concatenate([np.asarray(item, np.float64).reshape(len(item), -1) for item in outputs])
    finite = np.where(np.isfinite(values), values, np.nan)
    if not len(finite) or not np.isfinite(finite).any(axis=0).all():
        return Yardstick(np.zeros(1), SHARE_OF_SPREAD, "no finite prediction")
    spread = np.maximum(np.nanstd(finite, axis=0), _LEAST_SPREAD * np.nanmean(np.abs(finite), axis=0))
    return Yardstick(spread, SHARE_OF_SPREAD, "spread of the predictions; no resolution is known")


def head_units(yardstick: Yardstick, transform: TargetTransform, outputs: int) -> Yardstick | None:
    """Return a yardstick of physical units in the units of a head.

    Args:
        yardstick: In physical units.
        transform: Of the task.
        outputs: Numbers the head gives; beyond the task's width they are logarithms of variances, whose yardstick is 1.

    Returns:
        None where the head learns a logarithm: one resolution is then another one at each value.
    """
    if transform.log_transform:
        return None
    scale = transform.scale.detach().cpu().numpy().astype(np.float64)
    value = np.broadcast_to(yardstick.value, scale.shape) / scale
    value = np.concatenate([value, np.ones(outputs - len(value))])
    return Yardstick(value, yardstick.share, f"{yardstick.source}, in network units")

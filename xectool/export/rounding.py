"""How far two sound orders of the operations of a network may differ in float32.

Axes: B events.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from xectool.export.parity import FLOAT32_STEP, ROUNDING_STEPS, Metric, Noise, measured
from xectool.export.reference import Arrays, expected
from xectool.export.yardstick import FloatArray

JOLTS = 3
"""Sets of weights that are some steps of float32 off."""


def rounding_noise(model: nn.Module, mode: str, given: Arrays, metrics: Mapping[str, Metric]) -> Noise:
    """Return what tells the largest rounding of a network in each of some events.

    That is what float64 gives instead of float32, and with weights of which each is off by up to `ROUNDING_STEPS`, as
    sums in any sound order are: one rounding alone may be small by chance where an event is
    ill-conditioned.

    Args:
        model: The network.
        mode: ``raw`` or ``normalized``.
        given: Its inputs by name, axis 0 of B events.
        metrics: How an output is measured where not as it is.
    """

    def of_events(asked: npt.NDArray[np.bool_]) -> dict[str, FloatArray]:
        own = {name: value[asked] for name, value in given.items()}
        exact = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in own.items()}
        precise = measured(expected(copy.deepcopy(model).double(), mode, exact), metrics)
        others = [measured(expected(model, mode, own), metrics)]
        others += [measured(expected(_jolted(model, seed), mode, exact), metrics) for seed in range(JOLTS)]
        return {
            name: np.max([_largest(other[name], wide) for other in others], axis=0) for name, wide in precise.items()
        }

    return of_events


def _jolted(model: nn.Module, seed: int) -> nn.Module:
    """Return the network in float64 with each weight changed by up to `ROUNDING_STEPS` of float32."""
    jolted, draw = copy.deepcopy(model).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in jolted.parameters():
            steps = ROUNDING_STEPS * (2 * torch.rand(weight.shape, generator=draw, dtype=torch.float64) - 1)
            weight.mul_(1 + FLOAT32_STEP * steps)
    return jolted


def _largest(own: npt.NDArray[np.generic], exact: npt.NDArray[np.generic]) -> FloatArray:
    """Return the largest difference of each event, shape (B, 1, ...)."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        gap = np.nan_to_num(np.abs(np.asarray(own, np.float64) - np.asarray(exact, np.float64)), posinf=0.0)
    return np.asarray(gap.max(axis=tuple(range(1, gap.ndim)), keepdims=True))

"""Events at the edge of what a file can hold; an export that is right on ordinary events may be wrong on these.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from xectool.detector import faces
from xectool.detector.constants import DEAD_VALUE, NUM_SENSORS, UNKNOWN_ABOVE
from xectool.models.normalize import Normalizer

_TYPICAL_TIME_S = 1e-8
_LARGEST = 3.4e38


def edge_events(normalizer: Normalizer, example: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return npho (S,) and time (S,) of each edge event, by what is special about it.

    Args:
        normalizer: Of the network; its sentinels and thresholds are aimed at.
        example: npho of an ordinary event, shape (S,), into which single values are put.
    """
    usual = torch.full((NUM_SENSORS,), _TYPICAL_TIME_S)
    dead = torch.full((NUM_SENSORS,), DEAD_VALUE)
    found = {
        "all sensors invalid": (dead, dead),
        "no light": (torch.zeros(NUM_SENSORS), dead),
        "no light, with times": (torch.zeros(NUM_SENSORS), usual),
        "every sensor saturated": (torch.full((NUM_SENSORS,), UNKNOWN_ABOVE), usual),
        "every reading NaN": (torch.full((NUM_SENSORS,), math.nan),) * 2,
        "every reading infinite": (torch.full((NUM_SENSORS,), math.inf), torch.full((NUM_SENSORS,), -math.inf)),
        "every time invalid": (example, dead),
    }
    return found | {name: _sprinkled(example, usual, *values) for name, values in _single_values(normalizer)}


def _single_values(normalizer: Normalizer) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield npho and time that some sensors of an otherwise ordinary event read."""
    bright = max(normalizer.npho_threshold, 0.0) + 1e4
    sentinel_time_s = (normalizer.sentinel_time + normalizer.time_shift) * normalizer.time_scale
    lowest = max(normalizer.scheme.lowest, -UNKNOWN_ABOVE)
    sentinel_npho = float(normalizer.inverse_npho(torch.tensor(normalizer.sentinel_npho)))
    yield "largest photon number", (UNKNOWN_ABOVE, _TYPICAL_TIME_S)
    yield "largest float32", (_LARGEST, _LARGEST)
    yield "a valid time equal to its sentinel", (bright, sentinel_time_s)
    yield "photons equal to their sentinel", (sentinel_npho, _TYPICAL_TIME_S)
    yield "photons at the threshold of the time", (normalizer.npho_threshold, _TYPICAL_TIME_S)
    yield "photons at the end of the domain", (lowest, _TYPICAL_TIME_S)
    if lowest > -UNKNOWN_ABOVE:  # a linear scheme has no end
        yield "photons below the domain", (1.5 * lowest - 1.0, _TYPICAL_TIME_S)
    yield "negative photons", (-3.0, _TYPICAL_TIME_S)
    yield "NaN", (math.nan, math.nan)
    yield "infinity", (math.inf, math.inf)
    yield "minus infinity", (-math.inf, -math.inf)
    yield "the smallest numbers", (1e-45, 1e-45)
    yield "a late time", (bright, UNKNOWN_ABOVE)


def _sprinkled(example: Tensor, usual: Tensor, npho: float, time: float) -> tuple[Tensor, Tensor]:
    at = torch.arange(NUM_SENSORS) % 20 == 3
    return torch.where(at, npho, example), torch.where(at, time, usual)


def edge_masks(num_events: int) -> dict[str, Tensor]:
    """Return masks (B, S) at the edge of what is asked of a network that predicts sensors, by what they hide."""
    nothing = torch.zeros(num_events, NUM_SENSORS, dtype=torch.bool)
    inner, one = nothing.clone(), nothing.clone()
    inner[:, faces.sensors("inner").copy()] = True
    one[:, ::NUM_SENSORS] = True
    return {"nothing hidden": nothing, "everything hidden": ~nothing, "the inner face hidden": inner, "one hidden": one}

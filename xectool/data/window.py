"""The events of one window in memory.

Axes: N events of the window, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xectool.detector.constants import NUM_SENSORS

Array = npt.NDArray[Any]

NUM_EXTREMES = 6  # columns of `xectool.data.extremes`
# Starts of the arrays in a shared buffer; numpy and torch read aligned rows faster.
_ALIGNMENT = 64


@dataclass(frozen=True)
class WindowArrays:
    """Raw events.

    Attributes:
        npho: Photons, shape (N, S), float32.
        time: Times in s, shape (N, S), float32.
        targets: Truth of each task, shape (N, D), float32.
        identity: File index, entry, run and event number, shape (N, 4), int64.
        extremes: What tells unusual events, shape (N, 6), float64; only filled where somebody asks for it.
    """

    npho: Array
    time: Array
    targets: Mapping[str, Array]
    identity: Array
    extremes: Array

    @classmethod
    def empty(cls, num_events: int, widths: Mapping[str, int]) -> WindowArrays:
        """Return arrays for ``num_events`` events; memory is only taken as they are filled."""
        return cls.in_buffer(np.empty(buffer_bytes(num_events, widths), np.uint8), num_events, widths)

    @classmethod
    def in_buffer(cls, buffer: Any, num_events: int, widths: Mapping[str, int]) -> WindowArrays:
        """Return arrays that lie in ``buffer``, of at least ``buffer_bytes`` bytes."""
        arrays, offset = [], 0
        for shape, dtype in _layout(num_events, widths):
            arrays.append(np.ndarray(shape, dtype, buffer, offset))
            offset += _aligned(arrays[-1].nbytes)
        npho, time, *targets, identity, extremes = arrays
        return cls(npho, time, dict(zip(sorted(widths), targets, strict=True)), identity, extremes)

    def rows(self, start: int, stop: int) -> WindowArrays:
        """Return the events ``[start, stop)``; nothing is copied."""
        targets = {task: target[start:stop] for task, target in self.targets.items()}
        identity, extremes = self.identity[start:stop], self.extremes[start:stop]
        return WindowArrays(self.npho[start:stop], self.time[start:stop], targets, identity, extremes)

    def arrays(self) -> list[Array]:
        """Return all arrays, tasks in order of their names."""
        targets = (self.targets[task] for task in sorted(self.targets))
        return [self.npho, self.time, *targets, self.identity, self.extremes]


def buffer_bytes(num_events: int, widths: Mapping[str, int]) -> int:
    """Return the bytes of the arrays of a window."""
    return sum(_aligned(math.prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in _layout(num_events, widths))


def event_bytes(widths: Mapping[str, int]) -> int:
    """Return the bytes one event takes in a window or batch.

    >>> event_bytes({"energy": 1})
    38164
    """
    return 2 * NUM_SENSORS * 4 + 4 * sum(widths.values()) + 4 * 8 + NUM_EXTREMES * 8


def _layout(num_events: int, widths: Mapping[str, int]) -> list[tuple[tuple[int, int], type]]:
    sensors: tuple[tuple[int, int], type] = ((num_events, NUM_SENSORS), np.float32)
    targets: list[tuple[tuple[int, int], type]] = [((num_events, widths[task]), np.float32) for task in sorted(widths)]
    return [sensors, sensors, *targets, ((num_events, 4), np.int64), ((num_events, NUM_EXTREMES), np.float64)]


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT

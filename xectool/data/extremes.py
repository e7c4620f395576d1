"""The few numbers of an event that tell at once that it holds nothing out of the ordinary.

They are taken where an event is read, for all events of a window at once: the training thread, with its cold caches,
would look at the same readings a dozen times. Reader processes come here, and load no torch.

Axes: N events, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from xectool.data.window import NUM_EXTREMES, Array, WindowArrays
from xectool.detector.constants import DEAD_VALUE, NUM_SENSORS, UNKNOWN_ABOVE

PHOTONS, NPHO_LOW, NPHO_HIGH, TIME_LOW, TIME_HIGH, TRUTH_HIGH = range(NUM_EXTREMES)
"""Columns: sum of the known photon numbers; lowest photon number and highest one that is not 1e10, the same of the
times; largest truth without its sign. Highest ones are not below 0. Readings that are NaN make lowest and highest NaN;
NaN as truth counts nowhere."""
_FEW_EVENTS: Final = 16
_DEAD_BITS: Final = np.float32(DEAD_VALUE).view(np.uint32)
_BLOCK_ROWS: Final = 64  # few and long array operations: for each a reading thread queues for the interpreter lock


def measure(window: WindowArrays) -> None:
    """Fill the extremes of all events of a window, shape (N, 6)."""
    scratch = np.empty((_BLOCK_ROWS, NUM_SENSORS), np.uint32), np.empty((_BLOCK_ROWS, NUM_SENSORS), np.float32)
    for start in range(0, len(window.npho), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        npho, time, out = window.npho[rows], window.time[rows], window.extremes[rows]
        bits, counts = (array[: len(npho)] for array in scratch)
        out[:, TIME_LOW], out[:, TIME_HIGH] = _ends(time, bits)
        out[:, NPHO_LOW], out[:, NPHO_HIGH] = _ends(npho, bits)
        if out[:, NPHO_LOW].min() >= -UNKNOWN_ABOVE and out[:, NPHO_HIGH].max() <= UNKNOWN_ABOVE:
            np.copyto(counts, npho != np.float32(DEAD_VALUE))
        else:
            npho = np.where(np.abs(npho) <= UNKNOWN_ABOVE, npho, np.float32(0.0))
            counts.fill(1.0)
        # Not by a library for matrices: equal events have equal sums whatever its kernels do with what lies around.
        np.add.reduce(np.multiply(npho, counts, out=counts), axis=1, out=out[:, PHOTONS])
    window.extremes[:, TRUTH_HIGH] = 0.0
    for truth in window.targets.values():
        highest = window.extremes[:, TRUTH_HIGH]
        np.fmax(highest, np.fmax.reduce(np.abs(truth), axis=1), out=highest)


def _ends(values: Array, bits: Array) -> tuple[Array, Array]:
    """Return lowest and highest number of each event, 1e10 not among the highest; ``bits`` is scratch.

    The place of the highest is found twice as fast as the highest itself.
    """
    every = np.arange(len(values))
    lowest, highest = values[every, values.argmin(axis=1)], values[every, values.argmax(axis=1)]
    if not highest.max() < DEAD_VALUE:
        # Less those of 1e10 the bits of all positive numbers below it wrap around, in their order, beyond all others.
        np.subtract(values.view(np.uint32), _DEAD_BITS, out=bits)
        below = values[every, bits.argmax(axis=1)]
        highest = np.where(highest == DEAD_VALUE, np.where(below == DEAD_VALUE, np.float32(0.0), below), highest)
    return lowest, np.maximum(highest, np.float32(0.0))


class Usual:
    """Bounds of the extremes of an event; a column that is not named has none, but is a number.

    Args:
        bounds: Lowest and highest value that is usual, by column.
    """

    def __init__(self, bounds: Mapping[int, tuple[float, float]]) -> None:
        self._bounds = [bounds.get(column, (-math.inf, math.inf)) for column in range(NUM_EXTREMES)]

    def holds(self, extremes: npt.NDArray[np.float64] | None) -> bool:
        """Return whether extremes, shape (N, 6), are known and all within the bounds."""
        if extremes is None:
            return False
        # Array operations on a few numbers cost more with cold caches than a loop over them (70 to 12 us).
        rows = extremes if len(extremes) <= _FEW_EVENTS else np.stack([extremes.min(axis=0), extremes.max(axis=0)])
        return all(
            low <= value <= high for row in rows.tolist() for (low, high), value in zip(self._bounds, row, strict=True)
        )

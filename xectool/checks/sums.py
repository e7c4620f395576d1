"""Sums of the readings of every sensor, block by block.

Axes: B events of a block, S sensors (4760).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xectool.detector.constants import NUM_SENSORS

Array = npt.NDArray[Any]


class SensorSums:
    """What is summed over events for each sensor of one channel; arrays of shape (S,).

    Attributes:
        events: Events seen.
        valid: Events in which the sensor has a valid reading.
        lowest: Smallest valid reading.
        highest: Largest valid reading.
    """

    def __init__(self) -> None:
        self.events = 0
        self.valid = np.zeros(NUM_SENSORS, np.int64)
        self.sum = np.zeros(NUM_SENSORS)
        self.squares = np.zeros(NUM_SENSORS)
        self.lowest = np.full(NUM_SENSORS, np.inf, np.float32)
        self.highest = np.full(NUM_SENSORS, -np.inf, np.float32)

    def add(self, values: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Add a block of shape (B, S); return its smallest and largest valid readings, and all, zero if not valid.

        The smallest and largest are infinite without any.

        Readings that are not valid become NaN, or zero, by their bits: numpy's `where` takes a branch a reading, which
        makes it ten times slower.
        """
        self.events += len(values)
        bits, hidden = values.view(np.int32), valid.view(np.int8) - np.int8(1)
        mask = hidden.astype(np.int32)  # all bits set where a reading is not valid
        known = (bits | mask).view(np.float32)
        low = np.fmin.reduce(known, axis=0, initial=np.float32(np.inf))
        high = np.fmax.reduce(known, axis=0, initial=np.float32(-np.inf))
        np.minimum(self.lowest, low, out=self.lowest)
        np.maximum(self.highest, high, out=self.highest)
        np.bitwise_and(bits, np.invert(mask, out=mask), out=known.view(np.int32))
        self.valid += np.add.reduce(valid, axis=0, dtype=np.int32)
        self.sum += known.sum(axis=0)
        self.squares += np.einsum("ij,ij->j", known, known)
        return low, high, known

    def merge(self, other: SensorSums) -> None:
        """Take over the sums of other events."""
        self.events += other.events
        self.valid += other.valid
        np.minimum(self.lowest, other.lowest, out=self.lowest)
        np.maximum(self.highest, other.highest, out=self.highest)
        self.sum += other.sum
        self.squares += other.squares

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Mean of the valid readings; 0 without any."""
        return np.divide(self.sum, self.valid, out=np.zeros(NUM_SENSORS), where=self.valid > 0)

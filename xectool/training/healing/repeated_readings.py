"""Events whose readings are those of another, whatever run and event number they have.

Two jobs of a simulation with one seed, or a file merged twice under other numbers, give such events. Sums and largest
readings of two different events never agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch
from xectool.data.extremes import NPHO_HIGH, PHOTONS, TIME_HIGH, TIME_LOW

MOST_EVENTS: Final = 1 << 20  # that are remembered, 24 bytes each
FEWEST_ALIKE: Final = 2
AT_ONCE: Final = 64  # batches: array operations on a few numbers cost 5 us each with the cold caches of a step
_COLUMNS: Final = [PHOTONS, NPHO_HIGH, TIME_LOW, TIME_HIGH]
_PRIME: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Alike:
    """How many events have the readings of another, and the first such pair as ``(file index, entry)`` each."""

    count: int
    first: tuple[tuple[int, int], tuple[int, int]]


class RepeatedReadings:
    """Remembers what tells the events of an epoch apart."""

    def __init__(self) -> None:
        self._batches: list[tuple[Array, Array, Array]] = []
        self._marks: list[Array] = []
        self._places: list[Array] = []
        self._num_events = 0

    def add(self, window: Sequence[EventBatch]) -> None:
        """Take the events of a window whose extremes are known and that have light."""
        if self._num_events >= MOST_EVENTS:
            return
        self._batches += [(b.extremes, b.file_index, b.entry) for b in window if b.extremes is not None]
        if len(self._batches) >= AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        """Keep of the batches at hand what tells their events apart."""
        if not self._batches:
            return
        extremes, files, entries = (np.concatenate(part) for part in zip(*self._batches, strict=True))
        self._batches.clear()
        lit = np.flatnonzero(extremes[:, PHOTONS] > 0)
        self._marks.append(_marks(extremes[lit][:, _COLUMNS]))
        self._places.append(np.stack((files[lit].astype(np.int64), entries[lit]), axis=1))
        self._num_events += len(lit)

    def found(self) -> Alike | None:
        """Return the events with the readings of another at another place; None where there are hardly any."""
        self._pack()
        if not self._marks:
            return None
        marks, places = np.concatenate(self._marks), np.concatenate(self._places)
        # an event that was served twice is one place
        places, first = np.unique(places, axis=0, return_index=True)
        marks = marks[first]
        order = np.argsort(marks, kind="stable")
        again = np.flatnonzero(marks[order][1:] == marks[order][:-1])
        if len(again) < FEWEST_ALIKE:
            return None
        one, other = (tuple(places[order[again[0] + shift]].tolist()) for shift in (0, 1))
        return Alike(len(again), ((one[0], one[1]), (other[0], other[1])))


def _marks(columns: Array) -> Array:
    """Return one number for each row of float64 numbers, shape (N, C)."""
    bits = np.ascontiguousarray(columns).view(np.uint64)
    marks = np.zeros(len(bits), np.uint64)
    for column in bits.T:
        marks = (marks ^ column) * _PRIME
        marks ^= marks >> _SHIFT
    return marks

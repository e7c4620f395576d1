"""Counts and sums of the sensor readings, block by block; memory does not grow with the number of events.

Axes: B events of a block, S sensors (4760).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.checks.stretches import Stretch, StretchScan, face_sums
from xectool.checks.sums import SensorSums
from xectool.detector.constants import (
    DEAD_EVENTS,
    DEAD_VALUE,
    LARGEST_NPHO,
    LARGEST_TIME_S,
    NUM_SENSORS,
    UNKNOWN_ABOVE,
)

Array = npt.NDArray[Any]

KEPT_CELLS: Final = 10
BLANK_RUN: Final = 128
"""Successive zeros of one event that look like a sector (512 bytes) of a disk that was never written."""
# What no sensor can deliver: below the smallest number only the exponent of a float was hit.
SMALLEST_ABS: Final = {"npho": 1e-12, "time": 1e-21}
_MARKER_WIDTH: Final = 1e-3 * DEAD_VALUE
_MARKED: Final = 0.01  # of all readings; damage is rarer
_MOST_SENSORS: Final = 0.5  # of all, which damage does not reach
_MARKER_LOW, _MARKER_HIGH = np.float32(DEAD_VALUE - _MARKER_WIDTH), np.float32(DEAD_VALUE + _MARKER_WIDTH)


@dataclass(frozen=True)
class Cell:
    """One reading: where it stands and what it is."""

    path: str
    entry: int
    run: int
    event: int
    sensor: int
    value: float


def _sound(values: Array, size: Array, largest: float, smallest: float) -> npt.NDArray[np.bool_]:
    """Return which readings a sensor can deliver, by their absolute ``size``: zero, or between two numbers."""
    sound: npt.NDArray[np.bool_] = size <= np.float32(largest)
    small = size < np.float32(smallest)
    if np.count_nonzero(small) > np.count_nonzero(values == 0):
        sound &= ~small | (values == 0)
    return sound


@dataclass
class CellCounts:
    """Readings of one channel of one file.

    Attributes:
        channel: ``npho`` or ``time``.
        total: All readings.
        nan: Readings that are NaN.
        posinf: Readings that are +infinity.
        neginf: Readings that are -infinity.
        unknown: Readings that carry the marker 1e10.
        impossible: Finite readings no sensor delivers, markers left out.
        blank: Events with a run of zeros, though not of zeros alone.
        zero: Readings of the other events that are zero.
        num_zero: Readings of all events that are zero.
        first: The first few of each kind, by kind.
        nan_of_sensor: How many of the NaN each sensor has, shape (S,).
    """

    channel: str
    total: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    unknown: int = 0
    impossible: int = 0
    blank: int = 0
    zero: int = 0
    num_zero: int = 0
    first: dict[str, list[Cell]] = field(default_factory=dict)
    nan_of_sensor: Array = field(default_factory=lambda: np.zeros(NUM_SENSORS, np.int64))

    @property
    def nan_marks_no_reading(self) -> bool:
        """Whether NaN is what this file writes for no reading: of dead sensors, or for times that were not measured."""
        events, has_nan = self.total / NUM_SENSORS, self.nan_of_sensor > 0
        are_dead = bool(has_nan.any()) and int(self.nan_of_sensor[has_nan].min()) >= DEAD_EVENTS * events
        are_untimed = self.channel == "time" and has_nan.mean() > _MOST_SENSORS and self.nan > _MARKED * self.total
        return self.nonfinite == self.nan and (are_dead or bool(are_untimed))

    @property
    def nonfinite(self) -> int:
        """NaN and infinities together."""
        return self.nan + self.posinf + self.neginf

    def _add_zeros(self, zero: npt.NDArray[np.bool_], place: Place) -> None:
        """Count the events with a long run of zeros, of which readings are zero, shape (B, S)."""
        zeros = np.add.reduce(zero, axis=1, dtype=np.int32)
        self.num_zero += int(zeros.sum())
        self.zero += int(zeros[zeros < NUM_SENSORS].sum())
        for row in np.flatnonzero((zeros >= BLANK_RUN) & (zeros < NUM_SENSORS)):
            edges = np.flatnonzero(np.diff(zero[row], prepend=False, append=False)).reshape(-1, 2)
            start, stop = (int(edge) for edge in edges[int((edges[:, 1] - edges[:, 0]).argmax())])
            if stop - start >= BLANK_RUN:
                self.blank, self.zero = self.blank + 1, self.zero - int(zeros[row])
                kept = self.first.setdefault("blank", [])
                kept += [place.cell(int(row), start, stop - start)] if len(kept) < KEPT_CELLS else []

    def add(self, values: Array, usual: npt.NDArray[np.bool_], place: Place) -> None:
        """Count the readings of a block.

        Args:
            values: Raw readings, shape (B, S).
            usual: Which of them are certainly sound, shape (B, S).
            place: Where the block lies.
        """
        self.total += values.size
        self._add_zeros(values == 0, place)
        if usual.all():
            return
        marker = (values >= _MARKER_LOW) & (values <= _MARKER_HIGH)
        self.unknown += int(np.count_nonzero(marker))
        marker |= usual
        if marker.all():
            return
        rows, sensors = np.nonzero(~marker)
        odd = values[rows, sensors]
        kinds = {
            "nan": np.isnan(odd),
            "posinf": np.isposinf(odd),
            "neginf": np.isneginf(odd),
            "impossible": np.isfinite(odd),
        }
        self.nan_of_sensor += np.bincount(sensors[kinds["nan"]], minlength=NUM_SENSORS)
        for kind, hit in kinds.items():
            count = int(np.count_nonzero(hit))
            setattr(self, kind, getattr(self, kind) + count)
            kept = self.first.setdefault(kind, [])
            for at in np.flatnonzero(hit)[: KEPT_CELLS - len(kept)]:
                kept.append(place.cell(int(rows[at]), int(sensors[at]), float(odd[at])))


@dataclass(frozen=True)
class Place:
    """Where the rows of a block come from: file, entries (B,), run and event numbers (B,)."""

    path: str
    entries: Array
    runs: Array
    events: Array

    def cell(self, row: int, sensor: int, value: float) -> Cell:
        """Return the identity of one reading."""
        return Cell(self.path, int(self.entries[row]), int(self.runs[row]), int(self.events[row]), sensor, value)

    def rows(self, which: slice) -> Place:
        """Return the place of some of the rows."""
        return Place(self.path, self.entries[which], self.runs[which], self.events[which])


class CellScan:
    """All sums of the readings of a sample.

    Args:
        npho_threshold: Photons from which on a time is valid.
        lowest_npho: Lower end of the domain of the photon scheme.
        sentinels: Raw photons and raw time, s, that normalise to the sentinels; None for one out of reach.
        widths: How near a reading must be to count as a collision, raw.
    """

    def __init__(
        self,
        npho_threshold: float,
        lowest_npho: float,
        sentinels: tuple[float | None, float | None] = (None, None),
        widths: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.npho, self.time = SensorSums(), SensorSums()
        self._file_npho, self._stretches = SensorSums(), StretchScan()
        self.below_domain = 0
        self.below_first: list[Cell] = []
        self.extremes: list[list[Cell | None]] = [[None, None], [None, None]]
        self.collisions = [0, 0]
        self.collision_first: list[Cell | None] = [None, None]
        self.timed_sensors = self.timed_readings = 0
        self.least_valid = NUM_SENSORS
        self._threshold, self._lowest = np.float32(npho_threshold), np.float32(lowest_npho)
        self._sentinels, self._widths = sentinels, widths

    def add(self, npho: Array, time: Array, place: Place, counts: tuple[CellCounts, CellCounts]) -> None:
        """Add a block of raw readings, both of shape (B, S)."""
        size = np.abs(npho)
        measured, sound = size <= np.float32(UNKNOWN_ABOVE), _sound(npho, size, LARGEST_NPHO, SMALLEST_ABS["npho"])
        counts[0].add(npho, sound, place)
        in_domain = measured & (npho >= self._lowest)
        self._add_below(npho, measured, in_domain, place)
        *ends, known = self._file_npho.add(npho, in_domain & sound)
        light = face_sums(known, np.float32)
        self._locate(0, ends, npho, place)
        valid = np.add.reduce(in_domain, axis=1, dtype=np.int32)
        self.least_valid = min(self.least_valid, int(valid.min(initial=NUM_SENSORS)))
        np.abs(time, out=size)
        sound = _sound(time, size, LARGEST_TIME_S, SMALLEST_ABS["time"])
        counts[1].add(time, sound, place)
        timed = in_domain & (npho >= self._threshold)
        self.timed_sensors += int(np.count_nonzero(timed))
        timed &= size <= np.float32(UNKNOWN_ABOVE)
        self.timed_readings += int(np.count_nonzero(timed))
        timed &= sound
        *ends, known = self.time.add(time, timed)
        mean_time = face_sums(known, np.float32) / np.maximum(face_sums(timed, np.int32), 1)
        self._stretches.add(place.entries, place.runs, light, mean_time)
        self._locate(1, ends, time, place)
        for channel, (values, used) in enumerate(((npho, in_domain), (time, timed))):
            self._collide(channel, values, used, place)

    def _add_below(self, npho: Array, measured: Array, in_domain: Array, place: Place) -> None:
        """Count the measured readings below the domain of the photon scheme, and keep the first."""
        below = int(np.count_nonzero(measured)) - int(np.count_nonzero(in_domain))
        self.below_domain += below
        if below and len(self.below_first) < KEPT_CELLS:
            rows, sensors = (axis[: KEPT_CELLS - len(self.below_first)] for axis in np.nonzero(measured & ~in_domain))
            self.below_first += [
                place.cell(int(row), int(sensor), float(npho[row, sensor]))
                for row, sensor in zip(rows, sensors, strict=True)
            ]

    def _locate(self, channel: int, ends: Sequence[Array], values: Array, place: Place) -> None:
        """Keep where the smallest and the largest valid reading of a channel stand."""
        for end, (found, sign) in enumerate(zip(ends, (-1, 1), strict=True)):
            sensor = int((sign * found).argmax())
            value, before = float(found[sensor]), self.extremes[channel][end]
            if np.isfinite(value) and (before is None or sign * value > sign * before.value):
                row = int(np.flatnonzero(values[:, sensor] == found[sensor])[0])
                self.extremes[channel][end] = place.cell(row, sensor, value)

    def end_file(self) -> tuple[SensorSums, list[Stretch]]:
        """Close the sums of one file; return those of its photons, only then part of all, and its odd stretches."""
        ended, self._file_npho = self._file_npho, SensorSums()
        stretches, self._stretches = self._stretches.found(), StretchScan()
        self.npho.merge(ended)
        return ended, stretches

    def _collide(self, channel: int, values: Array, valid: npt.NDArray[np.bool_], place: Place) -> None:
        sentinel, width = self._sentinels[channel], self._widths[channel]
        if sentinel is None:
            return
        near = valid & (values > np.float32(sentinel - width)) & (values < np.float32(sentinel + width))
        count = int(np.count_nonzero(near))
        if count and self.collision_first[channel] is None:
            row, sensor = (int(axis[0]) for axis in np.nonzero(near))
            self.collision_first[channel] = place.cell(row, sensor, float(values[row, sensor]))
        self.collisions[channel] += count


class EventReservoir:
    """An evenly spaced choice of events of a stream of unknown length, at most ``size`` of them.

    Attributes:
        stride: Every so many-th event is kept.
    """

    def __init__(self, size: int = 1024) -> None:
        self.size, self.stride, self._seen = size, 1, 0
        self._rows: list[tuple[Array, Array, Cell]] = []

    def add(self, npho: Array, time: Array, place: Place) -> None:
        """Offer the events of a block."""
        first = -self._seen % self.stride
        self._rows += [
            (npho[row].copy(), time[row].copy(), place.cell(row, 0, 0.0))
            for row in range(first, len(npho), self.stride)
        ]
        self._seen += len(npho)
        while len(self._rows) > self.size:
            self._rows, self.stride = self._rows[::2], 2 * self.stride

    def cell(self, row: int, sensor: int, value: float) -> Cell:
        """Return the identity of one reading of a kept event."""
        return replace(self._rows[row][2], sensor=sensor, value=value)

    @property
    def npho(self) -> Array:
        """Raw photons of the kept events, shape (n, S)."""
        return np.array([row[0] for row in self._rows], np.float32).reshape(-1, NUM_SENSORS)

    @property
    def time(self) -> Array:
        """Raw times of the kept events, s, shape (n, S)."""
        return np.array([row[1] for row in self._rows], np.float32).reshape(-1, NUM_SENSORS)

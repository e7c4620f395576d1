"""The state of each sensor: dead, constant, hot, noisy or good.

Axes: E kept events, S sensors (4760).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.checks.cells import EventReservoir, Place
from xectool.checks.sums import SensorSums
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.detector.neighbours import within_hops

Array = npt.NDArray[Any]

STATES: Final = ("good", "dead", "constant", "hot", "noisy")
# Fewer events do not tell a broken sensor from one near a shower.
MIN_EVENTS: Final = 100
MIN_CONSTANT: Final = 50
MIN_CONSTANT_TIMES: Final = 20  # there are times with much light only, and no two are the same
# A hot sensor shows light in a quiet event, when those around it show none; gains differ by less than this factor.
_HOT_FACTOR: Final = 5.0
_HOT_PHOTONS: Final = 50.0
_NOISY_FACTOR: Final = 4.0
_ELECTRONIC_NOISE: Final = 25.0  # photons squared, below which a ratio of spreads means nothing


@dataclass(frozen=True)
class SensorHealth:
    """State of every sensor.

    Attributes:
        state: Position in `STATES`, shape (S,).
        mean: Mean photons of valid readings, shape (S,).
        valid_share: Share of events with a valid reading, shape (S,).
        events: Events it rests on.
        judged: Whether there were enough events for hot and noisy.
    """

    state: Array
    mean: Array
    valid_share: Array
    events: int
    judged: bool

    def of(self, state: str) -> list[int]:
        """Return the sensors in a state, ascending."""
        return [int(sensor) for sensor in np.flatnonzero(self.state == STATES.index(state))]

    def counts(self) -> dict[str, int]:
        """Return how many sensors are in each state."""
        return {state: len(self.of(state)) for state in STATES}


@dataclass(frozen=True)
class FileHealth:
    """The state of every sensor in one file: a byte a sensor, so that thousands of files fit into memory."""

    path: str
    state: Array
    judged: bool

    @classmethod
    def of_file(cls, path: str, sums: SensorSums, kept: EventReservoir) -> FileHealth:
        """Keep what the sums and some events of a file say."""
        health = sensor_health(sums, kept)
        return cls(path, health.state.astype(np.int8), health.judged)

    def of(self, state: str) -> Array:
        """Return which sensors are in a state, bool, shape (S,)."""
        return np.asarray(self.state == STATES.index(state))


class HealthScan:
    """Judges the sensors from events that pass by.

    Args:
        size: Events kept at most, besides the sums over all of them.
    """

    def __init__(self, size: int = 2 * MIN_EVENTS) -> None:
        self._sums, self._kept = SensorSums(), EventReservoir(size)

    def add(self, npho: Array, time: Array, place: Place) -> None:
        """Take raw photons and times of a batch, shape (B, S) each."""
        self._sums.add(npho, np.abs(npho) <= UNKNOWN_ABOVE)
        self._kept.add(npho, time, place)

    def health(self) -> SensorHealth:
        """Return the state of every sensor."""
        return sensor_health(self._sums, self._kept)


def silent_sensors(sums: SensorSums, fewest: int = MIN_CONSTANT) -> tuple[Array, Array]:
    """Return which sensors are dead, and which say the same in ``fewest`` events or more, bool, shape (S,) each."""
    flat = (sums.lowest == sums.highest) & (sums.valid >= fewest)
    dead = (sums.valid == 0) | (flat & (sums.highest == 0))
    return dead, flat & ~dead


def sensor_health(sums: SensorSums, kept: EventReservoir) -> SensorHealth:
    """Return the state of every sensor from the sums over all events and the readings of the kept ones."""
    state = np.zeros(len(sums.valid), np.int64)
    npho = kept.npho
    dead, constant = silent_sensors(sums)
    judged = len(npho) >= MIN_EVENTS
    if judged:
        quiet = np.where(dead, np.nan, _quiet_level(npho))
        state[_noisy(npho)] = STATES.index("noisy")
        state[quiet > _HOT_FACTOR * around(quiet) + _HOT_PHOTONS] = STATES.index("hot")
    for name, which in (("dead", dead), ("constant", constant)):
        state[which] = STATES.index(name)
    return SensorHealth(state, sums.mean, sums.valid / max(sums.events, 1), sums.events, judged)


def _quiet_level(npho: Array) -> Array:
    """Return the median photons of each sensor, shape (S,); NaN readings count as the lowest."""
    filled = np.where(np.abs(npho) <= UNKNOWN_ABOVE, npho, np.float32(-np.inf))
    # one sort of every sensor's own readings takes a fortieth of the time of a median over events
    ordered, half = np.sort(np.ascontiguousarray(filled.T), axis=1), len(filled) // 2
    level = ordered[:, (len(filled) - 1) // 2 : half + 1].mean(axis=1)
    return np.where(np.isfinite(level), level, 0.0)


def around(values: Array, middle: Callable[..., Any] = np.nanmedian) -> Array:
    """Return for each sensor the median of those within two steps on its face; infinite without any, shape (S,).

    Args:
        values: One of each sensor, NaN where it is not known, shape (S,).
        middle: In place of the median, such as ``np.nanmean``.
    """
    near = np.append(values, np.nan)[_near()]
    near[np.isnan(near).all(axis=1)] = np.inf
    return np.asarray(middle(near, axis=1))


def _excess_spread(npho: Array) -> Array:
    """Return the spread of each sensor about the mean of its neighbours, in units of photon noise, shape (S,).

    0 where no neighbour reads.
    """
    matrix = within_hops(1).matrix().astype(np.float32)
    readings = np.ascontiguousarray(npho.T)
    known = np.abs(readings) <= UNKNOWN_ABOVE
    filled = np.where(known, readings, np.float32(0))
    count = matrix @ known.astype(np.float32)
    neighbours = (matrix @ filled) / np.maximum(count, 1)
    pull = (filled - neighbours) / np.sqrt(np.maximum(neighbours, 0) + np.float32(_ELECTRONIC_NOISE))
    ordered, last = np.sort(np.where(known & (count > 0), pull, np.float32(0)), axis=1), npho.shape[0] - 1
    return np.asarray((ordered[:, round(0.84 * last)] - ordered[:, round(0.16 * last)]) / 2)


def _noisy(npho: Array) -> Array:
    """Return which sensors scatter far more than the rest of their face, bool, shape (S,).

    One noisy sensor moves the mean that those around it are compared with, at a corner by half of its noise: the worst
    of each neighbourhood are taken out, and the others are compared again.
    """
    noisy = np.zeros(npho.shape[1], bool)
    while (found := _noisiest(_excess_spread(np.where(noisy, np.float32(np.nan), npho)))).any():
        noisy |= found
    return noisy


def _noisiest(spread: Array) -> Array:
    noisy = np.zeros(len(spread), bool)
    for face in faces.FACES:
        ids = faces.sensors(face)
        # those taken out count as 0, which draws it to the sound ones: of 2000 noisy sensors 1698 are found, else 122
        usual = np.median(spread[ids])
        noisy[ids] = spread[ids] > _NOISY_FACTOR * max(float(usual), 1.0)
    table = within_hops(1)
    for sensor in np.flatnonzero(noisy):
        noisy[sensor] = spread[sensor] >= spread[table.of(int(sensor))].max()
    return noisy


@cache
def _near() -> Array:
    """Return the sensors within two steps of each, filled up with S, shape (S, most neighbours)."""
    table = within_hops(2)
    row = np.arange(NUM_SENSORS).repeat(table.counts)
    near = np.full((NUM_SENSORS, int(table.counts.max())), NUM_SENSORS)
    near[row, np.arange(len(table.members)) - table.starts[row]] = table.members
    return near


@cache
def _inner_neighbours() -> Any:
    """Return the neighbour table of the inner face as a sparse matrix."""
    ids = faces.sensors("inner")
    return within_hops(1).matrix()[ids][:, ids]


def neighbour_likeness(kept: EventReservoir) -> float:
    """Return how well each sensor of the inner face is foretold by those around it: a correlation, mean over events.

    Light falls off smoothly, so this is near 1 when the order of sensors is that of the geometry, and near 0 otherwise.
    NaN without light.
    """
    npho = kept.npho[:: max(1, len(kept.npho) // 64)]
    ids, matrix = faces.sensors("inner"), _inner_neighbours()
    found = []
    for event in npho:
        known = np.abs(event[ids]) <= UNKNOWN_ABOVE
        level = np.where(known, np.log1p(np.maximum(np.where(known, event[ids], 0), 0)), 0.0)
        near = (matrix @ level) / np.maximum(matrix @ known.astype(float), 1)
        if known.sum() > 2 and level[known].std() > 0 and near[known].std() > 0:
            found.append(float(np.corrcoef(level[known], near[known])[0, 1]))
    return float(np.mean(found)) if found else float("nan")

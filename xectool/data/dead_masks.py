"""Which sensors of which events count as dead: the same in every event, flagged event by event, or without a reading.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch
from xectool.data.dead_channel_maps import (
    BRANCH_PREFIX,
    DATABASE_SCHEMES,
    DeadChannelQuery,
    as_flags,
    find_dead_channels,
    without_reading,
)
from xectool.data.events import EventSource
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import UsageError

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EventPlaces:
    """Events as the files hold them.

    Attributes:
        npho: Photons, shape (B, S).
        file_index: Index of the file of each event, shape (B,).
        entry: Entry in that file, shape (B,).
    """

    npho: npt.NDArray[np.floating]
    file_index: npt.NDArray[np.integer]
    entry: npt.NDArray[np.integer]

    @classmethod
    def of(cls, batch: EventBatch) -> EventPlaces:
        """Return those of a batch."""
        return cls(batch.npho.cpu().numpy(), batch.file_index, batch.entry)


class DeadSensors(ABC):
    """Abstract: dead sensors of events.

    Attributes:
        origin: Where they are known from, for a reader.
    """

    origin: str

    @abstractmethod
    def mask(self, events: EventPlaces) -> BoolArray:
        """Return which sensors are dead, shape (B, S)."""


class UnreadSensors(DeadSensors):
    """Sensors without a photon number: NaN, infinite, or 1e10 as the files write it."""

    origin = "sensors without a reading"

    def mask(self, events: EventPlaces) -> BoolArray:
        """Return which sensors have no reading, shape (B, S)."""
        return without_reading(events.npho)


class ListedSensors(DeadSensors):
    """The same sensors in every event.

    Args:
        mask: True at the dead ones, shape (S,).
        origin: Where they are known from.
    """

    def __init__(self, mask: BoolArray, origin: str) -> None:
        self._mask, self.origin = mask, origin

    def mask(self, events: EventPlaces) -> BoolArray:
        """Return the listed sensors, shape (B, S)."""
        return np.broadcast_to(self._mask, events.npho.shape)


class FlaggedSensors(DeadSensors):
    """Sensors that a branch flags in each event: files of several runs have several patterns.

    Args:
        source: The files.
        branch: One flag a sensor: 0 is alive, 1 is dead.

    Raises:
        DataFileError: A file has no such branch.
    """

    def __init__(self, source: EventSource, branch: str) -> None:
        self._source, self._branch = source, branch
        self.origin = f"{BRANCH_PREFIX}{branch}"
        for index in range(len(source.files)):
            source.event_file(index).column(branch)

    def mask(self, events: EventPlaces) -> BoolArray:
        """Return the flagged sensors, shape (B, S); neighbouring entries of a file are read together.

        Raises:
            DataFileError: The branch holds something else than flags.
        """
        found = np.zeros(events.npho.shape, bool)
        for index in np.unique(events.file_index):
            rows = np.flatnonzero(events.file_index == index)
            entries = events.entry[rows]
            first, last = int(entries.min()), int(entries.max()) + 1
            flags = np.empty((last - first, NUM_SENSORS), np.float32)
            self._source.event_file(int(index)).read_into(self._branch, first, last, flags)
            where = f"{self._source.files[index].name} branch {self._branch}"
            found[rows] = as_flags(flags[entries - first], where, entries)
        return found


def open_dead_sensors(origin: str | None, run_number: int | None, source: EventSource) -> DeadSensors:
    """Return the dead sensors of the events of ``source``.

    Args:
        origin: None for the sensors without a reading, event by event; ``branch:NAME`` for flags in the files; ``data``
            for the sensors without a reading in any event; a database url; otherwise the path of a text file.
        run_number: Run that a database is asked for.
        source: The events.

    Raises:
        UsageError: A run is given to an origin that does not ask for one, or is missing where one does.
        XecError: The origin cannot be read.
    """
    if run_number is not None and not (origin or "").startswith(DATABASE_SCHEMES):
        raise UsageError(
            f"run {run_number} has no effect: only a database is asked for a run",
            where="--run",
            fix=f"--dead mysql://host/database --run {run_number}, or leave out --run",
        )
    if origin is None:
        return UnreadSensors()
    if origin.startswith(BRANCH_PREFIX):
        return FlaggedSensors(source, origin.removeprefix(BRANCH_PREFIX))
    query = DeadChannelQuery(
        files=[file.name for file in source.files],
        tree=source.files[0].tree,
        npho_branch=source.branches.npho,
        run_number=run_number,
    )
    found = find_dead_channels(origin, query)
    return ListedSensors(found.mask, found.origin)

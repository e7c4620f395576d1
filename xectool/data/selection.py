"""Which entries of a file are served, decided before the plan so that every batch is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xectool.config.data import DataConfig, FiducialConfig
from xectool.config.inputs import place_of
from xectool.data.events import EventSource
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import event_named
from xectool.rootio.reader import EventFile

IntArray = npt.NDArray[np.int64]
MOST_COMPARED = 16  # events whose readings are compared with those of the one of the same numbers


def inside_fiducial(uvw: npt.NDArray[np.floating], cut: FiducialConfig) -> npt.NDArray[np.bool_]:
    """Say which conversion points lie inside the fiducial volume.

    |u| < u_max, |v| < v_max, w >= w_min and, where set, w <= w_max (the older system's rule; NaN fails).

    Args:
        uvw: True conversion points in cm, shape (n, 3).
        cut: The volume.
    """
    u, v, w = uvw[:, 0], uvw[:, 1], uvw[:, 2]
    inside = (np.abs(u) < cut.u_max) & (np.abs(v) < cut.v_max) & (w >= cut.w_min)
    if cut.w_max is not None:
        inside &= w <= cut.w_max
    return np.asarray(inside, dtype=np.bool_)


def fiducial_entries(file: EventFile, data: DataConfig) -> IntArray | None:
    """Return the entries of a file inside the fiducial volume, ascending; None if all are."""
    uvw = np.empty((file.num_entries, 3), np.float32)
    file.read_into(data.truth_branches["uvwFI"], 0, file.num_entries, uvw)
    inside = inside_fiducial(uvw, data.fiducial)
    return None if inside.all() else np.flatnonzero(inside).astype(np.int64)


def excluded_entries(selected: IntArray | None, num_entries: int, exclude: Sequence[int]) -> IntArray | None:
    """Return the selection without the entries in ``exclude``; None if all entries are served."""
    if not exclude:
        return selected
    entries = np.arange(num_entries, dtype=np.int64) if selected is None else selected
    return np.setdiff1d(entries, np.asarray(exclude, dtype=np.int64))


@dataclass(frozen=True)
class Overlap:
    """Events that two data sets share.

    Attributes:
        num_events: Count of events of the second that are also in the first.
        where: The first of them: file, or run and event number.
        num_repeated: Count of events of the first that stand in it before: with the same run and event number, and,
            by a sample of them, with the same readings. Files that count their events anew hold others.
    """

    num_events: int
    where: str = ""
    num_repeated: int = 0


def find_overlap(train: EventSource, val: EventSource) -> Overlap:
    """Return the validation events that are also training events.

    Two events are the same if they lie in the same tree of a file (links followed), or have the same run and event
    number. Events without a run number (-1) are compared by tree alone. Reads two integer branches a file.
    """
    train_files = {place_of(file.path, file.tree) for file in train.files}
    numbers = [train.run_event_numbers(index) for index in range(len(train.files))]
    known, count, where = _sorted_pairs(numbers), 0, ""
    for index, file in enumerate(val.files):
        if place_of(file.path, file.tree) in train_files:
            shared, first = file.num_selected, file.name
        else:
            pairs = val.run_event_numbers(index)
            rows = np.flatnonzero(_contains(known, pairs))
            shared, first = len(rows), f"{file.name} " + "".join(event_named(r, e) for r, e in pairs[rows[:1]])
        where = where or (first if shared else "")
        count += shared
    return Overlap(count, where, _num_repeated(train, numbers))


def _sorted_pairs(parts: Sequence[IntArray]) -> npt.NDArray[np.void]:
    """Return each pair of numbers once, ascending."""
    pairs = np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
    return np.unique(_as_records(pairs[pairs[:, 0] >= 0]))


def _num_repeated(source: EventSource, parts: Sequence[IntArray]) -> int:
    """Return how many events stand before, as far as a sample of those with the numbers of another tells."""
    sizes = [len(part) for part in parts]
    pairs = np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    order = order[pairs[order, 0] >= 0]
    again = np.flatnonzero((pairs[order[1:]] == pairs[order[:-1]]).all(axis=1))
    if not len(again):
        return 0
    sample = again[:: -(-len(again) // MOST_COMPARED)]
    places = [(_place(sizes, order[row]), _place(sizes, order[row + 1])) for row in sample]
    same = sum(np.array_equal(_readings(source, *one), _readings(source, *other)) for one, other in places)
    return -(-len(again) * same // len(sample))


def _place(sizes: Sequence[int], row: np.int64) -> tuple[int, int]:
    """Return file and place among its served entries of a row of all files."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    file = int(np.searchsorted(starts, row, side="right")) - 1
    return file, int(row - starts[file])


def _readings(source: EventSource, index: int, row: int) -> npt.NDArray[np.int32]:
    """Return the photons of one served event as their bits, so that equal NaNs are equal."""
    served = source.files[index]
    entry = row if served.selected is None else int(served.selected[row])
    values = np.empty((1, NUM_SENSORS), np.float32)
    source.event_file(index).read_into(source.branches.npho, entry, entry + 1, values)
    return values.view(np.int32)


def _contains(known: npt.NDArray[np.void], pairs: IntArray) -> npt.NDArray[np.bool_]:
    return np.isin(_as_records(pairs), known)


def _as_records(pairs: IntArray) -> npt.NDArray[np.void]:
    return np.ascontiguousarray(pairs).view([("run", np.int64), ("event", np.int64)]).reshape(-1)

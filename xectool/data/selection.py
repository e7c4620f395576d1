"""Which entries of a file are served, decided before the plan so that every batch is full."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xectool.config.data import DataConfig, FiducialConfig
from xectool.data.events import EventSource
from xectool.rootio.files import is_remote
from xectool.rootio.reader import EventFile

IntArray = npt.NDArray[np.int64]


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
        num_repeated: Count of events of the first that have the run and event number of another one of it.
    """

    num_events: int
    where: str = ""
    num_repeated: int = 0


def find_overlap(train: EventSource, val: EventSource) -> Overlap:
    """Return the validation events that are also training events.

    Two events are the same if they lie in the same file (links followed), or have the same run and event number. Events
    without a run number (-1) are compared by file alone. Reads two integer branches a file.
    """
    train_files = {_real_path(file.path) for file in train.files}
    known, num_repeated = _sorted_pairs([train.run_event_numbers(index) for index in range(len(train.files))])
    count, where = 0, ""
    for index, file in enumerate(val.files):
        if _real_path(file.path) in train_files:
            shared, first = file.num_selected, file.path
        else:
            pairs = val.run_event_numbers(index)
            rows = np.flatnonzero(_contains(known, pairs))
            shared, first = len(rows), f"{file.path} " + "".join(f"run {r} event {e}" for r, e in pairs[rows[:1]])
        where = where or (first if shared else "")
        count += shared
    return Overlap(count, where, num_repeated)


def _real_path(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _sorted_pairs(parts: Sequence[IntArray]) -> tuple[npt.NDArray[np.void], int]:
    """Return each pair of numbers once, ascending, and how often one came again."""
    pairs = np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
    numbered = _as_records(pairs[pairs[:, 0] >= 0])
    known = np.unique(numbered)
    return known, len(numbered) - len(known)


def _contains(known: npt.NDArray[np.void], pairs: IntArray) -> npt.NDArray[np.bool_]:
    return np.isin(_as_records(pairs), known)


def _as_records(pairs: IntArray) -> npt.NDArray[np.void]:
    return np.ascontiguousarray(pairs).view([("run", np.int64), ("event", np.int64)]).reshape(-1)

"""The events of a data set: its files, checked before reading, and how a run of entries is read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xectool.config.tasks import TASK_WIDTHS
from xectool.data.blocks import Piece, SourceFile
from xectool.data.window import WindowArrays
from xectool.detector.constants import DEAD_VALUE
from xectool.errors import DataFileError, in_shell
from xectool.findings import Finding
from xectool.rootio.reader import EventFile
from xectool.rootio.stages import OPEN, timed

# Open files a process keeps; parsing a tree's header again costs milliseconds.
KEPT_FILES = 64


@dataclass(frozen=True)
class SourceBranches:
    """Names of the branches that are read.

    Attributes:
        npho: Photons of the sensors.
        time: Times of the sensors.
        run: Run number; a file without it gives -1.
        event: Event number; a file without it gives the entry.
        truth: Branch of each task's truth; a file without it gives 1e10, "unknown".
    """

    npho: str = "npho"
    time: str = "relative_time"
    run: str = "run"
    event: str = "event"
    truth: Mapping[str, str] = field(default_factory=dict)


class EventCache(Protocol):
    """Abstract copy of events that is faster to read than the ROOT files."""

    def read(self, piece: Piece, window: WindowArrays) -> bool:
        """Fill all rows of a window with a run of events; False where they are not in the cache."""
        ...

    def settle(self, file_index: int, window: WindowArrays) -> None:
        """Give readings that come from a ROOT file the values they have in the cache."""
        ...

    def truth(self, file_index: int, task: str) -> npt.NDArray[np.float32] | None:
        """Return the truth of a task for the served entries of a file, None where it is not in the cache."""
        ...

    def run_event_numbers(self, file_index: int) -> npt.NDArray[np.int64] | None:
        """Return run and event number of the served entries of a file, None where they are not in the cache."""
        ...


class EventSource:
    """Reads entries of the files of a data set into tensors; safe to use from threads, can go to other processes.

    Args:
        files: The files, each with the entries that are served.
        branches: What is read.
        findings: What was noticed while the files were opened, e.g. empty ones.
        cache: Serves what it holds in place of the files.

    Attributes:
        kept_files: Files that stay open at once.
    """

    def __init__(
        self,
        files: tuple[SourceFile, ...],
        branches: SourceBranches,
        findings: tuple[Finding, ...] = (),
        cache: EventCache | None = None,
    ) -> None:
        self.files, self.branches, self.findings, self.cache = files, branches, findings, cache
        self.kept_files = KEPT_FILES
        self.widths = {task: TASK_WIDTHS[task] for task in branches.truth}
        self._open: OrderedDict[int, EventFile] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("files", "branches", "findings", "cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the cache and its lock are made anew

    @property
    def num_events(self) -> int:
        """Count of events that are served."""
        return sum(file.num_selected for file in self.files)

    def first(self, num_events: int) -> EventSource:
        """Return the source cut to its first ``num_events`` events, in file order; without cache, with empty files."""
        files, left = [], num_events
        for file in self.files:
            take = min(left, file.num_selected)
            left -= take
            if take < file.num_selected:
                chosen = np.arange(take, dtype=np.int64) if file.selected is None else file.selected[:take]
                file = replace(file, selected=chosen)
            files.append(file)
        return EventSource(tuple(files), self.branches, self.findings)

    def without(self, events: Collection[tuple[int, int]]) -> EventSource:
        """Return the source without some events, each (file index, entry); without cache, unless it serves them all."""
        if not events:
            return self
        files = list(self.files)
        for index in {index for index, _ in events}:
            selected = files[index].selected
            served = np.arange(files[index].num_entries, dtype=np.int64) if selected is None else selected
            gone = np.array([entry for at, entry in events if at == index], np.int64)
            files[index] = replace(files[index], selected=np.setdiff1d(served, gone))
        return EventSource(tuple(files), self.branches, self.findings)

    def event_file(self, file_index: int) -> EventFile:
        """Return the open file; the least recently used one is closed when too many are open.

        Raises:
            DataFileError: It has other entries than when the run began.
        """
        with self._lock:
            found = self._open.pop(file_index, None)
            if found is None:
                file = self.files[file_index]
                found = timed(OPEN, EventFile, file.path, file.tree)
                _require_same(found, file)
            self._open[file_index] = found
            while len(self._open) > self.kept_files:
                # Only forgotten, not closed: another thread may still read from it.
                self._open.popitem(last=False)
            return found

    def read_piece(self, piece: Piece, window: WindowArrays, row: int) -> None:
        """Read a run of events into the rows of a window from ``row`` on.

        Raises:
            DataFileError: The file is damaged; names branch and entries.
        """
        part = window.rows(row, row + piece.num_events)
        if self.cache is None:
            self.read_root(piece, part)
        elif not self.cache.read(piece, part):
            self.read_root(piece, part)
            self.cache.settle(piece.file_index, part)

    def read_root(self, piece: Piece, window: WindowArrays) -> None:
        """Read a run of events from its ROOT file into all rows of a window.

        Raises:
            DataFileError: The file is damaged; names branch and entries.
        """
        file = self.event_file(piece.file_index)
        _read_rows(file, self.branches.npho, piece, window.npho)
        _read_rows(file, self.branches.time, piece, window.time)
        for task, branch in self.branches.truth.items():
            if branch in file.branch_names:
                _read_rows(file, branch, piece, window.targets[task])
            else:
                window.targets[task][:] = DEAD_VALUE
        window.identity[:] = self._identity(file, piece)

    def truth(self, file_index: int, task: str) -> npt.NDArray[np.float32]:
        """Return the truth of a task for the served entries of a file, shape (events, D); 1e10 of a file without it."""
        served = self.files[file_index]
        cached = None if self.cache is None else self.cache.truth(file_index, task)
        if cached is not None:
            return cached
        file = self.event_file(file_index)
        values = np.full((served.num_entries, self.widths[task]), DEAD_VALUE, np.float32)
        if self.branches.truth[task] in file.branch_names:
            file.read_into(self.branches.truth[task], 0, served.num_entries, values)
        return values if served.selected is None else values[served.selected]

    def run_event_numbers(self, file_index: int) -> npt.NDArray[np.int64]:
        """Return run and event number of the served entries of a file, shape (events, 2)."""
        served = self.files[file_index]
        cached = None if self.cache is None else self.cache.run_event_numbers(file_index)
        if cached is not None:
            return cached
        whole = Piece(file_index, 0, served.num_entries, served.selected, 0, 0)
        return self._identity(self.event_file(file_index), whole)[:, 2:]

    def _identity(self, file: EventFile, piece: Piece) -> npt.NDArray[np.int64]:
        entries = np.arange(piece.entry_start, piece.entry_stop) if piece.selected is None else piece.selected
        identity = np.empty((len(entries), 4), np.int64)
        identity[:, 0], identity[:, 1] = piece.file_index, entries
        for column, branch, default in ((2, self.branches.run, -1), (3, self.branches.event, entries)):
            if branch in file.branch_names:
                values = np.empty(piece.entry_stop - piece.entry_start, np.int64)
                file.read_into(branch, piece.entry_start, piece.entry_stop, values)
                identity[:, column] = values if piece.selected is None else values[entries - piece.entry_start]
            else:
                identity[:, column] = default
        return identity


def _require_same(found: EventFile, file: SourceFile) -> None:
    if found.num_entries != file.num_entries:
        problem = (
            f"'{file.path}' was written over or replaced while it was in use: it has {found.num_entries} entries, and "
            f"had {file.num_entries} when it was first opened"
        )
        line = f"xectool check-data {in_shell(found.where)}   # is it the file that is meant?"
        raise DataFileError(problem, where=found.where, fix=line, code="XT-DATA-CHANGED")


def _read_rows(file: EventFile, branch: str, piece: Piece, out: npt.NDArray[np.float32]) -> None:
    if piece.selected is None:
        file.read_into(branch, piece.entry_start, piece.entry_stop, out)
        return
    whole = np.empty((piece.entry_stop - piece.entry_start, out.shape[1]), np.float32)
    file.read_into(branch, piece.entry_start, piece.entry_stop, whole)
    np.take(whole, piece.selected - piece.entry_start, axis=0, out=out)

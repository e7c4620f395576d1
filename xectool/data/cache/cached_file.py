"""One finished cache file, mapped into memory.

Mapped pages count as memory of the process, for which batch systems end it, and to give them back and fault them in
again costs more than a call that copies a row (docs/experiments.md). So readings of a large data set are not touched
through the map but copied from the page cache by ``preadv``; either way all processes of a machine share one copy.

Axes: n events asked for, S sensors (4760), D numbers of all tasks.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.data.cache.codec import (
    BLOCK_ROWS,
    CHANNELS,
    NPHO,
    TIME,
    Codec,
    Compact,
    Lossless,
    block_scratch,
    decode_block,
    fill_in,
)
from xectool.data.cache.layout import (
    CHECKSUMS,
    HEADER_BYTES,
    NUMBERS,
    TRUTH,
    CacheLayout,
    DamagedCacheError,
    row_checksums,
    unpack_header,
)
from xectool.data.cache.writing import tables_digest
from xectool.data.window import Array, WindowArrays
from xectool.detector.constants import NUM_SENSORS

IntArray = npt.NDArray[np.int64]

_NO_EXCEPTIONS: Final = np.empty((0, 3), np.int64)


class CachedFile:
    """Events of one source file; safe to read from threads.

    A shared lock on the file says to other processes that it is in use.

    Args:
        path: The cache file.
        maps_readings: Whether readings are touched through the map.

    Raises:
        FileNotFoundError: It is not there.
        DamagedCacheError: It is not whole.

    Attributes:
        verified: Which events were found sound by this process, shape (N,).
        tasks: Columns of the truth of each task.
        inode: Number of the file, another one for a file that was built again.
        thrown_away: Whether some of its events were found damaged: it is to be built again.
    """

    def __init__(self, path: Path, maps_readings: bool = True) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._facts = unpack_header(os.pread(descriptor, HEADER_BYTES, 0))
            self._codec: Codec = Lossless() if self._facts["codec"] == Lossless.name else Compact()
            widths = self._facts["tasks"]
            self._layout = CacheLayout.of(self._facts["num_events"], self._codec.dtype, sum(widths.values()))
            status = os.fstat(descriptor)
            self.inode = status.st_ino
            self._check_size(status.st_size)
            self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):  # being thrown away by another process
                raise FileNotFoundError(path) from error
            raise
        self._descriptor, self._maps_readings = descriptor, maps_readings
        self._arrays = self._layout.arrays(self._map)
        self._exceptions = self._tables()
        self._exception_rows = {name: table[:, 0].copy() for name, table in self._exceptions.items()}
        self._rest_is_sound: bool | None = None
        self.verified = np.zeros(self.num_events, np.bool_)
        self.thrown_away = False
        edges = np.cumsum([0, *widths.values()])
        self.tasks = {task: slice(*edges[at : at + 2]) for at, task in enumerate(widths)}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    @property
    def num_events(self) -> int:
        """Count of events."""
        return self._layout.num_events

    @property
    def source(self) -> dict[str, Any]:
        """What the events are a copy of."""
        found: dict[str, Any] = self._facts["source"]
        return found

    def sound(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """Return which of the events, shape (n,), are what was written; each is looked at once in a process."""
        for row in rows[~self.verified[rows]].tolist():
            self.verified[row] = self._checksums(row) == tuple(self._arrays[CHECKSUMS][row].tolist())
        return np.asarray(self.verified[rows])

    def _checksums(self, row: int) -> tuple[int, int, int] | None:
        parts = {name: self._arrays[name][row : row + 1] for name in (NUMBERS, TRUTH)}
        try:
            for name in CHANNELS:
                parts[name] = np.empty((1, NUM_SENSORS), self._codec.dtype)
                self._fetch(name, np.array([row]), parts[name])
        except EOFError:
            return None
        return row_checksums(parts, 0)

    def read(self, rows: IntArray, out: WindowArrays, places: IntArray | None = None) -> None:
        """Fill ``out`` with the events at ``rows``, shape (n,), but for file index and entry.

        Args:
            rows: Events of the file.
            out: Where they go.
            places: Rows of ``out`` they go to, shape (n,); None: all of ``out``, in order.

        Raises:
            EOFError: The file was cut short after it was opened.
        """
        for name, target in ((NPHO, out.npho), (TIME, out.time)):
            self._decode(name, rows, target, places)
            if len(self._exceptions[name]):
                exceptions = self._exceptions_of(name, rows)
                exceptions[:, 0] = exceptions[:, 0] if places is None else places[exceptions[:, 0]]
                fill_in(target, exceptions)
        into = slice(None) if places is None else places
        truth = self._arrays[TRUTH][rows]
        for task, target in out.targets.items():
            target[into] = truth[:, self.tasks[task]]
        out.identity[into, 2:] = self._arrays[NUMBERS][rows]

    def numbers_are_sound(self) -> bool:
        """Return whether truth, run and event numbers of all events are what was written."""
        if self._rest_is_sound is None:
            found = [tables_digest([self._arrays[name]]) for name in (TRUTH, NUMBERS)]
            self._rest_is_sound = found == self._facts["columns"]
        return self._rest_is_sound

    def truth(self, task: str) -> npt.NDArray[np.float32]:
        """Return the truth of a task for all events, shape (N, width of the task)."""
        return np.array(self._arrays[TRUTH][:, self.tasks[task]])

    def numbers(self) -> IntArray:
        """Return run and event number of all events, shape (N, 2)."""
        return np.array(self._arrays[NUMBERS])

    def _decode(self, name: str, rows: IntArray, out: npt.NDArray[np.float32], places: IntArray | None) -> None:
        if isinstance(self._codec, Lossless):
            self._fetch(name, rows, out, places)
            return
        codes = np.empty((BLOCK_ROWS, NUM_SENSORS), self._codec.dtype)
        scratch, decoded = block_scratch(NUM_SENSORS), np.empty(codes.shape, np.float32)
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            self._fetch(name, block, codes[: len(block)])
            target = decoded[: len(block)] if places is not None else out[start : start + len(block)]
            decode_block(name, codes[: len(block)], scratch, target)
            if places is not None:
                out[places[start : start + len(block)]] = target

    def _fetch(self, name: str, rows: IntArray, out: Array, places: IntArray | None = None) -> None:
        """Copy stored rows into all rows of ``out``, or into those at ``places``."""
        if self._maps_readings and places is None:
            # numpy's "raise" mode would copy everything once more to be able to undo it
            self._arrays[name].take(rows, axis=0, out=out, mode="clip")
            return
        into = range(len(rows)) if places is None else places.tolist()
        if self._maps_readings:
            for row, place in zip(rows.tolist(), into, strict=True):
                out[place] = self._arrays[name][row]
            return
        section = self._layout.sections[name]
        size, view = section.row_bytes, out.data.cast("B")
        for row, place in zip(rows.tolist(), into, strict=True):
            target = view[place * size : (place + 1) * size]
            if os.preadv(self._descriptor, [target], section.offset + row * size) != size:
                raise EOFError("the cache file was cut short")

    def _exceptions_of(self, name: str, rows: IntArray) -> IntArray:
        """Return the exceptions of the rows with their places in ``rows`` instead, shape (m, 3)."""
        table = self._exceptions[name]
        first, last = np.searchsorted(self._exception_rows[name], (rows, rows + 1))
        counts = last - first
        place = np.repeat(np.arange(len(rows)), counts)
        inside = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
        found: IntArray = table[first[place] + inside]
        found[:, 0] = place
        return found

    def _tables(self) -> dict[str, IntArray]:
        tables, offset = {}, self._layout.end
        for name, count in zip(CHANNELS, self._facts["exceptions"], strict=True):
            tables[name] = np.array(np.ndarray((count, 3), np.int64, self._map, offset)) if count else _NO_EXCEPTIONS
            offset += 24 * count
        found = tables_digest([self._arrays[CHECKSUMS], *tables.values()])
        if found != self._facts["tables"]:
            raise DamagedCacheError("its tables are not what was written")
        return tables

    def _check_size(self, size: int) -> None:
        expected = self._layout.end + 24 * sum(self._facts["exceptions"])
        if size != expected:
            raise DamagedCacheError(f"it has {size} bytes instead of {expected}")

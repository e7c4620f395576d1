"""Streams a file in blocks: threads read the next while the last is looked at, into buffers used again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.checks.facts import Trouble
from xectool.config.data import DataConfig
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import DataFileError
from xectool.rootio.reader import EventFile

Array = npt.NDArray[Any]

BLOCK_EVENTS: Final = 1024
# A part of a block that the sums go over at once, so that it stays in the processor's cache.
PART_EVENTS: Final = 64
SCALAR_ENTRIES: Final = 1 << 17


@dataclass(frozen=True)
class SensorBlock:
    """Raw readings of entries ``[start, start + n)``, shapes (n, S); valid until the next block is asked for."""

    start: int
    npho: Array
    time: Array

    def parts(self) -> Iterator[slice]:
        """Yield the rows in parts that stay in cache."""
        for low in range(0, len(self.npho), PART_EVENTS):
            yield slice(low, min(low + PART_EVENTS, len(self.npho)))


def block_edges(starts: Sequence[int], num_entries: int) -> list[tuple[int, int]]:
    """Return runs of whole clusters of at most `BLOCK_EVENTS`; larger clusters are split."""
    edges = [0]
    for low, high in itertools.pairwise([*starts, num_entries]):
        if high - edges[-1] > BLOCK_EVENTS and low > edges[-1]:
            edges.append(low)
        while high - edges[-1] > BLOCK_EVENTS:
            edges.append(edges[-1] + BLOCK_EVENTS)
    edges = [*edges, num_entries] if num_entries > edges[-1] else edges
    return list(itertools.pairwise(edges))


def spread_out(blocks: list[tuple[int, int]], max_events: int | None) -> list[tuple[int, int]]:
    """Return blocks spread evenly over the file, together at most ``max_events`` long; all of them without a limit."""
    total = sum(stop - start for start, stop in blocks)
    if max_events is None or total <= max_events:
        return blocks
    count = min(len(blocks), max(1, -(-len(blocks) * max_events // total)))
    chosen = sorted({int(place) for place in np.linspace(0, len(blocks) - 1, count)})
    kept, left = [], max_events
    for index in chosen:
        start, stop = blocks[index]
        stop = min(stop, start + left)
        left -= stop - start
        kept += [(start, stop)] if stop > start else []
    return kept


class SensorStream:
    """Reads blocks of both sensor branches of a file.

    Args:
        file: The file.
        data: Names of the branches.
        failed: Told of every block that cannot be read; the stream goes on with the next.
    """

    def __init__(self, file: EventFile, data: DataConfig, failed: Callable[[Trouble], None]) -> None:
        self._file, self._data, self._failed = file, data, failed
        self._buffers = [np.empty((2, BLOCK_EVENTS, NUM_SENSORS), np.float32) for _ in range(2)]

    def blocks(self, edges: Sequence[tuple[int, int]]) -> Iterator[SensorBlock]:
        """Yield the blocks in order; one that is damaged is left out."""
        with ThreadPoolExecutor(2, "check-data-reader") as readers:
            waiting: _Reading | None = None
            for turn, (start, stop) in enumerate(edges):
                following = self._begin(readers, start, stop, self._buffers[turn % 2])
                if waiting is not None and self._ended(waiting):
                    yield waiting.block
                waiting = following
            if waiting is not None and self._ended(waiting):
                yield waiting.block

    def _begin(self, readers: ThreadPoolExecutor, start: int, stop: int, buffer: Array) -> _Reading:
        """Let one thread read the photons of a block, another its times: they are of one size."""
        block = SensorBlock(start, buffer[0, : stop - start], buffer[1, : stop - start])
        branches = (self._data.npho_branch, block.npho), (self._data.time_branch, block.time)
        return _Reading(block, [readers.submit(self._fill, branch, start, stop, out) for branch, out in branches])

    def _ended(self, reading: _Reading) -> bool:
        """Wait for a block and return whether it is whole; tell what is wrong with it."""
        troubles = [trouble for future in reading.branches if (trouble := future.result()) is not None]
        for trouble in troubles:
            self._failed(trouble)
        return not troubles

    def _fill(self, branch: str, start: int, stop: int, out: Array) -> Trouble | None:
        try:
            self._file.read_into(branch, start, stop, out)
        except DataFileError as error:
            return read_trouble(error)
        return None


@dataclass(frozen=True)
class _Reading:
    """A block that is being filled, and what fills its branches."""

    block: SensorBlock
    branches: list[Future[Trouble | None]]


def read_trouble(error: DataFileError) -> Trouble:
    """Return the trouble of entries that cannot be read, or that have another width than the rest."""
    return Trouble.of("DAT-05" if error.code == "XT-DATA-WIDTH" else "DAT-02", error)


def read_small(
    file: EventFile, branch: str, width: int, dtype: npt.DTypeLike, failed: Callable[[Trouble], None]
) -> Iterator[tuple[int, Array]]:
    """Yield a branch of a few numbers an event in long pieces: first entry, and values of shape (n, width)."""
    for start, (values,) in read_together(file, ((branch, width),), dtype, failed):
        yield start, values


def read_together(
    file: EventFile, wanted: Sequence[tuple[str, int]], dtype: npt.DTypeLike, failed: Callable[[Trouble], None]
) -> Iterator[tuple[int, list[Array]]]:
    """Yield several branches in the same pieces, each by name and width; a piece that one of them lacks is left out."""
    for start in range(0, file.num_entries, SCALAR_ENTRIES):
        stop = min(start + SCALAR_ENTRIES, file.num_entries)
        found = [np.empty((stop - start, width), dtype) for _, width in wanted]
        try:
            _fill_all(file, wanted, start, found)
        except DataFileError as error:
            failed(read_trouble(error))
            continue
        yield start, found


@np.errstate(invalid="ignore")  # a float that no integer holds; its number is wrong in any case
def _fill_all(file: EventFile, wanted: Sequence[tuple[str, int]], start: int, found: list[Array]) -> None:
    for (branch, _), values in zip(wanted, found, strict=True):
        file.read_into(branch, start, start + len(values), values)

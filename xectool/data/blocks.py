"""What the plan is made of: files, blocks of their events, and the pieces that are read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import numpy.typing as npt

from xectool.config.inputs import input_name

IntArray = npt.NDArray[np.int64]

# A cluster may make a window so many times larger than it should be; one that is larger still is split.
MAX_STRETCH = 2


@dataclass(frozen=True)
class SourceFile:
    """One file of a data set, as the plan needs it.

    Attributes:
        path: Path or url.
        tree: Name of the tree.
        num_entries: Entries in the tree.
        cluster_starts: Entries at which reading starts without waste, ascending, the first is 0; empty: unknown.
        selected: Entries that are served, ascending; None for all.
    """

    path: str
    tree: str
    num_entries: int
    cluster_starts: tuple[int, ...] = ()
    selected: IntArray | None = None

    @property
    def name(self) -> str:
        """The file and its tree, as an input is named."""
        return input_name(self.path, self.tree)

    @property
    def num_selected(self) -> int:
        """Count of entries that are served."""
        return self.num_entries if self.selected is None else len(self.selected)


@dataclass(frozen=True)
class Piece:
    """A run of events of one file inside a window.

    Attributes:
        file_index: Index into the plan's files.
        entry_start: First entry to read.
        entry_stop: One past the last entry to read.
        selected: Entries to keep, ascending; None for all in the range.
        shard: Shard of the window.
        window: Index of the window in its shard.
    """

    file_index: int
    entry_start: int
    entry_stop: int
    selected: IntArray | None
    shard: int
    window: int

    @property
    def num_events(self) -> int:
        """Count of events that are served."""
        return self.entry_stop - self.entry_start if self.selected is None else len(self.selected)


@dataclass(frozen=True)
class Blocks:
    """Runs of events that stay together: arrays with one number a block.

    Attributes:
        file_index: Index of the file.
        first: First event, counted among the served events of the file.
        num_events: Count of events.
    """

    file_index: IntArray
    first: IntArray = field(repr=False)
    num_events: IntArray = field(repr=False)


def cut_blocks(files: Sequence[SourceFile], window_events: int) -> Blocks:
    """Return runs of whole clusters of up to a quarter of a window; larger clusters stand alone.

    Only clusters of more than `MAX_STRETCH` windows are split: each part would be decompressed with all before it.
    """
    file_index: list[int] = []
    edges: list[tuple[int, int]] = []
    for index, file in enumerate(files):
        found = _block_edges(file, window_events)
        if file.selected is not None:
            found = [int(edge) for edge in np.searchsorted(file.selected, found)]
        pairs = [(low, high) for low, high in itertools.pairwise(found) if high > low]
        edges += pairs
        file_index += [index] * len(pairs)
    table = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    return Blocks(np.asarray(file_index, dtype=np.int64), table[:, 0], table[:, 1] - table[:, 0])


def largest_cluster(files: Sequence[SourceFile]) -> int:
    """Return the events of the largest cluster of all files; 0 where no clusters are known."""
    ends = [(*file.cluster_starts, file.num_entries) for file in files if file.cluster_starts]
    return max((high - low for edges in ends for low, high in itertools.pairwise(edges)), default=0)


def _block_edges(file: SourceFile, window_events: int) -> list[int]:
    target = max(1, window_events // 4)
    starts = sorted({0, *file.cluster_starts}) if file.cluster_starts else range(0, file.num_entries, target)
    ends = [*starts, file.num_entries]
    edges = [0]
    for low, high in itertools.pairwise(ends):
        if high - edges[-1] > target and low > edges[-1]:
            edges.append(low)
        if high - low > MAX_STRETCH * window_events:
            parts = ceil((high - low) / window_events)
            edges += [low + (high - low) * part // parts for part in range(1, parts)]
    if file.num_entries > edges[-1]:
        edges.append(file.num_entries)
    return edges

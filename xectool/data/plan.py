"""Which event is served when: a pure function of files, seed, epoch, step and rank; nothing is read.

The order of an epoch:

1. Each file is cut into *blocks*: runs of whole storage clusters; a cluster is split only if it is larger than a
   window. The blocks of all files are permuted by (seed, epoch); their events in a row are the virtual sequence.
2. The virtual sequence of N events is cut into L contiguous *shards* of equal size (the first N mod L have one more).
   L is ``num_shards``, or less where a window of ``chunksize / L`` events would be shorter than half a cluster.
3. Each shard is cut into *windows* of whole blocks, as near as can be to ``chunksize / num_shards`` events. Events are
   permuted within a window by (seed, epoch, shard, window). The first window of shard l is (l + 1) / L as long,
   so that the windows of different shards do not all end at once.
4. Position p of the epoch is event p // L of shard p mod L. Step s covers the positions [s G, (s + 1) G) with
   G = batch_size x world_size, and rank r takes those with p mod world_size = r.

So the order does not depend on the number of ranks or workers: two ranks at batch size B see in each step what one rank
at 2 B sees. Memory is O(blocks), and O(events) only for files with a selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from xectool.data.blocks import MAX_STRETCH, Piece, SourceFile, cut_blocks, largest_cluster
from xectool.data.order import EpochOrder, WindowKey, cut_shard
from xectool.errors import DataUnusable, counted

__all__ = ["DataPlan", "Piece", "SourceFile", "WindowKey"]

IntArray = npt.NDArray[np.int64]


@dataclass(eq=False)
class DataPlan:
    """The order in which the events of some files are served, see the module's text.

    Args:
        files: The files; those without events are stepped over.
        batch_size: Events of one rank in one step.
        seed: Seed of all permutations.
        shuffle: False serves the files in order.
        num_shards: Interleaved streams at most. One if the events fit into ``chunksize``, or without shuffling.
        chunksize: Events that are shuffled together, over all shards.
        world_size: Number of ranks.
        drop_last: Leave out the short last step.

    Raises:
        DataUnusable: No event is left, or ``drop_last`` leaves no step.
    """

    files: Sequence[SourceFile]
    batch_size: int
    seed: int
    shuffle: bool = True
    num_shards: int = 8
    chunksize: int = 8192
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        self.files = tuple(self.files)
        self.num_events = sum(file.num_selected for file in self.files)
        self.global_batch_size = self.batch_size * self.world_size
        fits = self.shuffle and self.num_events <= self.chunksize
        self.num_shards = 1 if fits else self._shards_of_whole_clusters()
        self.window_events = max(1, self.chunksize // self.num_shards)
        self.num_shards = min(self.num_shards, max(self.num_events, 1)) if self.shuffle else 1
        self.num_steps = self._count_steps()
        self._blocks = cut_blocks(self.files, self.window_events)
        self._order: EpochOrder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_order": None}

    @property
    def num_blocks(self) -> int:
        """Count of blocks."""
        return len(self._blocks.first)

    @property
    def max_window_events(self) -> int:
        """Upper bound on the events of a window: the aim plus half of the largest block, or that block."""
        largest = int(self._blocks.num_events.max())
        return min(max(self.window_events + largest // 2, largest), self.num_events)

    def shards_of_rank(self, rank: int) -> list[int]:
        """Return the shards from which a rank takes events; it reads no other."""
        step = np.gcd(self.num_shards, self.world_size)
        return [shard for shard in range(self.num_shards) if shard % step == rank % step]

    def events_of_rank(self, rank: int, start_step: int = 0) -> int:
        """Return how many events a rank is served in an epoch from a step on."""
        return len(range(start_step * self.global_batch_size + rank, self._last_position, self.world_size))

    def batch_positions(self, step: int, rank: int) -> IntArray:
        """Return the positions in the epoch that a rank is served in a step, ascending."""
        places = self._batch_range(step, rank)
        return np.arange(places.start, places.stop, places.step, dtype=np.int64)

    def batch_events_of_rank(self, step: int, rank: int) -> int:
        """Return how many events a rank is served in a step."""
        return len(self._batch_range(step, rank))

    def _batch_range(self, step: int, rank: int) -> range:
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step {step} is outside of the {counted(self.num_steps, 'step')} of an epoch")
        first = step * self.global_batch_size
        last = min(first + self.global_batch_size, self._last_position)
        return range(first + rank, last, self.world_size)

    def batch_layout(self, epoch: int, step: int, rank: int) -> list[tuple[WindowKey, IntArray, IntArray]]:
        """Return where the events of a batch lie.

        Returns:
            For each window, in the order in which windows are first needed: the window, the rows of the batch that
            come from it, and their rows in the window.
        """
        return self.order(epoch).layout(self.batch_positions(step, rank))

    def batch_events(self, epoch: int, step: int, rank: int) -> tuple[npt.NDArray[np.int32], IntArray]:
        """Return the identity of a batch: file indices, shape (n,), and entries, shape (n,); n may be 0."""
        file_index, entry = self.batch_places(epoch, step, rank)
        for index in np.unique(file_index):
            selected = self.files[index].selected
            if selected is not None:
                rows = file_index == index
                entry[rows] = selected[entry[rows]]
        return file_index, entry

    def batch_places(self, epoch: int, step: int, rank: int) -> tuple[npt.NDArray[np.int32], IntArray]:
        """Return file indices of a batch, shape (n,), and places among the served events of each file, shape (n,)."""
        order = self.order(epoch)
        virtual = order.virtual_index(self.batch_positions(step, rank))
        run, offset = order.locate(virtual)
        block = order.blocks[run]
        return self._blocks.file_index[block].astype(np.int32), self._blocks.first[block] + offset

    def served_rows(self, epoch: int, key: WindowKey, rank: int) -> tuple[IntArray, IntArray]:
        """Return the rows of a window that a rank is served in an epoch, ascending, and the step that serves each."""
        order = self.order(epoch)
        start, stop = order.bounds(key)
        positions = np.empty(stop - start, np.int64)
        positions[order.permutation(key)] = key.shard + self.num_shards * np.arange(start, stop)
        rows = np.flatnonzero((positions % self.world_size == rank) & (positions < self._last_position))
        return rows, positions[rows] // self.global_batch_size

    def windows(self, epoch: int, rank: int, start_step: int = 0) -> list[WindowKey]:
        """Return the windows a rank needs from a step on, in the order in which they are first needed."""
        order = self.order(epoch)
        found: list[tuple[int, WindowKey]] = []
        for shard in self.shards_of_rank(rank):
            for window in range(order.num_windows(shard)):
                position = self._first_needed(order, WindowKey(shard, window), rank, start_step)
                if position is not None:
                    found.append((position, WindowKey(shard, window)))
        return [key for _, key in sorted(found)]

    def is_used_up(self, epoch: int, key: WindowKey, rank: int, next_step: int) -> bool:
        """Say whether a rank takes nothing more from a window from ``next_step`` on."""
        return self._first_needed(self.order(epoch), key, rank, next_step) is None

    def pieces(self, epoch: int, key: WindowKey) -> list[Piece]:
        """Return the runs of events of a window, in the order of its rows."""
        order = self.order(epoch)
        pieces: list[Piece] = []
        for run, low, high in order.runs(key):
            block = int(order.blocks[run])
            file_index, first = int(self._blocks.file_index[block]), int(self._blocks.first[block])
            selected = self.files[file_index].selected
            start, stop = first + low, first + high
            if selected is not None:
                chosen = selected[start:stop]
                start, stop = int(chosen[0]), int(chosen[-1]) + 1
                selected = None if stop - start == len(chosen) else chosen
            pieces.append(Piece(file_index, start, stop, selected, key.shard, key.window))
        return pieces

    def blocks(self, epoch: int, rank: int) -> list[Piece]:
        """Return the runs of entries a rank reads in an epoch, in the order of reading."""
        return [piece for key in self.windows(epoch, rank) for piece in self.pieces(epoch, key)]

    def order(self, epoch: int) -> EpochOrder:
        """Return the permutation of an epoch; the last one asked for is kept."""
        order = self._order
        if order is None or order.epoch != epoch:
            order = EpochOrder(self.seed, epoch, self._blocks.num_events, self.num_shards, self.shuffle)
            order.windows = [cut_shard(order, shard, self.window_events) for shard in range(self.num_shards)]
            self._order = order
        return order

    @property
    def _last_position(self) -> int:
        return self.num_steps * self.global_batch_size if self.drop_last else self.num_events

    def _shards_of_whole_clusters(self) -> int:
        """Return the shards asked for, halved until a cluster need not be split among windows: it is read once."""
        shards, largest = self.num_shards, largest_cluster(self.files)
        while shards > 1 and largest * shards > MAX_STRETCH * self.chunksize:
            shards = (shards + 1) // 2
        return shards

    def _count_steps(self) -> int:
        if self.num_events == 0:
            raise DataUnusable(
                f"no event is left to serve from {len(self.files)} files",
                where=self.files[0].path if self.files else "",
                fix="widen data.fiducial, or give data.train_path more files",
                code="XT-DATA-NO-EVENTS",
            )
        if not self.drop_last:
            return ceil(self.num_events / self.global_batch_size)
        if self.num_events < self.global_batch_size:
            raise DataUnusable(
                f"drop_last leaves no step: {self.num_events} events are fewer than one batch of "
                f"{self.batch_size} on {counted(self.world_size, 'rank')}",
                where="data.drop_last",
                fix="--set data.drop_last=false",
                code="XT-DATA-NO-EVENTS",
            )
        return self.num_events // self.global_batch_size

    def _first_needed(self, order: EpochOrder, key: WindowKey, rank: int, start_step: int) -> int | None:
        """Return the first position from a step on that a rank takes from a window; None if there is none."""
        start, stop = order.bounds(key)
        start = max(start, -(-(start_step * self.global_batch_size - key.shard) // self.num_shards))
        for index in range(start, min(stop, start + self.world_size)):
            position = key.shard + self.num_shards * index
            if position % self.world_size == rank and position < self._last_position:
                return position
        return None

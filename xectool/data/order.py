"""The permutation of one epoch: block order, shards, windows, and the order of events inside them."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

# Permutations of windows kept for look-up; a batch needs one or two a shard.
_KEPT_PERMUTATIONS = 64


class WindowKey(NamedTuple):
    """Names a window inside an epoch."""

    shard: int
    window: int


class EpochOrder:
    """Turns positions of an epoch into places in the virtual sequence of events.

    Args:
        seed: The run's seed.
        epoch: Number of the epoch.
        block_events: Events in each block, shape (blocks,).
        num_shards: Number of shards.
        shuffle: False keeps blocks and events in file order.

    Attributes:
        blocks: Block at each place of the virtual sequence, shape (blocks,).
        ends: Virtual index at which each of them starts, and the end, shape (blocks + 1,).
        windows: For each shard the indices at which its windows start, and its size.
    """

    def __init__(self, seed: int, epoch: int, block_events: IntArray, num_shards: int, shuffle: bool) -> None:
        self.seed, self.epoch, self.shuffle, self.num_shards = seed, epoch, shuffle, num_shards
        self.blocks: IntArray = np.arange(len(block_events), dtype=np.int64)
        if shuffle:
            self.blocks = np.random.default_rng(np.random.SeedSequence([seed, epoch])).permutation(self.blocks)
        self.ends: IntArray = np.concatenate([[0], np.cumsum(block_events[self.blocks])]).astype(np.int64)
        total, shards = int(self.ends[-1]), np.arange(num_shards + 1)
        self.shard_starts: IntArray = (total // num_shards) * shards + np.minimum(shards, total % num_shards)
        self.windows: list[IntArray] = []
        self._permutations: OrderedDict[WindowKey, IntArray] = OrderedDict()

    def num_windows(self, shard: int) -> int:
        """Return the count of windows of a shard."""
        return len(self.windows[shard]) - 1

    def bounds(self, key: WindowKey) -> tuple[int, int]:
        """Return the indices inside its shard at which a window starts and stops."""
        edges = self.windows[key.shard]
        return int(edges[key.window]), int(edges[key.window + 1])

    def runs(self, key: WindowKey) -> list[tuple[int, int, int]]:
        """Return the parts of a window as (place of the block, first and last + 1 event inside that block)."""
        start, stop = (int(self.shard_starts[key.shard]) + edge for edge in self.bounds(key))
        first = int(np.searchsorted(self.ends, start, side="right")) - 1
        last = int(np.searchsorted(self.ends, stop, side="left"))
        found = []
        for run in range(first, last):
            low, high = max(start, int(self.ends[run])), min(stop, int(self.ends[run + 1]))
            if low < high:
                found.append((run, low - int(self.ends[run]), high - int(self.ends[run])))
        return found

    def permutation(self, key: WindowKey) -> IntArray:
        """Return the row of a window that is served at each of its places, shape (events of the window,)."""
        found = self._permutations.get(key)
        if found is None:
            start, stop = self.bounds(key)
            found = np.arange(stop - start, dtype=np.int64)
            if self.shuffle:
                sequence = np.random.SeedSequence([self.seed, self.epoch, key.shard, key.window])
                found = np.random.default_rng(sequence).permutation(found)
            self._permutations[key] = found
            while len(self._permutations) > max(_KEPT_PERMUTATIONS, 2 * self.num_shards):
                self._permutations.popitem(last=False)
        return found

    def layout(self, positions: IntArray) -> list[tuple[WindowKey, IntArray, IntArray]]:
        """Return for each window the places in ``positions`` that it serves and its rows, in order of first need."""
        shards, indices = positions % self.num_shards, positions // self.num_shards
        found: list[tuple[int, WindowKey, IntArray, IntArray]] = []
        for shard in np.unique(shards):
            places = np.flatnonzero(shards == shard)
            inside = indices[places]
            windows = np.searchsorted(self.windows[shard], inside, side="right") - 1
            for window in np.unique(windows):
                key, here = WindowKey(int(shard), int(window)), windows == window
                rows = self.permutation(key)[inside[here] - self.bounds(key)[0]]
                found.append((int(places[here][0]), key, places[here], rows))
        return [(key, places, rows) for _, key, places, rows in sorted(found, key=lambda part: part[0])]

    def virtual_index(self, positions: IntArray) -> IntArray:
        """Return the place in the virtual sequence of each position of the epoch."""
        virtual = np.empty(len(positions), dtype=np.int64)
        for key, places, rows in self.layout(positions):
            virtual[places] = self.shard_starts[key.shard] + self.bounds(key)[0] + rows
        return virtual

    def locate(self, virtual: IntArray) -> tuple[IntArray, IntArray]:
        """Return the place of the block and the event inside it for places of the virtual sequence."""
        run = np.searchsorted(self.ends, virtual, side="right") - 1
        return run, virtual - self.ends[run]


def cut_shard(order: EpochOrder, shard: int, window_events: int) -> IntArray:
    """Return the indices at which the windows of a shard start, and its size: whole blocks, nearest to the aim."""
    start, stop = int(order.shard_starts[shard]), int(order.shard_starts[shard + 1])
    aim = max(1, window_events * (shard + 1) // order.num_shards)
    edges = [start]
    while edges[-1] < stop:
        edges.append(min(stop, _nearest_end(order.ends, edges[-1], aim)))
        aim = window_events
    return np.asarray(edges, dtype=np.int64) - start


def _nearest_end(ends: IntArray, position: int, aim: int) -> int:
    """Return the end of a block after ``position`` that is nearest to ``position + aim``."""
    wanted = position + aim
    block = min(int(np.searchsorted(ends, wanted, side="left")), len(ends) - 1)
    above, below = int(ends[block]), int(ends[block - 1])
    return below if below > position and wanted - below < above - wanted else above

"""Puts the batches of an epoch together: from the windows of a reader, or straight from a complete cache.

Axes: B events, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from xectool.data.batch import EventBatch
from xectool.data.batch_memory import BatchMemory
from xectool.data.blocks import Piece
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.extremes import measure
from xectool.data.plan import DataPlan
from xectool.data.readers import WindowReader
from xectool.data.window import NUM_EXTREMES, WindowArrays

IntArray = npt.NDArray[np.int64]


class BatchSource(Protocol):
    """Abstract source of the batches of one rank, one epoch at a time and in order."""

    def start(self, epoch: int, start_step: int, measured: bool = False) -> None:
        """Begin an epoch at a step; its batches have extremes where it is measured."""
        ...

    def batch(self, epoch: int, step: int) -> EventBatch:
        """Return the batch of the next step, all weights 1; waits for it."""
        ...

    def stop(self) -> None:
        """End the epoch, finished or not."""
        ...

    @property
    def num_ready(self) -> int:
        """Windows or batches that are whole and that no step has asked for yet."""
        ...


class WindowBatches:
    """Batches gathered from the windows of a reader.

    Args:
        reader: Gives the windows.
        plan: Their order.
        rank: The rank served.
        memory: Gives batches to be filled.
    """

    def __init__(self, reader: WindowReader, plan: DataPlan, rank: int, memory: BatchMemory) -> None:
        self._reader, self._plan, self._rank, self._memory = reader, plan, rank, memory
        self._measured = False

    def start(self, epoch: int, start_step: int, measured: bool = False) -> None:
        """Begin an epoch at a step: its windows are read ahead; its batches have extremes where it is measured."""
        self._measured = measured
        self._reader.start(epoch, self._plan.windows(epoch, self._rank, start_step), measured)

    def batch(self, epoch: int, step: int) -> EventBatch:
        """Return the batch of the next step, all weights 1.

        Raises:
            DataFileError: A file is damaged.
            WorldError: A worker process died or does not answer.
        """
        layout = self._plan.batch_layout(epoch, step, self._rank)
        batch = self._memory.empty(sum(len(places) for _, places, _ in layout), epoch, step)
        identity = torch.empty((batch.num_events, 4), dtype=torch.int64)
        tensors = [batch.npho, batch.time, *(batch.targets[task] for task in sorted(batch.targets)), identity]
        extremes = torch.empty((batch.num_events, NUM_EXTREMES), dtype=torch.float64) if self._measured else None
        tensors += [] if extremes is None else [extremes]
        for key, places, rows in layout:
            for source, target in zip(self._reader.get(key).arrays(), tensors, strict=False):
                gather(torch.from_numpy(source), target, places, torch.from_numpy(rows))
            if self._plan.is_used_up(epoch, key, self._rank, step + 1):
                self._reader.retire(key)
        return with_identity(batch, identity.numpy(), None if extremes is None else extremes.numpy())

    def stop(self) -> None:
        """End the epoch."""
        self._reader.stop()

    @property
    def num_ready(self) -> int:
        """Windows that are whole and that no batch has asked for yet."""
        return self._reader.num_ready


class CachedBatches:
    """Batches whose events come straight from the rows of a complete cache, some ahead in threads.

    A row that is damaged or whose file was thrown away meanwhile is read from its ROOT file.

    Args:
        cache: The events.
        plan: Their order.
        rank: The rank served.
        num_threads: Threads, and batches ahead.
        memory: Gives batches to be filled.
    """

    def __init__(
        self,
        cache: CachedEvents,
        plan: DataPlan,
        rank: int,
        num_threads: int,
        memory: BatchMemory,
    ) -> None:
        self._cache, self._plan, self._rank, self._memory = cache, plan, rank, memory
        self._ahead = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="xectool-read")
        self._futures: deque[Future[EventBatch]] = deque()
        self._next, self._measured = 0, False

    def start(self, epoch: int, start_step: int, measured: bool = False) -> None:
        """Begin an epoch at a step; its batches have extremes where it is measured."""
        self._next, self._measured = start_step, measured
        for _ in range(self._ahead):
            self._submit(epoch)

    def batch(self, epoch: int, step: int) -> EventBatch:
        """Return the batch of the next step, all weights 1.

        Raises:
            DataFileError: An event is neither in the cache nor readable from its file.
        """
        future = self._futures.popleft()
        self._submit(epoch)
        return future.result()

    def stop(self) -> None:
        """End the epoch and the threads."""
        for future in self._futures:
            future.cancel()
        self._pool.shutdown(wait=True)
        self._futures.clear()

    @property
    def num_ready(self) -> int:
        """Batches that are whole."""
        return sum(future.done() for future in self._futures)

    def _submit(self, epoch: int) -> None:
        if self._next < self._plan.num_steps:
            # The plan keeps the order of one epoch and is not for several threads at once: places are found here.
            file_index, served = self._plan.batch_places(epoch, self._next, self._rank)
            batch = self._memory.empty(len(served), epoch, self._next)
            self._futures.append(self._pool.submit(self._filled, batch, file_index, served))
            self._next += 1

    def _filled(self, batch: EventBatch, file_index: npt.NDArray[np.int32], served: IntArray) -> EventBatch:
        targets = {task: target.numpy() for task, target in batch.targets.items()}
        identity = np.empty((len(served), 4), np.int64)
        extremes = np.empty((len(served), NUM_EXTREMES))
        out = WindowArrays(batch.npho.numpy(), batch.time.numpy(), targets, identity, extremes)
        for index in np.unique(file_index).tolist():
            places = np.flatnonzero(file_index == index)
            self._read_file(index, served[places], out, None if len(places) == len(served) else places)
        if not self._measured:
            return with_identity(batch, identity)
        measure(out)
        return with_identity(batch, identity, extremes)

    def _read_file(self, index: int, rows: IntArray, out: WindowArrays, places: IntArray | None) -> None:
        selected = self._cache.source.files[index].selected
        entries = rows if selected is None else selected[rows]
        into = slice(None) if places is None else places
        out.identity[into, 0], out.identity[into, 1] = index, entries
        if self._cache.fill(index, rows, out, places):
            return
        # Damaged, or thrown away meanwhile: what is still sound is taken, the rest comes from the ROOT file.
        for entry, row, place in zip(
            entries.tolist(), rows.tolist(), np.arange(len(rows)) if places is None else places, strict=True
        ):
            part = out.rows(int(place), int(place) + 1)
            if not self._cache.fill(index, np.array([row]), part):
                self._cache.source.read_root(Piece(index, entry, entry + 1, None, 0, 0), part)
                self._cache.settle(index, part)


def with_identity(batch: EventBatch, identity: IntArray, extremes: npt.NDArray[np.float64] | None = None) -> EventBatch:
    """Return a batch with file index, entry, run and event number, shape (B, 4), and extremes, shape (B, 6)."""
    return replace(
        batch,
        file_index=identity[:, 0].astype(np.int32),
        entry=identity[:, 1].copy(),
        run=identity[:, 2].copy(),
        event=identity[:, 3].copy(),
        extremes=extremes,
    )


def gather(source: torch.Tensor, target: torch.Tensor, places: IntArray, rows: torch.Tensor) -> None:
    """Copy ``rows`` of a window's tensor, shape (N, ...), to ``places`` of a batch's tensor, shape (B, ...)."""
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    if (np.diff(places) == step).all():
        # Straight into the strided rows: one pass less over the memory than index_copy_.
        torch.index_select(source, 0, rows, out=target[int(places[0]) : int(places[-1]) + 1 : step])
    else:
        target.index_copy_(0, torch.from_numpy(places), source.index_select(0, rows))

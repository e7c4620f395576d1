"""Serves the batches of an epoch in the order of the plan.

Axes: B events, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from xectool.config.data import DataConfig
from xectool.data.batch import EventBatch
from xectool.data.event_weigher import EventWeigher
from xectool.data.events import EventSource
from xectool.data.excluded import ExcludedEvents
from xectool.data.plan import DataPlan
from xectool.data.processes import ProcessReader
from xectool.data.readers import ThreadReader, WindowReader
from xectool.data.window import event_bytes
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import XecError
from xectool.runlog.worker_slots import SlotRange

# Largest decompressed block of a ROOT file and its compressed bytes, held by each reading thread.
_BLOCK_BYTES = 2 * 16 * 1024 * 1024


@dataclass(frozen=True)
class LoaderOptions:
    """How windows are read; nothing here changes what is served.

    Attributes:
        num_workers: Processes; 0 reads in threads of this one.
        num_threads: Reading threads of a process.
        prefetch_factor: Windows each worker process reads ahead.
        persistent_workers: Whether worker processes outlive an epoch.
        pin_memory: Whether batches lie in page-locked memory.
        mp_context: How worker processes start.
        timeout_s: Longest wait for a worker process.
    """

    num_workers: int = 0
    num_threads: int = 2
    prefetch_factor: int = 2
    persistent_workers: bool = True
    pin_memory: bool = False
    mp_context: str = "forkserver"
    timeout_s: float = 600.0

    @property
    def windows_ahead(self) -> int:
        """Windows that are read before they are needed."""
        return self.num_workers * self.prefetch_factor if self.num_workers else self.num_threads

    @classmethod
    def from_config(cls, data: DataConfig, device: torch.device | str) -> LoaderOptions:
        """Return the options of a configuration; memory is pinned for an accelerator unless it says otherwise."""
        pin = torch.device(device).type == "cuda" if data.pin_memory is None else data.pin_memory
        return cls(
            num_workers=data.num_workers,
            num_threads=data.num_threads,
            prefetch_factor=2 if data.prefetch_factor is None else data.prefetch_factor,
            persistent_workers=True if data.persistent_workers is None else data.persistent_workers,
            pin_memory=pin,
            mp_context=data.mp_context,
            timeout_s=data.timeout_s,
        )


class EventLoader:
    """Serves the batches of one rank.

    Args:
        source: The events.
        plan: Their order; made from ``source.files``.
        rank: The rank served.
        options: How windows are read.
        weights: Weights of the events; None gives ones.
        reader: Gives the windows; None makes one from the options.

    Attributes:
        data_wait_s: Seconds the consumer has waited for batches, over all epochs.
        events_served: Events of all batches so far.
        slots: Where reading threads note what they read; set before the first epoch.
        excluded: Events that are never served.
    """

    def __init__(
        self,
        source: EventSource,
        plan: DataPlan,
        *,
        rank: int = 0,
        options: LoaderOptions | None = None,
        weights: EventWeigher | None = None,
        reader: WindowReader | None = None,
    ) -> None:
        self.source, self.plan, self.rank = source, plan, rank
        self.options = options or LoaderOptions()
        self.data_wait_s = 0.0
        self.events_served = 0
        self.excluded = ExcludedEvents()
        self.slots: SlotRange | None = None
        self._weights = weights
        self._reader = reader

    def __enter__(self) -> EventLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return self.plan.num_steps

    @property
    def queue_depth(self) -> int:
        """Windows that are read ahead and wait for their first batch; -1 outside an epoch."""
        return self._reader.num_ready if self._reader is not None else -1

    def close(self) -> None:
        """Stop the reading threads or processes; a later epoch starts them again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @contextmanager
    def for_all_ranks(self) -> Iterator[EventLoader]:
        """Give a loader that serves alone what the ranks of this one share; itself where there is only one."""
        if self.plan.world_size == 1:
            yield self
            return
        plan = replace(self.plan, world_size=1)
        with EventLoader(self.source, plan, options=self.options, weights=self._weights) as whole:
            yield whole

    def exclude(self, file_index: npt.NDArray[np.integer], entry: npt.NDArray[np.integer]) -> None:
        """Never serve these events again: their batches are shorter from now on, all others stay what they are.

        Args:
            file_index: Index of the file of each event, shape (n,).
            entry: Entry in that file, shape (n,).
        """
        self.excluded = self.excluded.with_events(file_index, entry)

    def epoch(self, epoch: int, start_step: int = 0, position: int = 0) -> Iterator[EventBatch]:
        """Yield the batches of an epoch from a step on, without excluded events; only what they need is read.

        Args:
            epoch: The epoch.
            start_step: The first step.
            position: Events of the epoch, over all ranks, that another number of ranks has used; those of the first
                step are left out of it.

        Raises:
            DataFileError: A file is damaged; names branch and entries.
            WorldError: A worker process died or does not answer.
        """
        reader = self._reader = self._reader or window_reader(self.source, self.plan, self.options, self.slots)
        reader.start(epoch, self.plan.windows(epoch, self.rank, start_step))
        seen = 0
        try:
            for step in range(start_step, self.plan.num_steps):
                begin = time.perf_counter()
                whole = self._batch(reader, epoch, step)
                batch = self.excluded.left_out_of(self._from(position, whole))
                self.data_wait_s += time.perf_counter() - begin
                seen += whole.num_events
                self.events_served += batch.num_events
                yield batch
                del whole, batch  # their memory serves the next batch
            self._audit(seen, start_step)
        finally:
            reader.stop()
            if (self.options.num_workers and not self.options.persistent_workers) or reader.is_closed:
                self.close()

    def _from(self, position: int, batch: EventBatch) -> EventBatch:
        """Return what a batch holds from a position of the epoch on."""
        if position <= batch.step * self.plan.global_batch_size:
            return batch
        return batch.take(np.flatnonzero(self.plan.batch_positions(batch.step, self.rank) >= position))

    def _batch(self, reader: WindowReader, epoch: int, step: int) -> EventBatch:
        layout = self.plan.batch_layout(epoch, step, self.rank)
        batch = self._empty_batch(sum(len(places) for _, places, _ in layout), epoch, step)
        identity = torch.empty((batch.num_events, 4), dtype=torch.int64)
        tensors = [batch.npho, batch.time, *(batch.targets[task] for task in sorted(batch.targets)), identity]
        for key, places, rows in layout:
            for source, target in zip(reader.get(key).arrays(), tensors, strict=True):
                gather(torch.from_numpy(source), target, places, torch.from_numpy(rows))
            if self.plan.is_used_up(epoch, key, self.rank, step + 1):
                reader.retire(key)
        if self._weights is not None:
            truth = {task: target.numpy() for task, target in batch.targets.items()}
            batch.weight.copy_(torch.from_numpy(self._weights.weights(truth, batch.npho.numpy())))
        numbers = identity.numpy()
        return replace(
            batch,
            file_index=numbers[:, 0].astype(np.int32),
            entry=numbers[:, 1].copy(),
            run=numbers[:, 2].copy(),
            event=numbers[:, 3].copy(),
        )

    def _empty_batch(self, num_events: int, epoch: int, step: int) -> EventBatch:
        pin = self.options.pin_memory
        numbers = np.empty(0, np.int64)
        return EventBatch(
            npho=torch.empty((num_events, NUM_SENSORS), pin_memory=pin),
            time=torch.empty((num_events, NUM_SENSORS), pin_memory=pin),
            targets={t: torch.empty((num_events, d), pin_memory=pin) for t, d in self.source.widths.items()},
            weight=torch.ones(num_events, pin_memory=pin),
            file_index=numbers.astype(np.int32),
            entry=numbers,
            run=numbers,
            event=numbers,
            epoch=epoch,
            step=step,
        )

    def _audit(self, seen: int, start_step: int) -> None:
        expected = self.plan.events_of_rank(self.rank, start_step)
        if seen != expected:
            raise XecError(
                f"rank {self.rank} served {seen} events of an epoch, expected {expected}",
                where="xectool.data.loader",
                fix="report this as a defect of xectool, with the configuration",
                code="XT-DUPLICATE-EVENTS",
            )


def window_reader(
    source: EventSource,
    plan: DataPlan,
    options: LoaderOptions,
    slots: SlotRange | None = None,
    resident: int | None = None,
) -> WindowReader:
    """Return what reads the windows of a plan ahead, in threads or processes.

    Args:
        source: The events.
        plan: Their order.
        options: How they are read.
        slots: Where reading threads note what they read.
        resident: Windows in memory at once; None: one a shard in use, and those read ahead.
    """
    resident = resident or _resident_windows(plan, options)
    if options.num_workers > 0:
        start = (options.mp_context, options.timeout_s)
        return ProcessReader(source, plan, options.num_threads, resident, options.num_workers, start, slots)
    return ThreadReader(source, plan, options.num_threads, resident, slots)


def gather(source: torch.Tensor, target: torch.Tensor, places: npt.NDArray[np.int64], rows: torch.Tensor) -> None:
    """Copy ``rows`` of a window's tensor, shape (N, ...), to ``places`` of a batch's tensor, shape (B, ...)."""
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    if (np.diff(places) == step).all():
        # Straight into the strided rows: one pass less over the memory than index_copy_.
        torch.index_select(source, 0, rows, out=target[int(places[0]) : int(places[-1]) + 1 : step])
    else:
        target.index_copy_(0, torch.from_numpy(places), source.index_select(0, rows))


def _resident_windows(plan: DataPlan, options: LoaderOptions) -> int:
    """Return how many windows are in memory at once: one a shard in use, and those read ahead."""
    return max(len(plan.shards_of_rank(rank)) for rank in range(plan.world_size)) + options.windows_ahead


def loader_memory_bytes(plan: DataPlan, options: LoaderOptions, widths: Mapping[str, int]) -> int:
    """Return an upper bound on the memory a rank's loader takes, without the interpreters of its processes.

    (windows in use and ahead) x (events of the largest window) x (bytes of an event)
    + 3 batches (being filled, in use, and freed late) + one decompressed block a reading thread.

    Args:
        plan: The data plan.
        options: How it is read.
        widths: Numbers of each task whose truth is read.
    """
    one_event = event_bytes(widths)
    windows = _resident_windows(plan, options) * plan.max_window_events
    batches = 3 * min(plan.batch_size, plan.num_events)
    threads = options.num_threads * max(options.num_workers, 1)
    return (windows + batches) * one_event + threads * _BLOCK_BYTES

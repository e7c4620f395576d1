"""Serves the batches of an epoch in the order of the plan.

Axes: B events, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from xectool.config.data import DataConfig
from xectool.config.host_memory import BATCHES_HELD, BLOCK_BYTES
from xectool.data.batch import EventBatch
from xectool.data.batch_memory import BatchMemory
from xectool.data.batch_sources import BatchSource, CachedBatches, WindowBatches
from xectool.data.cache.building import BackgroundBuilder, builder_bytes
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.event_weigher import EventWeigher
from xectool.data.events import EventSource
from xectool.data.excluded import ExcludedEvents
from xectool.data.plan import DataPlan
from xectool.data.processes import ProcessReader
from xectool.data.readers import ThreadReader, WindowReader
from xectool.data.window import event_bytes
from xectool.errors import XecError
from xectool.runlog.worker_slots import SlotRange


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
        builds_cache: Whether memory is set aside for a thread that builds a cache.
    """

    num_workers: int = 0
    num_threads: int = 2
    prefetch_factor: int = 2
    persistent_workers: bool = True
    pin_memory: bool = False
    mp_context: str = "forkserver"
    timeout_s: float = 600.0
    builds_cache: bool = False

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
            builds_cache=data.cache not in ("auto", "off"),
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
        measured_epoch: Epoch whose batches have extremes, for whoever looks at every event; None: no epoch's have.
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
        self.measured_epoch: int | None = None
        self.slots: SlotRange | None = None
        self._weights = weights
        self._reader = reader
        self._has_own_reader = reader is not None
        self._batches: BatchSource | None = None
        self._builder: BackgroundBuilder | None = None
        self._memory = BatchMemory(source.widths, self.options.pin_memory)

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
        """Windows, or batches from the cache, that are read ahead and wait; -1 outside an epoch."""
        return self._batches.num_ready if self._batches is not None else -1

    def close(self) -> None:
        """Stop all threads and processes; a later epoch starts them again."""
        if self._builder is not None:
            self._builder.stop()
            self._builder = None
        self._close_reader()
        self._memory.release()
        if isinstance(self.source.cache, CachedEvents):
            self.source.cache.close()

    def _close_reader(self) -> None:
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

    def epoch(self, epoch: int, start_step: int = 0, position: int = 0) -> Generator[EventBatch, None, None]:
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
        batches = self._batches = self._batch_source()
        self._build_cache()
        batches.start(epoch, start_step, epoch == self.measured_epoch)
        seen = 0
        try:
            for step in range(start_step, self.plan.num_steps):
                begin = time.perf_counter()
                whole = self.weighted(batches.batch(epoch, step))
                batch = self.excluded.left_out_of(self._from(position, whole))
                self.data_wait_s += time.perf_counter() - begin
                seen += whole.num_events
                self.events_served += batch.num_events
                yield batch
                del whole, batch  # their memory serves the next batch
            self.audit(seen, start_step)
        finally:
            batches.stop()
            self._batches = None
            reader = self._reader
            transient = self.options.num_workers and not self.options.persistent_workers
            if reader is not None and (transient or reader.is_closed):
                self._close_reader()

    def _batch_source(self) -> BatchSource:
        """Return what makes the batches: a complete cache goes before the reader of windows."""
        cache = self.source.cache
        if isinstance(cache, CachedEvents) and cache.is_complete and not self._has_own_reader:
            self._close_reader()  # its buffers and processes are not needed any more
            return CachedBatches(cache, self.plan, self.rank, self.options.num_threads, self._memory)
        self._reader = self._reader or window_reader(self.source, self.plan, self.options, self.slots)
        return WindowBatches(self._reader, self.plan, self.rank, self._memory)

    def _build_cache(self) -> None:
        cache, before = self.source.cache, self._builder
        if not isinstance(cache, CachedEvents) or not cache.builds or not (missing := cache.missing()):
            return
        if before is None or before.leaves(missing):  # what could not be built once is not tried at each epoch
            self._builder = BackgroundBuilder(cache, self.rank / self.plan.world_size)
            self._builder.start()

    def weighted(self, batch: EventBatch) -> EventBatch:
        """Return a batch with the weights of its events in the loss."""
        if self._weights is not None:
            truth = {task: target.numpy() for task, target in batch.targets.items()}
            batch.weight.copy_(torch.from_numpy(self._weights.weights(truth, batch.npho.numpy())))
        return batch

    def _from(self, position: int, batch: EventBatch) -> EventBatch:
        """Return what a batch holds from a position of the epoch on."""
        if position <= batch.step * self.plan.global_batch_size:
            return batch
        return batch.take(np.flatnonzero(self.plan.batch_positions(batch.step, self.rank) >= position))

    def audit(self, seen: int, start_step: int = 0) -> None:
        """Raise `XecError` where not as many events of an epoch were seen as the plan has from a step on."""
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


def _resident_windows(plan: DataPlan, options: LoaderOptions) -> int:
    """Return how many windows are in memory at once: one a shard in use, and those read ahead."""
    return max(len(plan.shards_of_rank(rank)) for rank in range(plan.world_size)) + options.windows_ahead


def loader_memory_bytes(plan: DataPlan, options: LoaderOptions, widths: Mapping[str, int]) -> int:
    """Return an upper bound on the memory a rank's loader takes, without the interpreters of its processes.

    (windows in use and ahead) x (events of the largest window; all, where one window holds them) x (bytes of an event)
    + 3 batches (being filled, in use, and freed late) + one decompressed block a reading thread, never more than a
    file's events take, + with a cache directory the blocks being copied.

    Args:
        plan: The data plan.
        options: How it is read.
        widths: Numbers of each task whose truth is read.
    """
    one_event = event_bytes(widths)
    one_window = plan.num_events <= plan.window_events
    windows = plan.num_events if one_window else _resident_windows(plan, options) * plan.max_window_events
    batches = BATCHES_HELD * min(plan.batch_size, plan.num_events)
    threads = options.num_threads * max(options.num_workers, 1)
    cache = builder_bytes(one_event, plan.num_events) if options.builds_cache else 0
    block = min(BLOCK_BYTES, max(file.num_entries for file in plan.files) * one_event)
    return (windows + batches) * one_event + threads * block + cache

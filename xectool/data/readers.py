"""Reads windows ahead of the consumer: in threads of this process, or in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

from xectool.data.events import EventSource
from xectool.data.plan import DataPlan, WindowKey
from xectool.data.window import WindowArrays
from xectool.data.worker_failure import Heartbeat, explain_worker_failure
from xectool.errors import XecError


class WindowReader(Protocol):
    """Abstract reader of the windows of one epoch at a time."""

    def start(self, epoch: int, keys: Sequence[WindowKey]) -> None:
        """Begin an epoch: ``keys`` are wanted, in this order of first use."""
        ...

    def get(self, key: WindowKey) -> WindowArrays:
        """Return a window; waits for it."""
        ...

    def retire(self, key: WindowKey) -> None:
        """Give a window back; it is not asked for again in this epoch."""
        ...

    def stop(self) -> None:
        """End the epoch, finished or not."""
        ...

    def close(self) -> None:
        """Stop threads and processes."""
        ...


def read_window(
    source: EventSource, plan: DataPlan, epoch: int, key: WindowKey, submit: Callable[..., Any], window: WindowArrays
) -> list[Any]:
    """Read the pieces of a window, each by ``submit(function, *arguments)``; returns what that returns."""
    row, results = 0, []
    for piece in plan.pieces(epoch, key):
        results.append(submit(source.read_piece, piece, window, row))
        row += piece.num_events
    return results


class ThreadReader:
    """Reads in ``num_threads`` threads; decompression and copies leave the interpreter lock.

    At most ``resident`` windows are in memory: those in use, and as many ahead as there are threads. Their buffers are
    used again, for touching fresh memory costs more than copying into warm memory.
    """

    def __init__(self, source: EventSource, plan: DataPlan, num_threads: int, resident: int) -> None:
        self._source, self._plan, self._resident = source, plan, resident
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="xectool-read")
        self._free: list[WindowArrays] = []
        self._pending: list[WindowKey] = []
        self._held: dict[WindowKey, tuple[WindowArrays, list[Future[None]]]] = {}
        self._epoch = 0

    def start(self, epoch: int, keys: Sequence[WindowKey]) -> None:
        """Begin an epoch: ``keys`` are wanted, in this order of first use."""
        self._epoch, self._pending = epoch, list(reversed(keys))
        self._read_ahead()

    def get(self, key: WindowKey) -> WindowArrays:
        """Return a window; waits for it.

        Raises:
            DataFileError: A file of the window is damaged.
        """
        while key not in self._held:
            self._submit(self._pending.pop())
        window, futures = self._held[key]
        for future in futures:
            future.result()
        return window

    def retire(self, key: WindowKey) -> None:
        """Give a window back; its buffer is used for the next one."""
        window, _ = self._held.pop(key)
        self._free.append(window)
        self._read_ahead()

    def stop(self) -> None:
        """End the epoch: reads that have not begun are dropped, those under way are waited for."""
        self._pending = []
        for window, futures in self._held.values():
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()
            self._free.append(window)
        self._held = {}

    def close(self) -> None:
        """Stop the threads."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _read_ahead(self) -> None:
        while self._pending and len(self._held) < self._resident:
            self._submit(self._pending.pop())

    def _submit(self, key: WindowKey) -> None:
        if self._free:
            window = self._free.pop()
        else:
            window = WindowArrays.empty(self._plan.max_window_events, self._source.widths)
        futures = read_window(self._source, self._plan, self._epoch, key, self._pool.submit, window)
        self._held[key] = (window, futures)


class WindowDataset(Dataset[Any]):
    """Windows by (epoch, shard, window), as a torch ``DataLoader`` asks for them in a worker process."""

    def __init__(self, source: EventSource, plan: DataPlan, num_threads: int, heartbeat: Heartbeat) -> None:
        self._source, self._plan = source, plan
        self._num_threads, self._heartbeat = num_threads, heartbeat
        self._pool: ThreadPoolExecutor | None = None

    def __getitem__(self, place: tuple[int, int, int]) -> WindowArrays | XecError:
        """Return the window; a failure is returned, not raised, for torch would keep only its text."""
        epoch, key = place[0], WindowKey(*place[1:])
        self._heartbeat.beat(epoch, key)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads)
        num_events = sum(piece.num_events for piece in self._plan.pieces(epoch, key))
        window = WindowArrays.empty(num_events, self._source.widths)
        try:
            for future in read_window(self._source, self._plan, epoch, key, self._pool.submit, window):
                future.result()
        except XecError as error:
            return error
        return window


class _Places:
    """The windows of the current epoch, as a sampler; replaced each epoch while the workers live on."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


class WorkerReader:
    """Reads in ``num_workers`` processes of a torch ``DataLoader``; gives the same windows as ``ThreadReader``."""

    def __init__(self, source: EventSource, plan: DataPlan, num_threads: int, loader_options: dict[str, Any]) -> None:
        context = mp.get_context(loader_options["multiprocessing_context"])
        self._source, self._plan = source, plan
        self._heartbeat = Heartbeat(context, loader_options["num_workers"])
        self._places = _Places()
        dataset = WindowDataset(source, plan, num_threads, self._heartbeat)
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_size=None, sampler=self._places, **loader_options)
        self._windows: Iterator[Any] | None = None
        self._order: Iterator[WindowKey] = iter(())
        self._held: dict[WindowKey, WindowArrays] = {}

    def start(self, epoch: int, keys: Sequence[WindowKey]) -> None:
        """Begin an epoch: ``keys`` are wanted, in this order of first use."""
        self._places.places = [(epoch, *key) for key in keys]
        self._order, self._held = iter(keys), {}
        self._windows = self._guarded(lambda: iter(self._loader))

    def get(self, key: WindowKey) -> WindowArrays:
        """Return a window; waits for it.

        Raises:
            XecError: A file of the window is damaged, or a worker died or does not answer.
        """
        while key not in self._held:
            arriving = next(self._order)
            window = self._guarded(lambda: next(self._windows))  # type: ignore[arg-type]  # set by start
            if isinstance(window, XecError):
                raise window
            self._held[arriving] = window
        return self._held[key]

    def retire(self, key: WindowKey) -> None:
        """Give a window back; its shared memory is freed."""
        del self._held[key]

    def stop(self) -> None:
        """End the epoch; workers that do not persist are stopped."""
        self._windows, self._held = None, {}

    def close(self) -> None:
        """Stop the worker processes."""
        self.stop()
        self._loader = None  # type: ignore[assignment]  # the workers end with the last reference

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise explain_worker_failure(error, self._heartbeat, self._source, self._plan) from error

"""Reads windows ahead of the consumer, in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from xectool.data.blocks import Piece
from xectool.data.events import EventSource
from xectool.data.plan import DataPlan, WindowKey
from xectool.data.watched import WatchedReads
from xectool.data.window import WindowArrays
from xectool.runlog.worker_slots import SlotRange


class WindowReader(Protocol):
    """Abstract reader of the windows of one epoch at a time."""

    def start(self, epoch: int, keys: Sequence[WindowKey], measured: bool = False) -> None:
        """Begin an epoch: ``keys`` are wanted, in this order of first use, and their extremes where it is measured."""
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

    @property
    def num_ready(self) -> int:
        """Windows that are whole and that no batch has asked for yet."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether a new reader is needed for another epoch."""
        ...


def read_window(
    read: Callable[[Piece, WindowArrays, int], None],
    plan: DataPlan,
    epoch: int,
    key: WindowKey,
    submit: Callable[..., Any],
    window: WindowArrays,
) -> list[Any]:
    """Read the pieces of a window, each by ``submit(function, *arguments)``; returns what that returns."""
    row, results = 0, []
    for piece in plan.pieces(epoch, key):
        results.append(submit(read, piece, window, row))
        row += piece.num_events
    return results


class ThreadReader:
    """Reads in ``num_threads`` threads; decompression and copies leave the interpreter lock.

    At most ``resident`` windows are in memory: those in use, and as many ahead as there are threads. Their buffers are
    used again, for touching fresh memory costs more than copying into warm memory.
    """

    def __init__(
        self, source: EventSource, plan: DataPlan, num_threads: int, resident: int, slots: SlotRange | None = None
    ) -> None:
        self._source, self._plan, self._resident = source, plan, resident
        self._reads = WatchedReads(source, slots)
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="xectool-read")
        self._free: list[WindowArrays] = []
        self._pending: list[WindowKey] = []
        self._held: dict[WindowKey, tuple[WindowArrays, list[Future[None]]]] = {}
        self._used: set[WindowKey] = set()
        self._epoch, self._measured = 0, False

    def start(self, epoch: int, keys: Sequence[WindowKey], measured: bool = False) -> None:
        """Begin an epoch: ``keys`` are wanted, in this order of first use, and their extremes where it is measured."""
        self._epoch, self._measured, self._pending = epoch, measured, list(reversed(keys))
        self._read_ahead()

    def get(self, key: WindowKey) -> WindowArrays:
        """Return a window; waits for it.

        Raises:
            DataFileError: A file of the window is damaged.
        """
        window, futures = self._held[key]
        for future in futures:
            future.result()
        self._used.add(key)
        return window

    def retire(self, key: WindowKey) -> None:
        """Give a window back; its buffer is used for the next one."""
        window, _ = self._held.pop(key)
        self._used.discard(key)
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
        self._used.clear()

    def close(self) -> None:
        """Stop the threads."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def num_ready(self) -> int:
        """Windows that are whole and that no batch has asked for yet."""
        waiting = (futures for key, (_, futures) in self._held.items() if key not in self._used)
        return sum(all(future.done() for future in futures) for futures in waiting)

    @property
    def is_closed(self) -> bool:
        """Whether a new reader is needed for another epoch: never, threads survive an error."""
        return False

    def _read_ahead(self) -> None:
        while self._pending and len(self._held) < self._resident:
            self._submit(self._pending.pop())

    def _submit(self, key: WindowKey) -> None:
        if self._free:
            window = self._free.pop()
        else:
            window = WindowArrays.empty(self._plan.max_window_events, self._source.widths)
        read = self._reads.measured if self._measured else self._reads
        futures = read_window(read, self._plan, self._epoch, key, self._pool.submit, window)
        self._held[key] = (window, futures)

"""Reads windows ahead of the consumer, in worker processes that fill shared buffers.

Window k of an epoch is read by worker k mod ``num_workers``, so what a dead worker was reading is known. The workers do
not import torch: they start in a fraction of a second and stay small.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

from xectool.data.blocks import Piece
from xectool.data.events import EventSource
from xectool.data.plan import DataPlan, WindowKey
from xectool.data.readers import read_window
from xectool.data.shared_buffer import SharedBuffer
from xectool.data.watched import WatchedReads
from xectool.data.window import WindowArrays, buffer_bytes
from xectool.data.worker_process import become_loader, start_deaf
from xectool.errors import OutOfMemory, WorldError, XecError, duration
from xectool.runlog.process import oom_kills, oom_kills_since, who_killed
from xectool.runlog.worker_slots import SlotRange

# How often an idle worker looks whether its parent still lives.
_PARENT_CHECK_S = 5.0
_STOP_S = 5.0


@dataclass
class _Worker:
    process: Any
    connection: Connection


class ProcessReader:
    """Reads in ``num_workers`` processes; gives the same windows as ``ThreadReader``.

    Args:
        source: The events.
        plan: Their order.
        num_threads: Reading threads of each process.
        resident: Windows in memory at once, in use and ahead.
        num_workers: Count of processes.
        start: How processes start (``forkserver``, ``spawn``, ``fork``) and the longest wait for a window in s.
        slots: Where the processes note what they read, ``num_threads`` slots each; None for nowhere.
    """

    def __init__(  # noqa: PLR0913 - the loader hands over what it was given
        self,
        source: EventSource,
        plan: DataPlan,
        num_threads: int,
        resident: int,
        num_workers: int,
        start: tuple[str, float],
        slots: SlotRange | None = None,
    ) -> None:
        self._source, self._plan, self._timeout_s = source, plan, start[1]
        size = buffer_bytes(plan.max_window_events, source.widths)
        self._buffers = [SharedBuffer(size) for _ in range(resident)]
        self._windows = [
            WindowArrays.in_buffer(buffer.memory, plan.max_window_events, source.widths) for buffer in self._buffers
        ]
        self._free = list(range(resident))
        self._pending: list[tuple[int, WindowKey]] = []
        # Window to (worker, buffer); the worker is -1 once the window is whole.
        self._held: dict[WindowKey, tuple[int, int]] = {}
        self._used: set[WindowKey] = set()
        self._epoch, self._measured = 0, False
        self._failed = False
        self._oom_kills = oom_kills()
        context = multiprocessing.get_context(start[0])
        parts = [slots.part(number, num_threads) if slots else None for number in range(num_workers)]
        self._answers = select.poll()
        self._workers = [self._start_worker(context, num_threads, part) for part in parts]
        # At its own end Python sends SIGTERM to what is left, and waits; the workers ignore that.
        processes = [worker.process for worker in self._workers]
        self._at_exit = Finalize(self, _kill, args=(processes,), exitpriority=0)

    def start(self, epoch: int, keys: Sequence[WindowKey], measured: bool = False) -> None:
        """Begin an epoch: ``keys`` are wanted, in this order of first use, and their extremes where it is measured."""
        self._epoch, self._measured, self._pending = epoch, measured, list(reversed(list(enumerate(keys))))
        self._read_ahead()

    def get(self, key: WindowKey) -> WindowArrays:
        """Return a window; waits for it.

        Raises:
            DataFileError: A file of the window is damaged.
            OutOfMemory: The worker was killed, and the kernel has killed for lack of memory meanwhile.
            WorldError: A worker was killed, died or does not answer.
        """
        self._look_for_dead()
        while self._held[key][0] >= 0:
            self._failed = True  # until the answer is there
            self._receive(self._held[key][0])
            self._failed = False
        self._used.add(key)
        return self._windows[self._held[key][1]]

    def retire(self, key: WindowKey) -> None:
        """Give a window back; its buffer is used for the next one."""
        _, buffer = self._held.pop(key)
        self._used.discard(key)
        self._free.append(buffer)
        self._read_ahead()

    def stop(self) -> None:
        """End the epoch: windows under way are waited for, unless their worker is gone."""
        self._pending = []
        try:
            for key in () if self._failed or self.is_closed else list(self._held):
                self.get(key)
        except XecError:
            # An event that is not wanted any more cannot be read; the workers start again with the next epoch.
            self._failed = True
        if self._failed:
            self.close()
        self._free = list(range(len(self._buffers)))
        self._held = {}
        self._used.clear()

    def close(self) -> None:
        """Stop the worker processes."""
        workers, self._workers = self._workers, []
        for worker in workers:
            self._answers.unregister(worker.connection)
            worker.connection.close()
        for worker in workers:
            worker.process.join(0 if self._failed else _STOP_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._at_exit.cancel()

    @property
    def num_ready(self) -> int:
        """Windows that are whole and that no batch has asked for yet, as far as their readers have said so."""
        taken_in = sum(worker < 0 and key not in self._used for key, (worker, _) in self._held.items())
        return taken_in + len(self._answers.poll(0))

    @property
    def is_closed(self) -> bool:
        """Whether the workers are gone; a new reader is needed for another epoch."""
        return not self._workers

    def _start_worker(self, context: Any, num_threads: int, slots: SlotRange | None) -> _Worker:
        here, there = context.Pipe()
        arguments = (self._source, self._plan, self._buffers, there, (num_threads, slots))
        process = context.Process(target=_serve, args=arguments, daemon=True, name="xectool-read")
        start_deaf(process, uses_server=context.get_start_method() != "fork")
        there.close()
        self._answers.register(here, select.POLLIN)
        return _Worker(process, here)

    def _read_ahead(self) -> None:
        while self._pending and self._free and self._workers:
            number, key = self._pending.pop()
            worker, buffer = number % len(self._workers), self._free.pop()
            self._held[key] = (worker, buffer)
            try:
                self._workers[worker].connection.send((self._epoch, key, buffer, self._measured))
            except OSError as error:
                raise self._dead(worker) from error

    def _look_for_dead(self) -> None:
        """Raise where a worker is gone; what it has read before may last for a long while."""
        hung_up = {descriptor for descriptor, event in self._answers.poll(0) if event & select.POLLHUP}
        for number, worker in enumerate(self._workers if hung_up else ()):
            self._failed = True
            while worker.connection.fileno() in hung_up:  # what it has answered before is taken in first
                self._receive(number)

    def _receive(self, worker: int) -> None:
        """Wait for the next answer of a worker."""
        connection, process = self._workers[worker].connection, self._workers[worker].process
        if not wait([connection, process.sentinel], self._timeout_s):
            raise WorldError(
                f"loader process {process.pid} gave no window within {duration(self._timeout_s)}",
                where=self._reading(worker),
                fix="--set data.timeout_s=1800   # slow storage",
                code="XT-LOADER-TIMEOUT",
            )
        try:
            answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._dead(worker) from error
        if isinstance(answer, XecError):
            raise answer
        self._held[answer] = (-1, self._held[answer][1])

    def _dead(self, worker: int) -> XecError:
        process = self._workers[worker].process
        process.join(_STOP_S)
        code, where = process.exitcode, self._reading(worker)
        if code == -signal.SIGKILL:
            kills = oom_kills_since(self._oom_kills)
            return (OutOfMemory if kills else WorldError)(
                f"loader process {process.pid} was killed{who_killed(kills)}",
                where=where,
                fix="--set data.num_workers=0 --set data.chunksize=4096",
                code="XT-LOADER-KILLED",
            )
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        return WorldError(
            f"loader process {process.pid} died ({how})",
            where=where,
            fix="--set data.num_workers=0   # reads in this process, so that the fault shows itself",
            code="XT-LOADER-DIED",
        )

    def _reading(self, worker: int) -> str:
        """Return the files and entries of the first window a worker has not answered; they may be none."""
        key = next((key for key, (number, _) in self._held.items() if number == worker), None)
        if key is None:
            return "it was idle"
        pieces = self._plan.pieces(self._epoch, key)
        parts = [f"{self._source.files[p.file_index].name} entries [{p.entry_start}, {p.entry_stop})" for p in pieces]
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        return f"it was reading {', '.join(parts[:3])}{more}"


def _kill(processes: Sequence[Any]) -> None:
    for process in processes:
        with contextlib.suppress(ValueError):  # closed already
            process.kill()


def _serve(
    source: EventSource,
    plan: DataPlan,
    buffers: list[SharedBuffer],
    connection: Connection,
    threads: tuple[int, SlotRange | None],
) -> None:
    """Answer requests for windows until the connection or the parent is gone."""
    become_loader(threads[1])
    threading.current_thread().name = "xectool-serve"
    windows = [WindowArrays.in_buffer(buffer.memory, plan.max_window_events, source.widths) for buffer in buffers]
    parent = os.getppid()
    reads = WatchedReads(source, threads[1])
    # a closed connection ends the service
    with ThreadPoolExecutor(threads[0]) as pool, contextlib.suppress(EOFError, OSError):
        while os.getppid() == parent:
            if connection.poll(_PARENT_CHECK_S):
                epoch, key, buffer, measured = connection.recv()
                read = reads.measured if measured else reads
                connection.send(_fill(read, plan, epoch, key, pool, windows[buffer]))
    reads.exit()


def _fill(
    read: Callable[[Piece, WindowArrays, int], None],
    plan: DataPlan,
    epoch: int,
    key: WindowKey,
    pool: ThreadPoolExecutor,
    window: WindowArrays,
) -> WindowKey | XecError:
    futures = read_window(read, plan, epoch, key, pool.submit, window)
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    if not errors:
        return key
    if isinstance(errors[0], XecError):
        return errors[0]
    raise errors[0]

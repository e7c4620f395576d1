"""The processes of a launched job, seen from their launcher: they hear its signals, and none is left behind."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

from xectool.engine.ranks.outcome import read_outcome
from xectool.errors.same_press import SAME_PRESS_S

_LOOK_EVERY_S: Final = 1.0  # a look goes through all processes of the machine
AGAIN_S: Final = 5.0  # a rank that was interrupted twice and stays waits in a call that no signal ends
# SIGUSR1 is what SLURM is usually asked to send before the time is up; a rank saves and ends on SIGTERM.
PASSED_ON: Final = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGUSR2: signal.SIGUSR2,
}


def rank_processes() -> list[psutil.Process]:
    """Return the live processes that this one has started as ranks."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "xectool" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


class ForwardedSignals:
    """While entered, signals that ask for an end or a checkpoint go to all ranks, which agree on the step.

    Attributes:
        interrupted: Whether one asked for an end.
        deadline: When ranks that are left are to be ended, on the monotonic clock; infinite before a second Ctrl-C.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self.deadline = math.inf
        self._pressed_at = -math.inf
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> ForwardedSignals:
        if threading.current_thread() is threading.main_thread():
            # What is ignored stays so, as nohup does with SIGHUP; but the ranks hear SIGINT also where a script's `&`
            # had it ignored, as a training of one process does.
            ignored = {number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN} - {signal.SIGINT}
            heard = [number for number in PASSED_ON if number not in ignored]
            self._previous = {number: signal.signal(number, self._pass_on) for number in heard}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted and number == signal.SIGINT:
            if time.monotonic() - self._pressed_at < SAME_PRESS_S:
                return
            self.deadline = min(self.deadline, time.monotonic() + AGAIN_S)
        self.interrupted = self.interrupted or number != signal.SIGUSR2
        self._note_press(number)
        processes = rank_processes()
        if self.interrupted and not processes:  # there is nobody yet, or no longer, to end by itself
            before = self._previous[number]
            if not callable(before):
                raise KeyboardInterrupt
            before(number, frame)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(PASSED_ON[signal.Signals(number)])
        self._note_press(number)  # looking for the ranks takes time, and what came meanwhile is heard now

    def _note_press(self, number: int) -> None:
        if number == signal.SIGINT:
            self._pressed_at = time.monotonic()


class SurvivorsEnded:
    """While entered, a thread ends the ranks that are left some time after one of them has died, or a second Ctrl-C.

    A rank that waits in a collective may notice neither for as long as the collective's time limit.

    Args:
        directory: Where ranks leave their outcome.
        nproc: Number of ranks.
        grace_s: Time they are given to end by themselves when one has died.
        signals: Knows whether somebody cannot wait any longer.

    Attributes:
        ended: Processes that had to be ended.
    """

    def __init__(self, directory: Path, nproc: int, grace_s: float, signals: ForwardedSignals) -> None:
        self.ended: set[int] = set()
        self._directory, self._nproc, self._grace_s, self._signals = directory, nproc, grace_s, signals
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xectool-survivors", daemon=True)

    def __enter__(self) -> SurvivorsEnded:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._end(rank_processes())  # also when the launcher itself fails

    def _run(self) -> None:
        seen, started, since = False, False, 0.0
        while not self._stop.wait(_LOOK_EVERY_S):
            left = rank_processes()
            if time.monotonic() > self._signals.deadline:
                self._end(left)
            # all begin within moments: one may be gone again before the first look
            started, seen = started or seen or len(left) == self._nproc, bool(left)
            if not started or not self._lost(left):
                since = 0.0
                continue
            since = since or time.monotonic()
            if time.monotonic() - since > self._grace_s:
                self._end(left)

    def _lost(self, left: list[psutil.Process]) -> bool:
        """Return whether more ranks are gone than have left an outcome; one may hang after it has left its own."""
        outcomes, alive = map(partial(read_outcome, self._directory), range(self._nproc)), {item.pid for item in left}
        ended = [outcome for outcome in outcomes if outcome and outcome["pid"] not in alive]
        return len(left) < self._nproc - len(ended)

    def _end(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            self.ended.add(process.pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

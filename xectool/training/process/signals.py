"""Ask the loop to stop at the next step boundary instead of dying in the middle of a step."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Final

from xectool.errors.same_press import SAME_PRESS_S

NO_SIGNAL: Final = 0
"""Stands for a request that came by the control of the run."""
_HEARD: Final = (
    b"\nSIGINT: the run saves and ends at the next step; another SIGINT, a second after it, ends it at once, "
    b"without saving\n"
)


class StopRequest:
    """Turns the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP into a request; a second SIGINT interrupts at once.

    One that comes within `SAME_PRESS_S` of another is the same once more.

    SIGUSR1 is what batch scripts usually ask SLURM for before the time is up (``#SBATCH --signal=USR1@120``), SIGHUP
    comes where the terminal is closed, and stays ignored under ``nohup``.

    Only the main thread can own signal handlers; elsewhere the request stays unset.

    Attributes:
        signal_number: Number of the signal; None before one.
        asked_by: Who asked otherwise than by a signal, and when; empty for none.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.asked_by = ""
        self._pressed_at = -math.inf
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal asked the run to stop."""
        return self.signal_number is not None

    @property
    def name(self) -> str:
        """Name of the signal, or ``ctl stop``; empty where another rank was asked."""
        if self.signal_number is None:
            return ""
        return signal.Signals(self.signal_number).name if self.signal_number else "ctl stop"

    def ask(self, by: str) -> None:
        """Ask as a signal would, from any thread; ``by`` says who does."""
        if self.signal_number is None:
            self.asked_by, self.signal_number = by, NO_SIGNAL

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                self._previous[number] = signal.signal(number, self._handle)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                self._previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # what ends the run would not know a press again
            time.sleep(max(0.0, self._pressed_at + SAME_PRESS_S - time.monotonic()))
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            if time.monotonic() - self._pressed_at < SAME_PRESS_S:
                return
            raise KeyboardInterrupt
        self.signal_number = number
        if number == signal.SIGINT:
            self._pressed_at = time.monotonic()
            _acknowledge()


def _acknowledge() -> None:
    """Tell who pressed the keys that they were heard: a step that compiles lasts minutes.

    A handler interrupts whatever is being written, so this goes past the buffers, which are not reentrant.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):  # closed, replaced or none
        os.write(sys.stderr.fileno(), _HEARD)

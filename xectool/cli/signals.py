"""Signals that end a command as Ctrl-C does: no half-written files, and exit code 130."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

# Ctrl-C, what a batch system ends a job with, and what it is usually asked to send some time before.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_EARLY: Final[list[int]] = []


def note_early() -> None:
    """From now on keep in mind what asks for an end; SIGUSR2 asks for a checkpoint, and there is nothing to save yet.

    To be called first: the command line takes a second to load, and a signal would end the process meanwhile.
    """
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # what is ignored stays so: nohup does that
            signal.signal(number, _note)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)


def hear() -> None:
    """From now on raise `KeyboardInterrupt` at what asks for an end, and at once where that has come before."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    if _EARLY:
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    _EARLY.append(number)

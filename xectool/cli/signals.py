"""Signals that end a command as Ctrl-C does: no half-written files, and exit code 130."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Final

from xectool.errors.same_press import SAME_PRESS_S

# Ctrl-C, what a batch system ends a job with, what it is usually asked to send some time before, a closed terminal.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_EARLY: Final[list[int]] = []
_LOADER: Final = "<frozen importlib._bootstrap>"
_AGAIN_S: Final = 0.1
_PRESSED_AT: Final = [-math.inf]


def note_early() -> None:
    """From now on keep in mind what asks for an end; SIGUSR2 asks for a checkpoint, and there is nothing to save yet.

    To be called first: the command line takes a second to load, and a signal would end the process meanwhile.
    """
    _install(lambda number, frame: _EARLY.append(number))
    signal.signal(signal.SIGUSR2, _pass)


def hear() -> None:
    """From now on raise `KeyboardInterrupt` at what asks for an end, and at once where that has come before."""
    _install(_interrupt)
    if _EARLY:
        _interrupt(_EARLY[0], None)


def ignore() -> None:
    """Let nothing that `hear` hears interrupt the last words of a command, nor Python while it ends."""
    for number in _ENDING:
        if signal.getsignal(number) in (_interrupt, _pass):
            signal.signal(number, _pass)
            signal.signal(number, signal.SIG_IGN)


def _install(handler: signal._HANDLER) -> None:
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # what is ignored stays so: nohup does that
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, once unless it is Ctrl-C a second later, and never while a module is loaded.

    There it made torch fail with other errors, and one that passes through ``exec`` has Python end itself by SIGINT.
    """
    if _is_loading(frame):
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    if time.monotonic() - _PRESSED_AT[0] < SAME_PRESS_S:
        return
    _PRESSED_AT[0] = time.monotonic()
    for other in _ENDING[1:]:  # a batch system sends one to all, and a launcher passes it on
        if signal.getsignal(other) is not signal.SIG_IGN:
            signal.signal(other, _pass)
    raise KeyboardInterrupt


def _pass(number: int, frame: FrameType | None) -> None:
    """Do nothing; Python complains of a signal that came just before it is ignored."""


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _LOADER:
            return True
        frame = frame.f_back
    return False

"""G25 and G31: signals that ask for stacks or a checkpoint, no core file, stacks of a crash."""

from __future__ import annotations

import faulthandler
import resource
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TextIO

from xectool.config.guards import GuardsConfig
from xectool.data.worker_process import STACKS_SIGNAL


class CrashStacks:
    """While entered, a crash or SIGQUIT writes the stacks of all threads to a file, and no core file is left.

    Outside of the loop, where a `StopRequest` and a `SaveRequest` wait for them, SIGUSR1 interrupts as SIGTERM does, so
    that a batch system queues the job again, and SIGUSR2 is ignored: there is nothing to save.

    Args:
        path: The file, such as ``rank0000.stacks``.
        config: The guards section.
    """

    def __init__(self, path: Path, config: GuardsConfig) -> None:
        self.path = path
        self._core = config.active("G31")
        self._stack = ExitStack()

    def __enter__(self) -> CrashStacks:
        stream = self._stack.enter_context(self.path.open("a", encoding="utf-8"))
        if self._core:
            self._forbid_core(stream)
        if threading.current_thread() is threading.main_thread():
            faulthandler.register(STACKS_SIGNAL, stream, all_threads=True)
            self._stack.callback(faulthandler.unregister, STACKS_SIGNAL)
            if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # the command line has a handler of its own
                previous = signal.signal(signal.SIGUSR1, signal.default_int_handler)
                self._stack.callback(signal.signal, signal.SIGUSR1, previous)
            self._stack.callback(signal.signal, signal.SIGUSR2, signal.signal(signal.SIGUSR2, signal.SIG_IGN))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        if self.path.exists() and not self.path.stat().st_size:
            self.path.unlink()

    def _forbid_core(self, stream: TextIO) -> None:
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, limits[1]))
        self._stack.callback(resource.setrlimit, resource.RLIMIT_CORE, limits)
        was_enabled = faulthandler.is_enabled()
        faulthandler.enable(stream, all_threads=True)
        self._stack.callback(faulthandler.enable if was_enabled else faulthandler.disable)


class SaveRequest:
    """While entered, SIGUSR2 asks for a checkpoint at the next step boundary.

    Only the main thread can own signal handlers; elsewhere nothing is ever asked for.
    """

    def __init__(self) -> None:
        self._asked = False
        self._stack = ExitStack()

    def __enter__(self) -> SaveRequest:
        if threading.current_thread() is threading.main_thread():
            previous = signal.signal(signal.SIGUSR2, self._handle)
            self._stack.callback(signal.signal, signal.SIGUSR2, previous)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def take(self) -> bool:
        """Return whether a checkpoint was asked for since the last time."""
        asked, self._asked = self._asked, False
        return asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

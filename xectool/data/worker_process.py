"""What makes a loader process a good child: it dies with its parent, has a name, and says where it stands."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any, Final

from xectool.runlog.passed_on import pass_on_of_rank
from xectool.runlog.process import end_with_parent
from xectool.runlog.worker_slots import SlotRange, stacks_path

COMM: Final = "xectool-read"
"""Name of a loader process in ``/proc/PID/comm`` and in ``ps``; at most 15 characters."""
STACKS_SIGNAL: Final = signal.SIGQUIT
"""As of Java and Go: writes the stacks of all threads; SIGUSR1 and SIGUSR2 are what batch systems send."""
BATCH_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""What comes to every process of a job, or of a terminal that is closed."""
_PR_SET_NAME: Final = 15  # linux/prctl.h
_SOCKET_OF_SERVER: Final = "pymp-01234567/listener-01234567"
"""Form of the name that the fork server's socket has below the directory for temporary files."""


def become_loader(slots: SlotRange | None) -> None:
    """Prepare this process; to be called first, from its main thread.

    One that is stuck in a read would otherwise outlive a killed trainer for ever. The kernel kills it when the process
    it came from is gone; that may be a fork server, which itself lives as long as its children hold a pipe, so a thread
    waits for the trainer as well.

    Args:
        slots: Where its threads note what they read; the stacks lie beside.
    """
    # The trainer decides what an interrupt means, and what a batch system says to every process before the time is up:
    # it may need another batch until it can save.
    for number in (signal.SIGINT, *BATCH_SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BATCH_SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, COMM.encode(), 0, 0, 0)
    end_with_parent()
    trainer = multiprocessing.parent_process()
    if trainer is not None:
        threading.Thread(target=_end_with, args=(trainer,), name="xectool-parent", daemon=True).start()
    pass_on_of_rank()
    if slots is not None:
        _write_stacks_when_asked(stacks_path(slots.path))


def start_deaf(process: Any, uses_server: bool) -> None:
    """Start a process that will become a loader, with the signals of a batch system blocked until it has.

    The fork server begins with the first one and keeps them blocked: all loaders would end with it.

    Args:
        process: The process.
        uses_server: Whether it is started through a fork server or resource tracker, and not forked from this one.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BATCH_SIGNALS)
    try:
        if uses_server:
            _place_socket()
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, BATCH_SIGNALS)  # it has unblocked SIGTERM
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _place_socket() -> None:
    """Have the fork server put its socket where one can be: ``TMPDIR`` may be too long, or on no local disk."""
    chosen = tempfile.tempdir
    for place in (tempfile.gettempdir(), "/tmp"):
        if _takes_socket(Path(place)):
            tempfile.tempdir = place
            try:
                util.get_temp_dir()  # made once; the server takes it from here
            finally:
                tempfile.tempdir = chosen
            return


def _takes_socket(place: Path) -> bool:
    path = place / f"{secrets.token_hex(len(_SOCKET_OF_SERVER))[: len(_SOCKET_OF_SERVER)]}"
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(path))
            path.unlink()
    except OSError:
        return False
    return True


def _end_with(trainer: Any) -> None:
    trainer.join()
    os.kill(os.getpid(), signal.SIGKILL)  # nothing here is worth an orderly end, and a stuck thread allows none


def _write_stacks_when_asked(path: Path) -> None:
    try:
        stream = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:  # the run directory is gone: its stacks are lost, events are not
        return
    faulthandler.enable(stream, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, stream, all_threads=True)

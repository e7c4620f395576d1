"""Which rank of a launched job ended before the others, which notice it and fail."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Final

import psutil

from xectool.engine.ranks.processes import rank_processes

_LOOK_EVERY_MS: Final = 200


class FirstEnd:
    """While entered, a thread watches the ranks as processes; only on Linux, elsewhere nothing is known.

    Args:
        nproc: Number of ranks.

    Attributes:
        ended: Pid of each rank that was among the first to end.
    """

    def __init__(self, nproc: int) -> None:
        self.ended: dict[int, int] = {}
        self._nproc = nproc
        self._ranks: dict[int, tuple[int, int]] = {}  # of a descriptor
        self._poll = select.poll()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xectool-first-end", daemon=True)

    def __enter__(self) -> FirstEnd:
        if hasattr(os, "pidfd_open"):
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for descriptor in self._ranks:
            os.close(descriptor)

    def _run(self) -> None:
        while not self._stop.is_set() and not self.ended:
            if len(self._ranks) < self._nproc:
                self._find()
            gone = self._poll.poll(_LOOK_EVERY_MS) if self._ranks else []
            self.ended = dict(self._ranks[descriptor] for descriptor, _ in gone)
            if not self._ranks:
                self._stop.wait(_LOOK_EVERY_MS / 1e3)

    def _find(self) -> None:
        known = {pid for _, pid in self._ranks.values()}
        for process in rank_processes():
            if process.pid not in known:
                with contextlib.suppress(psutil.Error, OSError, ValueError, KeyError):
                    rank = int(process.environ()["RANK"])
                    descriptor = os.pidfd_open(process.pid)
                    self._ranks[descriptor] = rank, process.pid
                    self._poll.register(descriptor, select.POLLIN)

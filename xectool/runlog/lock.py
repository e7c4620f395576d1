"""A lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


class ProcessLock:
    """Lets one process at a time hold ``path``; the kernel frees it when that process ends, however it ends.

    POSIX record locks are used because children do not inherit them: a data worker that outlives a killed trainer
    must not keep the run locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self, timeout_s: float = 0.0, poll_s: float = 0.1) -> bool:
        """Return True once the lock is held, False where another process still holds it after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not self._try():
            if time.monotonic() >= deadline:
                self.release()
                return False
            time.sleep(poll_s)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return True

    def _try(self) -> bool:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not self._has_its_name():
            self.release()
            return self._try()
        return True

    def _has_its_name(self) -> bool:
        """Return whether ``path`` is the file that was locked: its holder may have removed it meanwhile."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return False

    def holder(self) -> int | None:
        """Return the pid that last took the lock, or None where nobody did."""
        try:
            return int(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def release(self) -> None:
        """Free the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ProcessLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

"""Memory that several processes write and read."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any


class SharedBuffer:
    """Anonymous shared memory that travels to a child process as a file descriptor.

    Not in ``/dev/shm``, whose size containers often limit to 64 MB: a child that writes beyond it dies of a bus error.

    Args:
        num_bytes: Size; pages are taken as they are written.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._descriptor = _anonymous_file()
        os.ftruncate(self._descriptor, num_bytes)
        self.memory = mmap.mmap(self._descriptor, num_bytes)

    def __getstate__(self) -> dict[str, Any]:
        # Only possible while a process is being started, which is the one time it is needed.
        from multiprocessing import reduction

        return {"num_bytes": self.num_bytes, "handle": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.num_bytes = state["num_bytes"]
        self._descriptor = state["handle"].detach()
        self.memory = mmap.mmap(self._descriptor, self.num_bytes)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("xectool-window")
    with tempfile.TemporaryFile(prefix="xectool-window-") as stream:
        return os.dup(stream.fileno())

"""Files whose space is taken when they are made, so that a later store into their mapping cannot hit a full disk."""

from __future__ import annotations

import os
from pathlib import Path


def create_preallocated(path: Path, num_bytes: int) -> int:
    """Create a private file of ``num_bytes`` zero bytes and return its descriptor.

    A store into the mapping of a sparse file kills the process with SIGBUS once the disk is full; with the blocks
    allocated here the disk says so now, as an error.

    Raises:
        OSError: The file exists, or the disk refuses; nothing is left behind.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd

"""Why the system refused to write, where that is not the disk: a limit on the size of a file."""

from __future__ import annotations

import errno
import resource
from typing import Final

LIFT: Final = "ulimit -f unlimited   # in a new shell, where this one may not"
"""What lifts the limit on the size of a file."""
TOO_LARGE: Final = "File too large"
"""How the system names it, with the free space of a disk that has enough."""


def size_limit(error: BaseException) -> str:
    """Return that no file may grow beyond a limit, where that is why a write was refused; else an empty string."""
    if not isinstance(error, OSError) or error.errno != errno.EFBIG:
        return ""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return f"{TOO_LARGE} for this file system"
    return f"{TOO_LARGE}: no file may grow beyond {limit / 1e6:.3g} MB here (ulimit -f)"

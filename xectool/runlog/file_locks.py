"""Which processes hold a lock on a file, as the kernel tells it; nothing is locked or waited for."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

LOCK_TABLE: Final = Path("/proc/locks")
_LINE: Final = re.compile(r"^\d+: (?:->\s*)?(?:POSIX|FLOCK|OFDLCK)\s+\w+\s+(READ|WRITE)\s+(-?\d+) (\S+)", re.MULTILINE)


def lock_holders(path: Path) -> dict[int, str]:
    """Return ``write`` or ``read`` by process that holds a lock on a sqlite file or its companions, writers first.

    Raises:
        OSError: The file does not exist.
    """
    inodes = {_inode_name(path.stat())}
    for suffix in ("-shm", "-wal"):  # in WAL mode the locks lie on the shared-memory file
        with contextlib.suppress(OSError):
            inodes.add(_inode_name(path.with_name(path.name + suffix).stat()))
    try:
        table = LOCK_TABLE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = [(int(pid), kind.lower()) for kind, pid, inode in _LINE.findall(table) if inode in inodes]
    holders: dict[int, str] = {}
    for pid, kind in sorted((item for item in found if item[0] > 0), key=lambda item: item[1] != "write"):
        holders.setdefault(pid, kind)
    return holders


def command_of(pid: int) -> str:
    """Return the command line of a process in one line, without passwords; empty where it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return re.sub(r"://[^/@\s]+@", "://***@", " ".join(" ".join(words).split()))


def _inode_name(facts: os.stat_result) -> str:
    return f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"

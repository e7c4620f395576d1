"""Who a process is, so that a reader can tell a live run from a dead one whose pid was given away again."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


@dataclass(frozen=True)
class ProcessIdentity:
    """One process on one boot of one host; ``start`` is its start time in clock ticks since boot."""

    pid: int
    start: int
    boot_id: str
    host: str


def boot_id() -> str:
    """Return the identity of the running kernel, or an empty string where the system does not tell."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""


def machine_mark() -> str:
    """Return eight characters for this machine until it starts again: several may have one name, or one kernel."""
    return hashlib.blake2b(f"{socket.gethostname()} {boot_id()}".encode(), digest_size=4).hexdigest()


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, 0 where it does not exist or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace", encoding="utf-8")  # a name may be any bytes
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The command name may hold spaces and brackets; the fields after its last bracket do not.
    values = text.rpartition(")")[2].split()
    return 0 if values[0] in ("Z", "X") else int(values[19])


def current_process() -> ProcessIdentity:
    """Return the identity of this process."""
    pid = os.getpid()
    return ProcessIdentity(pid, start_ticks(pid), boot_id(), socket.gethostname())


def is_alive(process: ProcessIdentity) -> bool | None:
    """Return whether a process still runs; None where it belongs to another host and cannot be seen from here."""
    if process.host != socket.gethostname():
        return None
    if process.boot_id != boot_id():
        return False
    return process.start > 0 and start_ticks(process.pid) == process.start


def end_with_parent(wanted: bool = True) -> None:
    """Have the kernel kill this process when the one that started it is gone, or no longer; only on Linux."""
    if sys.platform == "linux":
        number = signal.SIGKILL if wanted else 0
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since it started; -1 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), -1)


def oom_kills_since(before: int) -> int:
    """Return how many it has killed since it had killed so many; -1 where that is not known."""
    return oom_kills() - before if before >= 0 else -1


def who_killed(kills: int) -> str:
    """Return who has most likely sent a SIGKILL, as the end of a sentence, by what `oom_kills_since` says."""
    if not kills:
        return ", by somebody: the kernel has killed no process of this machine for lack of memory"
    seen = ": the kernel has killed processes for lack of it meanwhile" if kills > 0 else ""
    return f"; most likely the machine's memory ran out{seen}"


@dataclass(frozen=True)
class TreeMemory:
    """Memory of a process and all its descendants, and of it alone; ``children`` is -1 where the kernel lists none."""

    rss_bytes: int
    own_bytes: int
    children: int


def tree_memory(pid: int, aside: Container[int] = ()) -> TreeMemory:
    """Return the resident memory of a process tree, but for processes that are put aside with all below them.

    Pages of files are left out, as the kernel drops them where it needs memory: a cache of events read through its map
    becomes resident once. So are all that descendants share (such as buffers of a data loader), to count once. Costs
    two small reads a process, not a walk over all processes of the machine.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    own = resident_bytes(_read(f"/proc/{pid}/status"))
    total, count = own, 0
    if not Path("/proc/thread-self/children").exists():  # a kernel built without CONFIG_PROC_CHILDREN
        return TreeMemory(own, own, -1)
    waiting = _children(pid)
    while waiting:
        child = waiting.pop()
        if child in aside:
            continue
        resident, shared = _resident_pages(child)
        total, count = total + (resident - shared) * page, count + (resident > 0)
        waiting += _children(child)
    return TreeMemory(total, own, count)


def resident_bytes(status: bytes) -> int:
    """Return the resident memory by the text of ``/proc/PID/status``, without pages of files; 0 without such lines.

    Where a sandbox does not tell these apart, all of it.
    """
    words = status.split()
    if b"VmRSS:" not in words:
        return 0
    of_files = int(words[words.index(b"RssFile:") + 1]) if b"RssFile:" in words else 0
    return 1024 * (int(words[words.index(b"VmRSS:") + 1]) - of_files)


def _resident_pages(pid: int) -> tuple[int, int]:
    """Return resident and shared pages, zeros for a process that has just ended."""
    values = _read(f"/proc/{pid}/statm").split()
    return (int(values[1]), int(values[2])) if values else (0, 0)


def _read(path: str) -> bytes:
    """Return what the kernel says of a process, nothing where it has just ended."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _children(pid: int) -> list[int]:
    """Return the children of a process, none where it has just ended."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += [
                int(child)
                for child in Path(f"/proc/{pid}/task/{thread}/children")
                .read_text(encoding="utf-8", errors="replace")
                .split()
            ]
    return found

"""Limits of control groups on memory and cores, version 1 and 2: of the process's own group and of all above it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MOUNT = Path("sys/fs/cgroup")
_UNLIMITED_BYTES = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page


@dataclass(frozen=True)
class CgroupMemory:
    """Memory of one control group.

    Attributes:
        path: Its directory.
        limit_bytes: Most its processes may use together, None without a limit.
        used_bytes: What they use now, files in the page cache left out where that is known.
        oom_kills: Processes killed for lack of memory since the group was made.
    """

    path: str
    limit_bytes: int | None
    used_bytes: int
    oom_kills: int = 0

    @property
    def free_bytes(self) -> int | None:
        """What is left below the limit."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.used_bytes)


def cgroup_memory(root: Path = Path("/"), *, limited: bool = False) -> tuple[CgroupMemory, ...]:
    """Return the groups this process is in, innermost first.

    Args:
        root: Where ``proc`` and ``sys`` lie.
        limited: Return only those with a limit; of the others nothing but that is read.
    """
    found: dict[str, CgroupMemory] = {}
    for directory, version in _directories(root, "memory"):
        group = _read_v2(directory, limited) if version == 2 else _read_v1(directory, limited)
        if group is not None:
            found.setdefault(group.path, group)
    return tuple(found.values())


def usable_cores(root: Path = Path("/")) -> float:
    """Return how many cores this process may keep busy at once: those it may run on, or less by the quota of a group.

    Args:
        root: Where ``proc`` and ``sys`` lie.
    """
    cores = float(allowed_cpus())
    for directory, version in _directories(root, "cpu"):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        numbers = " ".join(_text(directory / name) for name in names).split()
        # "max" and -1 are no quota
        if len(numbers) == 2 and all(number.isdigit() and int(number) > 0 for number in numbers):
            cores = min(cores, int(numbers[0]) / int(numbers[1]))
    return cores


def allowed_cpus() -> int:
    """Return on how many CPUs this process may run, which is all that libraries count: they do not know of quotas."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # a system that binds no process


def num_cores(processes: int = 1) -> int:
    """Return how many threads or processes can compute at once, at least one.

    Args:
        processes: How many share the cores.
    """
    return max(1, int(usable_cores() / processes))


def _directories(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    own = {1: "/", 2: "/"}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            own[2] = path
        elif controller in controllers.split(","):
            own[1] = path
    # a container may see its own group as the root of the mount, whatever path the kernel tells
    for version, mount in ((2, root / _MOUNT), (2, root / _MOUNT / "unified"), (1, root / _MOUNT / controller)):
        group = PurePosixPath(own[version])
        for level in (group, *group.parents):
            yield mount / str(level).lstrip("/"), version


def _read_v2(directory: Path, limited: bool) -> CgroupMemory | None:
    limits = [_number(directory / name) for name in ("memory.max", "memory.high")]
    known = [limit for limit in limits if limit is not None]
    if (limited and not known) or not (directory / "memory.max").is_file():
        return None
    cache = _field(directory / "memory.stat", "inactive_file")
    used = max(0, (_number(directory / "memory.current") or 0) - cache)
    return CgroupMemory(
        str(directory), min(known) if known else None, used, _field(directory / "memory.events", "oom_kill")
    )


def _read_v1(directory: Path, limited: bool) -> CgroupMemory | None:
    limit = _number(directory / "memory.limit_in_bytes")
    if limit is None or (limited and limit >= _UNLIMITED_BYTES):
        return None
    cache = _field(directory / "memory.stat", "total_inactive_file")
    used = max(0, (_number(directory / "memory.usage_in_bytes") or 0) - cache)
    kills = _field(directory / "memory.oom_control", "oom_kill")
    return CgroupMemory(str(directory), limit if limit < _UNLIMITED_BYTES else None, used, kills)


def _field(path: Path, name: str) -> int:
    rows = (line.split() for line in _text(path).splitlines())
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == name and row[1].isdigit()), 0)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

"""Gathers the facts; the only place of this room that looks at the machine."""

from __future__ import annotations

import os
import platform as machine
import re
import resource
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from xectool.config.cgroups import cgroup_memory
from xectool.config.platform import Platform
from xectool.diagnosis.environment.facts import EnvironmentFacts, Limit, Place, SharedMemory, TorchFacts
from xectool.diagnosis.environment.git_facts import core_files, look_at_repository
from xectool.diagnosis.environment.places import TRACKER, caches, database_of, databases, look_at
from xectool.diagnosis.environment.secrets import shown
from xectool.diagnosis.environment.torch_facts import ask_torch

_LIMITS: Final = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "address space": resource.RLIMIT_AS,
    "core file size": resource.RLIMIT_CORE,
    "file size": resource.RLIMIT_FSIZE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
}
_TOTAL: Final = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Reach:
    """What is looked at.

    Attributes:
        cwd: Working directory.
        run_dir: Run directory, if one is given.
        tracking_uri: Tracking address, empty for that of the environment.
        root: Where ``proc``, ``sys`` and ``dev`` lie.
        ask_torch: Whether torch is started and asked.
    """

    cwd: Path
    run_dir: Path | None = None
    tracking_uri: str = ""
    root: Path = Path("/")
    ask_torch: bool = True


def gather(reach: Reach, environment: Mapping[str, str] | None = None) -> EnvironmentFacts:
    """Return the facts of this machine.

    Args:
        reach: What is looked at.
        environment: Variables; those of this process by default.
    """
    variables = dict(os.environ if environment is None else environment)
    torch = ask_torch() if reach.ask_torch else TorchFacts()
    platform = _platform(reach, variables)
    directories = [reach.cwd, *((reach.run_dir, reach.run_dir.parent) if reach.run_dir else ())]
    places = _places(reach, variables, torch, platform)
    near = (Path(place.path).parent for place in places if place.role == TRACKER)
    return EnvironmentFacts(
        platform=platform,
        python=machine.python_version(),
        pointer_bits=8 * struct.calcsize("P"),
        torch=torch,
        memory_total_bytes=_memory_total(reach.root),
        cgroups=cgroup_memory(reach.root),
        limits={name: Limit(*resource.getrlimit(number)) for name, number in _LIMITS.items()},
        shared_memory=_shared_memory(reach.root),
        places=places,
        environment=shown(variables),
        cxx=_compiler(variables),
        databases=databases((*directories, *near)),
        core_files=core_files(*directories),
        git=look_at_repository(reach.cwd),
    )


def _platform(reach: Reach, variables: Mapping[str, str]) -> Platform:
    found = Platform.detect()
    watched = {name: variables[name] for name in found.environment if name in variables}
    if reach.root == Path("/"):
        return replace(found, environment=watched)
    return replace(found, environment=watched, mounts=_mounts(reach.root))


def _mounts(root: Path) -> dict[str, str]:
    table = root / "proc/self/mounts"
    rows = (
        [line.split() for line in table.read_text(errors="replace", encoding="utf-8").splitlines()]
        if table.is_file()
        else []
    )
    return {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}


def _places(reach: Reach, variables: Mapping[str, str], torch: TorchFacts, platform: Platform) -> tuple[Place, ...]:
    wanted: list[tuple[str, Path]] = [("working directory", reach.cwd)]
    if reach.run_dir is not None:
        wanted.append(("run directory", reach.run_dir))
    wanted.append(("temporary directory", Path(variables.get("TMPDIR") or "/tmp")))
    database = database_of(reach.tracking_uri or variables.get("MLFLOW_TRACKING_URI", ""))
    if database is not None:
        wanted.append((TRACKER, reach.cwd / database))
    wanted += caches(variables, bool(torch.hip))
    return tuple(look_at(role, path, platform) for role, path in wanted)


def _memory_total(root: Path) -> int:
    table = root / "proc/meminfo"
    match = _TOTAL.search(table.read_text(encoding="utf-8")) if table.is_file() else None
    return int(match[1]) * 1024 if match else 0


def _shared_memory(root: Path) -> SharedMemory:
    path = root / "dev/shm"
    if not path.is_dir():
        return SharedMemory()
    usage = shutil.disk_usage(path)
    return SharedMemory(usage.total, usage.free)


def _compiler(variables: Mapping[str, str]) -> str:
    """Return the compiler inductor would take: CXX where it is set, else the usual ones."""
    chosen = variables.get("CXX", "").split()
    names = chosen[:1] or ["g++", "clang++", "c++"]
    return next((found for name in names if (found := shutil.which(name, path=variables.get("PATH")))), "")

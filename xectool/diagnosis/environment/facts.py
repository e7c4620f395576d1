"""What is known of a machine, its limits and its variables; gathered once, then only looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xectool.config.cgroups import CgroupMemory
from xectool.config.file_systems import is_in_memory, is_network
from xectool.config.platform import Platform

UNLIMITED = -1


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU as torch sees it."""

    index: int
    name: str
    total_bytes: int
    capability: str


@dataclass(frozen=True)
class TorchFacts:
    """What torch says of itself, in a process of its own.

    Attributes:
        version: Its version, empty where it is not installed.
        cuda: CUDA version it was built for, empty for a build without.
        hip: ROCm version it was built for, empty for a build without.
        devices: GPUs it can use.
        problem: Why it could not be asked.
    """

    version: str = ""
    cuda: str = ""
    hip: str = ""
    devices: tuple[DeviceFacts, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Place:
    """A directory or file that a run writes to.

    Attributes:
        role: What it is for: ``working directory``, ``tracking database``, ``cache TRITON_CACHE_DIR`` …
        path: Where it lies, links resolved.
        file_system: Type of the file system.
        exists: Whether it is there.
        writable: Whether this user may write there, or into the nearest directory above that exists.
        free_bytes: Free space, -1 where unknown.
    """

    role: str
    path: str
    file_system: str = ""
    exists: bool = True
    writable: bool = True
    free_bytes: int = -1

    @property
    def on_network(self) -> bool:
        """Whether the file system is shared between machines or lies outside of the kernel."""
        return is_network(self.file_system)

    @property
    def in_memory(self) -> bool:
        """Whether what is written there takes memory."""
        return is_in_memory(self.file_system)


@dataclass(frozen=True)
class Limit:
    """A limit of the process, -1 for none."""

    soft: int
    hard: int


@dataclass(frozen=True)
class SharedMemory:
    """Size and free space of /dev/shm; -1 where there is none."""

    total_bytes: int = -1
    free_bytes: int = -1


@dataclass(frozen=True)
class BigFile:
    """A file of a git repository, in the tree or only in its history."""

    path: str
    size_bytes: int
    in_history_only: bool = False


@dataclass(frozen=True)
class GitFacts:
    """The repository of the working directory; an empty root where there is none."""

    root: str = ""
    big_files: tuple[BigFile, ...] = ()


@dataclass(frozen=True)
class EnvironmentFacts:
    """All of it.

    Attributes:
        platform: Architecture, cores, memory, GPUs, versions, interfaces and mounts.
        python: Version of Python.
        pointer_bits: 64, or 32 for a Python that can address 4 GB.
        torch: What torch says of itself.
        memory_total_bytes: Memory of the machine.
        cgroups: Memory of the control groups, innermost first.
        limits: Limits of the process by name, as ``ulimit`` has them.
        shared_memory: /dev/shm.
        places: Where a run writes.
        environment: Variables that matter for training; values of secrets are hidden.
        cxx: Path of the C++ compiler, empty without one.
        databases: Tracking databases in reach.
        core_files: Core dumps in the working and run directory, with their size.
        git: The repository.
    """

    platform: Platform = field(default_factory=Platform)
    python: str = ""
    pointer_bits: int = 64
    torch: TorchFacts = field(default_factory=TorchFacts)
    memory_total_bytes: int = 0
    cgroups: tuple[CgroupMemory, ...] = ()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    places: tuple[Place, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cxx: str = ""
    databases: tuple[str, ...] = ()
    core_files: tuple[BigFile, ...] = ()
    git: GitFacts = field(default_factory=GitFacts)

    @property
    def num_nodes(self) -> int:
        """Machines of the job."""
        return max(self.number("SLURM_NNODES"), self.number("SLURM_JOB_NUM_NODES"), 1)

    @property
    def torch_version(self) -> tuple[int, int] | None:
        """Major and minor version of torch, None where it is not installed."""
        parts = (self.torch.version or self.platform.versions.get("torch", "")).split(".")
        return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None

    def number(self, name: str) -> int:
        """Return a variable as a whole number, 0 where it is none."""
        value = self.environment.get(name, "").strip()
        return int(value) if value.isdigit() else 0

    def is_on(self, name: str) -> bool:
        """Return whether a variable is set to something that means yes."""
        return self.environment.get(name, "").strip().lower() in ("1", "true", "yes", "on", "y", "t")

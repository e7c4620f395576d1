"""What rules may know about the machine; ``Platform.detect`` is the only place that looks."""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import psutil

from xectool.config.cgroups import cgroup_memory, num_cores
from xectool.config.file_systems import is_in_memory, is_network
from xectool.errors import counted

# Read by rules; nothing else of the environment is kept.
WATCHED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "LOCAL_WORLD_SIZE",
    "MIOPEN_DISABLE_CACHE",
    "MLFLOW_TRACKING_URI",
    "NCCL_SOCKET_IFNAME",
    "NCCL_TIMEOUT",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "SLURM_GPUS_ON_NODE",
    "TORCHDYNAMO_SUPPRESS_ERRORS",
    "WORLD_SIZE",
)
_GPU_DIRECTORY = Path("/proc/driver/nvidia/gpus")
_MOUNTS = Path("/proc/self/mounts")
_NODES = Path("/sys/devices/system/node")
_CACHE_BYTES = 480_000_000  # beside 320 MB of imports, half of what the older loader holds
_CACHE_PART = 16
_MIB = 1024 * 1024
_MEMORY_OF_THREADS = (4e9, 1e9)  # kept free, and taken by one compiling process
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
MAPPED_BYTES = 1_100_000_000
"""Address space that a training maps and never touches: libraries, heaps of its threads (measured, 7 threads)."""
NODE_MEMORY = "--mem"
ADDRESS_SPACE = f"ulimit -v less {MAPPED_BYTES / 1e9:g} GB that are mapped and never touched"


@dataclass(frozen=True)
class Platform:
    """Facts of one machine.

    Attributes:
        machine: Architecture, such as ``x86_64`` or ``aarch64``.
        cores: Cores this process may use, as `num_cores` counts them.
        memory_bytes: Memory this process may still take: of the machine, its control group, its job and its limits.
        memory_limit: What allows no more, as `memory_limits` names it.
        num_gpus: Visible GPUs.
        has_triton: Whether triton can be imported.
        versions: Installed version of each package a rule looks at; absent packages are left out.
        environment: The watched environment variables that are set.
        interfaces: Network interfaces.
        mounts: File-system type of each mount point.
    """

    machine: str = "x86_64"
    cores: int = 1
    memory_bytes: int = 8 * 10**9
    memory_limit: str = "MemAvailable"
    num_gpus: int = 0
    has_triton: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def detect(cls) -> Platform:
        """Return the facts of this machine, without importing torch."""
        environment = {name: os.environ[name] for name in WATCHED_VARIABLES if name in os.environ}
        limits = memory_limits()
        limit = min(limits, key=lambda name: limits[name])
        return cls(
            machine=platform.machine(),
            cores=num_cores(),
            memory_bytes=max(0, limits[limit]),
            memory_limit=limit,
            num_gpus=_num_gpus(environment.get("CUDA_VISIBLE_DEVICES")),
            has_triton=importlib.util.find_spec("triton") is not None,
            versions=_versions("torch", "mlflow"),
            environment=environment,
            interfaces=tuple(name for _, name in socket.if_nameindex()),
            mounts=_mounts(),
        )

    @property
    def is_arm(self) -> bool:
        """Whether the processor is a 64-bit ARM."""
        return self.machine.lower() in ("aarch64", "arm64")

    def of_rank(self, ranks: int) -> Platform:
        """Return this machine with the memory that each of so many processes on it may hold in all."""
        limits = memory_budgets(ranks)
        limit = min(limits, key=lambda name: limits[name])
        return replace(self, memory_bytes=limits[limit], memory_limit=limit)

    def version(self, package: str) -> tuple[int, int] | None:
        """Return major and minor version of a package, None where it is not installed or not a plain version."""
        parts = self.versions.get(package, "").split(".")
        return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None

    def file_system(self, path: str) -> str:
        """Return the type of the file system a path lies on, empty where it is not known."""
        absolute = os.path.abspath(path)
        holding = [point for point in self.mounts if _holds(point, absolute)]
        return self.mounts[max(holding, key=len)] if holding else ""

    def proposed_tracking_uri(self) -> str:
        """Return a tracking address to paste, with a remark: a database on a disk of this machine, or a server.

        >>> Platform(mounts={"/": "ext4", "/tmp": "tmpfs"}).proposed_tracking_uri()
        'sqlite:////var/tmp/mlruns.db'
        """
        kinds = {place: self.file_system(place) for place in ("/tmp", "/var/tmp")}
        local = [place for place, kind in kinds.items() if not is_network(kind)]
        lasting = [place for place in local if not is_in_memory(kinds[place])]
        if not local:
            return "http://HOST:5000   # your server"
        return f"sqlite:///{(lasting or local)[0]}/mlruns.db" + ("" if lasting else "   # in memory: lost at a reboot")


def _holds(mount_point: str, path: str) -> bool:
    return path == mount_point or path.startswith(mount_point.rstrip("/") + "/")


def available_memory(ranks: int = 1) -> int:
    """Return the bytes this process may still take: of the machine, its control group, its job and its limits.

    Args:
        ranks: Processes of the run on this machine, each of which takes as much.
    """
    return max(0, min(memory_limits(ranks).values()))


def compile_threads() -> int:
    """Return how many processes the compiler of a training starts here, each with about 1 GB.

    As many as ``TORCHINDUCTOR_COMPILE_THREADS`` says, or those that fit beside the training; PyTorch alone would start
    one for each core, up to 32.
    """
    return _number(COMPILE_THREADS) or fitting_compile_threads(num_cores(), available_memory())


def fitting_compile_threads(cores: int, free_bytes: int) -> int:
    """Return how many compiling processes fit beside a training: one to four."""
    kept, each = _MEMORY_OF_THREADS
    return max(1, min(4, cores, int((free_bytes - kept) / each)))


def most_mapped_bytes() -> int:
    """Return the most bytes of a cache of events that are read through a map, which is twice as fast as reading them.

    Its pages count as resident memory of this process; the kernel takes them back where it needs them.
    """
    return max(_CACHE_BYTES, available_memory() // _CACHE_PART)


def memory_budgets(ranks: int = 1) -> dict[str, int]:
    """Return every limit on the memory of this process by what sets it, in bytes that it may hold in all.

    Args:
        ranks: Processes of the run on this machine, each of which holds as much as this one does.
    """
    return memory_limits(ranks, _own_bytes())


def memory_limits(ranks: int = 1, own_bytes: int = 0) -> dict[str, int]:
    """Return every limit on the memory of this process by what sets it, in bytes that may still be taken.

    Args:
        ranks: Processes of the run on this machine, which share its memory.
        own_bytes: What each of them holds already, where that is to be counted in.
    """
    limits = {"MemAvailable": max(0, psutil.virtual_memory().available - _gpu_node_bytes())}
    for group in cgroup_memory(limited=True):
        if group.free_bytes is not None:
            limits[f"control group {group.path}"] = group.free_bytes
    limits = {name: size + ranks * own_bytes for name, size in limits.items()} | _job_memory()
    if ranks > 1:
        limits = {f"{name}, shared by {counted(ranks, 'rank')}": size // ranks for name, size in limits.items()}
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits[ADDRESS_SPACE] = max(0, address_space - MAPPED_BYTES)
    return limits


def _own_bytes() -> int:
    """Return the memory that this process alone holds; pages of files can be dropped, and count as available."""
    lines = _lines(Path("/proc/self/status"))
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def more_memory(limit: str, needed_bytes: float, ranks: int = 1) -> str:
    """Return the line after which a limit allows enough.

    Args:
        limit: As `memory_limits` names it, or `NODE_MEMORY` of a job that is still to be submitted.
        needed_bytes: What one rank needs.
        ranks: Processes of the run on this machine.
    """
    if limit == ADDRESS_SPACE:
        return f"ulimit -v {math.ceil((needed_bytes + MAPPED_BYTES) / 1024)}"
    needed_bytes *= ranks
    if limit.startswith(NODE_MEMORY):
        return f"{NODE_MEMORY} {math.ceil(needed_bytes / _MIB)}M"
    for name, (option, count) in _job_options().items():
        if limit.startswith(name):
            return f"sbatch {option}={math.ceil(needed_bytes / count / _MIB)}M JOB.sh"
    return (
        f"a machine or job with {needed_bytes / 1e9:.3g} GB of memory: no setting makes the rest of the process smaller"
    )


def _gpu_node_bytes() -> int:
    """Return the free bytes that the kernel counts as available and that are a GPU's own, as on Grace-Hopper.

    There the memory of the GPU is a node without processors; batches that spilled into it would leave the GPU less.
    """
    if not _GPU_DIRECTORY.is_dir():
        return 0
    lines = [line.split() for path in _NODES.glob("node*/meminfo") if _has_no_cpu(path) for line in _lines(path)]
    return sum(int(words[3]) * 1024 for words in lines if len(words) > 3 and words[2] == "MemFree:")


def _has_no_cpu(meminfo: Path) -> bool:
    return _lines(meminfo.with_name("cpulist")) == [""]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except OSError:
        return []


def _job_memory() -> dict[str, int]:
    """Return the memory on this node of a SLURM job; as it was asked for, one of three variables is set."""
    # 0 is all the memory of the node
    return {
        name if count == 1 else f"{name} x {count}": _number(name) * count * _MIB
        for name, (_, count) in _job_options().items()
        if _number(name)
    }


def _job_options() -> dict[str, tuple[str, int]]:
    """Return the option of ``sbatch`` that sets each variable, and how often it counts here."""
    cores = _number("SLURM_CPUS_ON_NODE") or _number("SLURM_CPUS_PER_TASK") or 1
    return {
        "SLURM_MEM_PER_NODE": ("--mem", 1),
        "SLURM_MEM_PER_CPU": ("--mem-per-cpu", cores),
        "SLURM_MEM_PER_GPU": ("--mem-per-gpu", _number("SLURM_GPUS_ON_NODE") or 1),
    }


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0


def _num_gpus(visible: str | None) -> int:
    present = len(list(_GPU_DIRECTORY.iterdir())) if _GPU_DIRECTORY.is_dir() else 0
    if visible is None:
        return present
    chosen = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return min(present, len(chosen))


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _mounts() -> dict[str, str]:
    if not _MOUNTS.is_file():
        return {}
    fields = [line.split() for line in _MOUNTS.read_text(errors="replace", encoding="utf-8").splitlines()]
    return {parts[1].replace("\\040", " "): parts[2] for parts in fields if len(parts) > 2}

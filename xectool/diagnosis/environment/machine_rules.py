"""Rules on versions, devices, memory and limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis.environment.facts import EnvironmentFacts, Limit
from xectool.errors import counted
from xectool.findings import Finding
from xectool.rules import Rule

LEAST_MEMORY_BYTES: Final = 4 * 10**9
LEAST_SHARED_BYTES: Final = 10**9
LEAST_FILES: Final = 1024
LEAST_PROCESSES: Final = 512
_SUPPORTED: Final = ("x86_64", "amd64", "aarch64", "arm64")
_GIGABYTE: Final = 1e9


class TorchIsSafe(Rule[EnvironmentFacts]):
    """Older versions of torch run code from checkpoints even where they promise not to."""

    code = "XT-ENV-TORCH"
    title = "torch is at least 2.10 and keeps weights_only"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error below 2.6 and where the protection is switched off, a warning below 2.10."""
        version, fix = facts.torch_version, "pip install 'torch>=2.10'"
        shown = facts.torch.version or facts.platform.versions.get("torch", "")
        if version is not None and version < (2, 6):
            yield self.error("torch", f"torch {shown}: loading a checkpoint may run its code (CVE-2025-32434)", fix)
        elif version is not None and version < (2, 10):
            yield self.warning("torch", f"torch {shown}: weights_only can be circumvented (CVE-2026-24747)", fix)
        name = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
        if facts.is_on(name):
            yield self.error(
                name, f"{name} is set: every torch.load runs whatever code the file holds", f"unset {name}"
            )


class TorchAnswers(Rule[EnvironmentFacts]):
    """torch is installed, can be imported, and sees the GPUs that are there."""

    code = "XT-ENV-DEVICES"
    title = "torch can be imported and sees the GPUs of the machine"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error where torch does not answer, where it sees none of the GPUs, or where they are hidden."""
        torch, present = facts.torch, facts.platform.num_gpus
        if torch.problem:
            yield self.error("torch", f"torch cannot be used: {torch.problem}", "pip install --upgrade torch")
        elif torch.version and present and not torch.devices:
            built = "is built without CUDA" if not (torch.cuda or torch.hip) else "finds no usable driver"
            problem = f"{present} GPU{'s' if present > 1 else ''} on this machine, and torch {torch.version} {built}"
            yield self.error("torch", problem, "pip install --upgrade torch")
        hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            yield self.info(
                "CUDA_VISIBLE_DEVICES", f"CUDA_VISIBLE_DEVICES='{hidden}' hides every GPU", "unset CUDA_VISIBLE_DEVICES"
            )


class ArchitectureIsKnown(Rule[EnvironmentFacts]):
    """torch and triton have builds for 64-bit x86 and ARM."""

    code = "XT-ENV-ARCH"
    title = "A 64-bit Python on an architecture that torch is built for"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error for a 32-bit Python, a warning for another architecture."""
        fix = 'python -c "import platform; print(platform.machine())"'
        if facts.pointer_bits < 64:
            yield self.error("python", f"Python {facts.python} is a {facts.pointer_bits}-bit build: 4 GB at most", fix)
        if facts.platform.machine.lower() not in _SUPPORTED:
            yield self.warning("python", f"architecture {facts.platform.machine}: no builds of torch for it", fix)


class MemoryIsEnough(Rule[EnvironmentFacts]):
    """What a process may take is the smallest of several limits, and rarely what the machine has."""

    code = "XT-ENV-MEMORY"
    title = "At least 4 GB of memory are left below every limit"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning where little is left, a note where a limit lies below the machine's memory."""
        fix = "xectool train CONFIG --set data.chunksize=4096 --set data.num_workers=0"
        left, where = facts.platform.memory_bytes, "memory"
        for group in facts.cgroups:
            if group.free_bytes is not None and group.free_bytes < left:
                left, where = group.free_bytes, group.path
        if left < LEAST_MEMORY_BYTES:
            yield self.warning(where, f"{left / _GIGABYTE:.2f} GB of memory are left for this process", fix)
        limits = [group for group in facts.cgroups if group.limit_bytes is not None]
        if limits and facts.memory_total_bytes:
            tightest = min(limits, key=lambda group: group.limit_bytes or 0)
            limit, total = tightest.limit_bytes or 0, facts.memory_total_bytes
            if limit < total:
                problem = (
                    f"the control group allows {limit / _GIGABYTE:.1f} GB of the machine's {total / _GIGABYTE:.1f} GB"
                )
                yield self.info(tightest.path, problem, fix)


class NothingWasKilled(Rule[EnvironmentFacts]):
    """The kernel counts what it kills for lack of memory."""

    code = "XT-ENV-OOM-KILLS"
    title = "No process of these control groups was killed for lack of memory"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning with the count of the innermost group that was hit."""
        hit = next((group for group in facts.cgroups if group.oom_kills), None)
        if hit is not None:
            problem = f"killed for lack of memory: {counted(hit.oom_kills, 'process')} of this control group"
            yield self.warning(
                hit.path, problem, "xectool train CONFIG --set data.chunksize=4096 --set data.num_workers=0"
            )


class LimitsAllowTraining(Rule[EnvironmentFacts]):
    """Each file, socket, reader and thread counts against a limit of the process."""

    code = "XT-ENV-FILES"
    title = "The process may open enough files"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for a low number of open files."""
        limit = facts.limits.get("open files")
        if limit is not None and 0 <= limit.soft < LEAST_FILES:
            most = limit.hard if 0 <= limit.hard < 4 * LEAST_FILES else 4 * LEAST_FILES
            yield self.warning("ulimit -n", f"{limit.soft} open files are allowed", f"ulimit -n {most}")


class ProcessesAreAllowed(Rule[EnvironmentFacts]):
    """Readers, compile workers and OpenMP threads count as processes."""

    code = "XT-ENV-PROCESSES"
    title = "The user may start enough processes and threads"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for a low number."""
        limit = facts.limits.get("processes", Limit(-1, -1))
        if 0 <= limit.soft < LEAST_PROCESSES:
            yield self.warning(
                "ulimit -u",
                f"{limit.soft} processes and threads are allowed",
                "export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1",
            )


class SharedMemoryIsEnough(Rule[EnvironmentFacts]):
    """Containers often give /dev/shm 64 MB, and dead jobs leave files there."""

    code = "XT-ENV-SHM"
    title = "/dev/shm has at least 1 GB free"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning where it is small or full."""
        shared = facts.shared_memory
        if 0 <= shared.total_bytes < LEAST_SHARED_BYTES:
            problem = f"/dev/shm has {shared.total_bytes / 1e6:.0f} MB in all: loaders of PyTorch end in a bus error"
            yield self.warning("/dev/shm", problem, "df -h /dev/shm   # docker run --shm-size=8g")
        elif 0 <= shared.free_bytes < LEAST_SHARED_BYTES:
            problem = f"/dev/shm has {shared.free_bytes / 1e6:.0f} MB free of {shared.total_bytes / 1e6:.0f} MB"
            yield self.warning("/dev/shm", problem, "df -h /dev/shm   # files of dead jobs may lie there")


class JobFitsTheNode(Rule[EnvironmentFacts]):
    """The batch system's own numbers agree with what the process gets."""

    code = "XT-ENV-SLURM"
    title = "SLURM gives the cores, GPUs and memory the job counts on"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for fewer cores, fewer GPUs or little memory."""
        wanted, cores = facts.number("SLURM_CPUS_PER_TASK"), facts.platform.cores
        if wanted > cores:
            problem = (
                f"SLURM_CPUS_PER_TASK is {wanted}, and this process may use {cores} core{'s' if cores > 1 else ''}"
            )
            yield self.warning("SLURM_CPUS_PER_TASK", problem, f"srun --cpus-per-task={wanted} COMMAND")
        tasks, gpus = facts.number("SLURM_NTASKS_PER_NODE"), len(facts.torch.devices)
        if facts.number("SLURM_GPUS_ON_NODE") and gpus and tasks > gpus:
            problem = f"{tasks} tasks on this node and {gpus} visible GPU{'s' if gpus > 1 else ''}"
            yield self.warning("SLURM_NTASKS_PER_NODE", problem, f"sbatch --gres=gpu:{tasks} job.sh")
        memory = facts.number("SLURM_MEM_PER_NODE") * 1024**2
        if 0 < memory < LEAST_MEMORY_BYTES:
            problem = f"SLURM_MEM_PER_NODE allows {memory / _GIGABYTE:.1f} GB"
            yield self.warning("SLURM_MEM_PER_NODE", problem, "sbatch --mem=64G job.sh")


class CompilerIsThere(Rule[EnvironmentFacts]):
    """torch.compile needs a C++ compiler for the CPU and triton for a GPU."""

    code = "XT-ENV-TOOLCHAIN"
    title = "torch.compile finds what it needs"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for what is missing: automatic mode then trains eagerly."""
        if not facts.cxx:
            chosen = facts.environment.get("CXX", "")
            named = f"CXX={chosen} is not there" if chosen else "neither g++ nor clang++ is found"
            yield self.warning("CXX", f"no working C++ compiler: {named}", "sudo apt-get install g++")
        if facts.torch.devices and not facts.platform.has_triton:
            yield self.warning("triton", "a GPU, and triton cannot be imported", "pip install triton")


MACHINE_RULES: tuple[Rule[EnvironmentFacts], ...] = (
    TorchIsSafe(),
    TorchAnswers(),
    ArchitectureIsKnown(),
    MemoryIsEnough(),
    NothingWasKilled(),
    JobFitsTheNode(),
    LimitsAllowTraining(),
    ProcessesAreAllowed(),
    SharedMemoryIsEnough(),
    CompilerIsThere(),
)

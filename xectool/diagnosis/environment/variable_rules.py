"""Rules on environment variables: read by nobody, harmful, contradicting, or naming what is not here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis.environment.facts import EnvironmentFacts
from xectool.errors import counted, did_you_mean
from xectool.findings import Finding
from xectool.rules import Rule

# Found neither in torch 2.13 nor in the documentation of NCCL and gloo, though they are recommended.
UNREAD: Final = {
    "NCCL_TIMEOUT": "xectool train CONFIG --set distributed.timeout_s=1800",
    "GLOO_TIMEOUT": "xectool train CONFIG --set distributed.timeout_s=1800",
    "TORCH_NCCL_TIMEOUT": "xectool train CONFIG --set distributed.timeout_s=1800",
    "TORCH_DISTRIBUTED_TIMEOUT": "xectool train CONFIG --set distributed.timeout_s=1800",
}
RENAMED: Final = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
}
OLD_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
NEW_ALLOCATOR: Final = "PYTORCH_ALLOC_CONF"
ALLOCATOR_OPTIONS: Final = (
    "backend", "expandable_segments", "garbage_collection_threshold", "graph_capture_record_stream_reuse",
    "max_non_split_rounding_mb", "max_split_size_mb", "per_process_memory_fraction", "pinned_max_cached_size_mb",
    "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "pinned_use_background_threads",
    "pinned_use_cuda_host_register", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
    "roundup_bypass_threshold_mb", "roundup_power2_divisions",
)  # fmt: skip
_LEAST_SPLIT_MB: Final = 20
_RENAMED_IN: Final = (2, 9)
_BOTH_ALLOCATORS: Final = f"export {NEW_ALLOCATOR}=expandable_segments:True {OLD_ALLOCATOR}=expandable_segments:True"
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_JEMALLOC_KEEPS: Final = "MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1"
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class VariablesAreRead(Rule[EnvironmentFacts]):
    """A setting that nothing reads gives a false sense of safety."""

    code = "XT-ENV-UNREAD"
    title = "Every variable that is set is read by something"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for names that have no effect, a note for older names."""
        for name, fix in UNREAD.items():
            if name in facts.environment:
                value = facts.environment[name]
                yield self.warning(
                    name, f"{name}={value} has no effect: nothing reads it; use distributed.timeout_s", fix
                )
        for name, new in RENAMED.items():
            if name in facts.environment and new not in facts.environment:
                value = facts.environment[name]
                yield self.info(name, f"{name} is the older name of {new}", f"export {new}={value}")


class AllocatorIsSetOnce(Rule[EnvironmentFacts]):
    """The variable was renamed, and some versions look at one name only."""

    code = "XT-ENV-ALLOCATOR"
    title = "The allocator's variables agree and are understood"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield what is contradictory, refused, ignored by this version, or advisable."""
        old, new = facts.environment.get(OLD_ALLOCATOR), facts.environment.get(NEW_ALLOCATOR)
        if old is not None and new is not None and old != new:
            yield self.warning(
                NEW_ALLOCATOR, f"{NEW_ALLOCATOR}={new} and {OLD_ALLOCATOR}={old} contradict", _BOTH_ALLOCATORS
            )
        for name, value in ((OLD_ALLOCATOR, old), (NEW_ALLOCATOR, new)):
            yield from self._options(name, value or "")
        yield from self._name(facts, old, new)

    def _options(self, name: str, value: str) -> Iterator[Finding]:
        for option in (item for item in value.split(",") if item.strip()):
            key, _, number = (part.strip() for part in option.partition(":"))
            if key not in ALLOCATOR_OPTIONS and not key.startswith("["):
                hint = did_you_mean(key, ALLOCATOR_OPTIONS) or f"known: {', '.join(ALLOCATOR_OPTIONS)}"
                yield self.warning(name, f"{name}: unknown option '{key}'; {hint}", _BOTH_ALLOCATORS)
            elif key == "max_split_size_mb" and number.isdigit() and int(number) <= _LEAST_SPLIT_MB:
                problem = f"{name}: max_split_size_mb:{number} is refused, it must be above {_LEAST_SPLIT_MB}"
                yield self.error(name, problem, _BOTH_ALLOCATORS)

    def _name(self, facts: EnvironmentFacts, old: str | None, new: str | None) -> Iterator[Finding]:
        version = facts.torch_version
        if version is None or (old is not None and new is not None):
            return
        if new is not None and version <= _RENAMED_IN:
            problem = (
                f"torch {facts.torch.version}: {NEW_ALLOCATOR} may be ignored, versions up to 2.9 read {OLD_ALLOCATOR}"
            )
            yield self.warning(NEW_ALLOCATOR, problem, f"export {OLD_ALLOCATOR}={new}")
        elif old is not None and version >= _RENAMED_IN:
            problem = f"{OLD_ALLOCATOR} was renamed {NEW_ALLOCATOR}; set both alike until no older torch is used"
            yield self.info(OLD_ALLOCATOR, problem, f"export {NEW_ALLOCATOR}={old}")
        elif old is None and new is None and facts.torch.devices:
            problem = "no allocator setting: expandable segments keep memory from falling into pieces"
            yield self.info(NEW_ALLOCATOR, problem, _BOTH_ALLOCATORS)


class HeapKeepsItsPages(Rule[EnvironmentFacts]):
    """A C library that returns freed memory between steps fetches the same pages again: up to half of a CPU's step."""

    code = "XT-ENV-MALLOC"
    title = "Memory that a step frees stays for the next one"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for jemalloc as it comes, a note where variables keep `train` from its own setting."""
        preloaded = facts.environment.get("LD_PRELOAD", "")
        if "jemalloc" in preloaded:
            if "decay_ms:-1" not in facts.environment.get("MALLOC_CONF", ""):
                problem = (
                    "jemalloc gives freed memory back while it trains: a step on the CPU takes up to twice as long"
                )
                yield self.warning("MALLOC_CONF", problem, f"export {_JEMALLOC_KEEPS}")
            return
        if "malloc" in preloaded:
            return
        tunables = facts.environment.get("GLIBC_TUNABLES", "")
        names = [name for name in facts.environment if name.startswith("MALLOC_")]
        names += ["GLIBC_TUNABLES"] if "malloc" in tunables else []
        if names and not facts.torch.devices:
            problem = f"{', '.join(names)}: xectool train leaves the C library as it is set; by itself it lets freed "
            problem += "memory stay for the next step, a sixth of a step on the CPU; tcmalloc does so under any setting"
            yield self.info(names[0], problem, f"unset {' '.join(names)}")


class NothingSlowsTheRun(Rule[EnvironmentFacts]):
    """Settings for debugging that were left on."""

    code = "XT-ENV-DEBUG"
    title = "No debugging variable is left on"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for each."""
        harm = {
            "CUDA_LAUNCH_BLOCKING": "waits after every kernel, several times slower",
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "asks the driver for every tensor, many times slower",
            "PYTORCH_NO_HIP_MEMORY_CACHING": "asks the driver for every tensor, many times slower",
        }
        for name, what in harm.items():
            if facts.is_on(name):
                yield self.warning(name, f"{name}={facts.environment[name]} {what}", f"unset {name}")
        name = "TORCH_DISTRIBUTED_DEBUG"
        if facts.environment.get(name, "").upper() == "DETAIL":
            problem = (
                f"{name}=DETAIL checks every collective: slow, and it has ended processes with a segmentation fault"
            )
            yield self.warning(name, problem, f"export {name}=INFO")
        name = "NCCL_DEBUG_SUBSYS"
        chosen = facts.environment.get(name, "").upper().split(",")
        if "ALL" in chosen or facts.environment.get("NCCL_DEBUG", "").upper() == "TRACE":
            yield self.warning(name, "NCCL writes every call to the log, gigabytes an hour", f"export {name}=INIT,COLL")


class CompileErrorsShow(Rule[EnvironmentFacts]):
    """Hidden compile errors leave parts of the model eager without a word."""

    code = "XT-ENV-SUPPRESS"
    title = "torch.compile is neither switched off nor silenced by a variable"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for silence, a note for switching off."""
        name = "TORCHDYNAMO_SUPPRESS_ERRORS"
        if facts.is_on(name):
            yield self.warning(name, f"{name}: compile failures are hidden, parts run eager", f"unset {name}")
        for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
            if facts.is_on(name):
                yield self.info(name, f"{name}: torch.compile does nothing", f"unset {name}")


class MiopenKeepsKernels(Rule[EnvironmentFacts]):
    """Without its cache MIOpen searches for kernels anew, 10-30 min, and may fail."""

    code = "XT-ENV-MIOPEN"
    title = "MIOpen keeps what it compiles"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error for a cache that is switched off; notes on modes whose meaning is often mistaken."""
        name = "MIOPEN_DISABLE_CACHE"
        if facts.is_on(name):
            yield self.error(name, f"{name}=1 prevents kernel caching; unset it", f"unset {name}")
        mode = facts.environment.get("MIOPEN_FIND_MODE", "")
        if mode in ("1", "NORMAL"):
            problem = f"MIOPEN_FIND_MODE={mode} is the full search: the first epoch takes 10-30 min longer"
            yield self.info("MIOPEN_FIND_MODE", problem, "export MIOPEN_FIND_MODE=2   # fast")


class InterfacesExist(Rule[EnvironmentFacts]):
    """A name that is not here ends the process group before it starts."""

    code = "XT-ENV-INTERFACE"
    title = "Network interfaces that are named exist on this host"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield an error that lists the interfaces that are here."""
        here = facts.platform.interfaces
        for name in _INTERFACES:
            value = facts.environment.get(name, "").strip()
            if not value or not here or value.startswith("^"):
                continue  # a caret excludes, which nothing can be missing for
            exact = value.startswith("=") or not name.startswith("NCCL")
            wanted = [item.strip() for item in value.lstrip("=").split(",") if item.strip()]
            missing = [
                item for item in wanted if not any(one == item if exact else one.startswith(item) for one in here)
            ]
            # NCCL takes a list as alternatives, gloo needs each of them
            if missing and (exact or len(missing) == len(wanted)):
                problem = f"{name}: interface {', '.join(missing)} not found; available: {', '.join(here)}"
                yield self.error(name, problem, f"unset {name}")


class ThreadsFitTheCores(Rule[EnvironmentFacts]):
    """More threads than cores, or every rank on all cores, make all of them wait."""

    code = "XT-ENV-THREADS"
    title = "OpenMP threads fit the cores of this process"

    def check(self, facts: EnvironmentFacts) -> Iterator[Finding]:
        """Yield a warning for too many, for no number, and for threads that spin while they wait."""
        cores = facts.platform.cores
        ranks = max(facts.number("LOCAL_WORLD_SIZE"), facts.number("SLURM_NTASKS_PER_NODE"), 1)
        share = max(1, cores // ranks)
        for name in _THREADS:
            value = facts.environment.get(name)
            if value is None:
                continue
            first = value.split(",")[0].strip()
            if not first.isdigit() or int(first) < 1:
                yield self.warning(name, f"{name}={value} is no number of threads", f"export {name}={share}")
            elif int(first) > cores:
                problem = f"{name}={value}, and this process may use {cores} core{'s' if cores > 1 else ''}"
                yield self.warning(name, problem, f"export {name}={share}")
        if "OMP_NUM_THREADS" not in facts.environment and ranks > 1 and cores > share:
            problem = f"OMP_NUM_THREADS is not set: each of {counted(ranks, 'rank')} takes all {cores} cores"
            yield self.warning("OMP_NUM_THREADS", problem, f"export OMP_NUM_THREADS={share}")
        if facts.environment.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
            problem = "OMP_WAIT_POLICY=ACTIVE: threads spin while they wait, which made a step nine times slower"
            yield self.warning("OMP_WAIT_POLICY", problem, "export OMP_WAIT_POLICY=PASSIVE")


VARIABLE_RULES: tuple[Rule[EnvironmentFacts], ...] = (
    VariablesAreRead(),
    AllocatorIsSetOnce(),
    HeapKeepsItsPages(),
    NothingSlowsTheRun(),
    CompileErrorsShow(),
    MiopenKeepsKernels(),
    InterfacesExist(),
    ThreadsFitTheCores(),
)

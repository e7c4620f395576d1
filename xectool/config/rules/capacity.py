"""Rules on memory and devices: they belong to the machine that trains, not to the one that edits the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xectool.config.platform import Platform, more_memory
from xectool.config.root import RunConfig
from xectool.config.rules.platform import Situation, integer
from xectool.errors import counted
from xectool.findings import Finding, Report
from xectool.rules import Rule, run_rules

BYTES_PER_EVENT = 4760 * 2 * 4
# Resident memory of a training process without tensors and loader (x86-64, torch 2.13 CPU, measured).
BASE_BYTES = 465_000_000
# One reader process; it loads no torch. 63 MB are its own, 110 resident with what it shares (measured).
READER_BYTES = 80_000_000
# What a CUDA driver maps on the host; not measured on a GPU.
GPU_HOST_BYTES = 1_500_000_000
SHUFFLED, AHEAD, GPU_DRIVER = "shuffling window", "windows read ahead", "driver of the GPU"
BATCHES, BATCHES_HELD = "batches", 3
_MEMORY_SHARE = 0.9
_MEMORY_WARNING = 0.8


class HostMemorySuffices(Rule[Situation]):
    """The shuffling window must fit the memory a rank may take."""

    code = "CFG-20"
    title = "The estimated host memory stays below the budget"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error above 90 % of the memory, a warning above 80 %."""
        data, available, limit = facts.config.data, facts.platform.memory_bytes, facts.platform.memory_limit
        terms = host_memory_bytes(facts.config, facts.events, on_gpu=not is_on_cpu(facts.config, facts.platform))
        total = sum(terms.values())
        if total <= _MEMORY_WARNING * available:
            return
        largest = max(terms, key=lambda name: terms[name])
        sizes = fitting_sizes(facts.config, terms, _MEMORY_WARNING * available)
        chunks = f" (data.chunksize {data.chunksize} x {BYTES_PER_EVENT} bytes)"
        report = self.error if total > _MEMORY_SHARE * available else self.warning
        yield report(
            "data.chunksize",
            f"estimated host RAM {total / 1e9:.3g} GB, available {available / 1e9:.3g} GB ({limit}); largest term: "
            f"{largest} {terms[largest] / 1e9:.1f} GB{chunks if largest in (SHUFFLED, AHEAD) else ''}",
            f"data.chunksize: {sizes['data.chunksize']}"
            if list(sizes) == ["data.chunksize"]
            else more_memory(limit, total / _MEMORY_WARNING, _ranks_here(facts)),
        )


class RanksHaveDevices(Rule[Situation]):
    """Each rank of a GPU run needs a GPU of its own."""

    code = "CFG-49"
    title = "As many GPUs are visible as ranks are started"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error where ranks would share a GPU; CPU runs have none to share."""
        config, gpus = facts.config, facts.platform.num_gpus
        ranks, on_cpu = _ranks_here(facts), is_on_cpu(facts.config, facts.platform)
        if ranks > max(1, gpus) and not on_cpu:
            yield self.error(
                "distributed.num_gpus",
                f"distributed.num_gpus: {counted(ranks, 'rank')} but {gpus} visible GPU{'s' if gpus != 1 else ''}",
                f"distributed.num_gpus: {max(1, gpus)}",
            )
        elif config.distributed.backend == "nccl" and on_cpu:
            yield self.error(
                "distributed.backend",
                "distributed.backend: nccl needs GPUs, and training.device runs on the CPU",
                "distributed.backend: gloo",
            )


def is_on_cpu(config: RunConfig, platform: Platform) -> bool:
    """Return whether a run trains on the CPU of a machine."""
    device = config.training.device
    return device == "cpu" or (device == "auto" and platform.num_gpus == 0)


def host_memory_bytes(config: RunConfig, events: int | None = None, on_gpu: bool = False) -> dict[str, float]:
    """Return the terms of the host memory a rank takes beside the tensors of its steps, in bytes.

    Args:
        config: The run.
        events: Events there are, where that is known: no window holds more.
        on_gpu: Whether it trains on a GPU, whose driver takes some.
    """
    data = config.data
    ahead = data.num_workers * (data.prefetch_factor or 2) if data.num_workers else data.num_threads
    window = min(data.chunksize, events or data.chunksize) * BYTES_PER_EVENT
    return {
        "interpreter and libraries": BASE_BYTES,
        "reader processes": READER_BYTES * data.num_workers,
        SHUFFLED: window,
        AHEAD: ahead * window / data.num_shards,
        BATCHES: BATCHES_HELD * data.batch_size * BYTES_PER_EVENT,
    } | ({GPU_DRIVER: GPU_HOST_BYTES} if on_gpu else {})


def fitting_sizes(config: RunConfig, terms: Mapping[str, float], budget: float) -> dict[str, int]:
    """Return settings whose windows and batches fit: the largest ``data.chunksize``, a multiple of the batch.

    Where none does, the largest ``data.batch_size`` with windows of one batch; empty where not even that does.

    Args:
        config: The run.
        terms: Its memory, as `host_memory_bytes` returns it.
        budget: Memory for all of them, bytes.
    """
    batch, windows = config.data.batch_size, terms[SHUFFLED] + terms[AHEAD]
    copies = windows / terms[SHUFFLED]
    events = (budget - sum(terms.values()) + windows + terms[BATCHES]) / BYTES_PER_EVENT
    chunk = int((events - BATCHES_HELD * batch) / copies) // batch * batch
    if chunk >= batch:
        return {"data.chunksize": chunk}
    batch = int(events / (BATCHES_HELD + copies))
    return {"data.batch_size": batch, "data.chunksize": batch} if batch >= 1 else {}


def capacity_rules(config: RunConfig, platform: Platform, events: int | None = None) -> Report:
    """Check the devices and the memory of each rank on this machine, whose facts without ranks are given."""
    ranks = _ranks_here(Situation(config, platform))
    return run_rules(CAPACITY_RULES, Situation(config, platform.of_rank(ranks), events)).report


def _ranks_here(facts: Situation) -> int:
    return integer(facts.platform.environment.get("LOCAL_WORLD_SIZE")) or facts.config.distributed.num_gpus


CAPACITY_RULES: tuple[Rule[Situation], ...] = (HostMemorySuffices(), RanksHaveDevices())

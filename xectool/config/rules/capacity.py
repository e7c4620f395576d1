"""Rules on memory and devices: they belong to the machine that trains, not to the one that edits the file."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.host_memory import (
    AHEAD,
    BYTES_PER_EVENT,
    SHUFFLED,
    VALIDATED,
    NumEvents,
    fitting_sizes,
    host_memory_bytes,
)
from xectool.config.platform import Platform, more_memory
from xectool.config.root import RunConfig
from xectool.config.rules.platform import Situation, integer, sparing_the_preset
from xectool.errors import counted
from xectool.findings import Finding, Report
from xectool.rules import Rule, run_rules

_MEMORY_SHARE = 0.9
_MEMORY_WARNING = 0.8


class HostMemorySuffices(Rule[Situation]):
    """The shuffling window must fit the memory a rank may take."""

    code = "CFG-20"
    title = "The estimated host memory stays below the budget"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error above 90 % of the memory, a warning above 80 %."""
        data, available, limit = facts.config.data, facts.platform.memory_bytes, facts.platform.memory_limit
        on_gpu = not is_on_cpu(facts.config, facts.platform)
        terms = host_memory_bytes(facts.config, facts.events, on_gpu)
        total = sum(terms.values())
        if total <= _MEMORY_WARNING * available:
            return
        largest = max(terms, key=lambda name: terms[name])
        sizes = fitting_sizes(
            facts.config,
            lambda config: sum(host_memory_bytes(config, facts.events, on_gpu).values()),
            _MEMORY_WARNING * available,
        )
        chunks = f" (data.chunksize {data.chunksize} x {BYTES_PER_EVENT} bytes)"
        report = self.error if total > _MEMORY_SHARE * available else self.warning
        yield report(
            "data.chunksize",
            f"estimated host RAM {total / 1e9:.3g} GB, available {available / 1e9:.3g} GB ({limit}); largest term: "
            f"{largest} {terms[largest] / 1e9:.1f} GB{chunks if largest in (SHUFFLED, AHEAD, VALIDATED) else ''}",
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


def capacity_rules(config: RunConfig, platform: Platform, events: NumEvents | None = None) -> Report:
    """Check the devices and the memory of each rank on this machine, whose facts without ranks are given."""
    ranks = _ranks_here(Situation(config, platform))
    facts = Situation(config, platform.of_rank(ranks), events)
    return sparing_the_preset(run_rules(CAPACITY_RULES, facts).report, facts)


def _ranks_here(facts: Situation) -> int:
    return integer(facts.platform.environment.get("LOCAL_WORLD_SIZE")) or facts.config.distributed.num_gpus


CAPACITY_RULES: tuple[Rule[Situation], ...] = (HostMemorySuffices(), RanksHaveDevices())

"""Rules on memory and devices: they belong to the machine that trains, not to the one that edits the file."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.config.root import RunConfig
from xectool.config.rules.platform import Situation, integer
from xectool.findings import Finding
from xectool.rules import Rule

BYTES_PER_EVENT = 4760 * 2 * 4
# Copies of the shuffling window that live at once: the one served, the one being filled, and conversion. Chosen.
WINDOW_COPIES = 2.5
BASE_BYTES = 1_000_000_000
_MEMORY_SHARE = 0.9
_MEMORY_WARNING = 0.8


class HostMemorySuffices(Rule[Situation]):
    """The shuffling window must fit the memory this process may take."""

    code = "CFG-20"
    title = "The estimated host memory stays below the budget"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error above 90 % of the memory, a warning above 80 %."""
        terms = host_memory_bytes(facts.config)
        total, available = sum(terms.values()), facts.platform.memory_bytes
        if total <= _MEMORY_WARNING * available:
            return
        largest = max(terms, key=lambda name: terms[name])
        room = _MEMORY_WARNING * available - (total - terms["shuffling window"])
        batch = facts.config.data.batch_size
        chunk = max(batch, int(room / WINDOW_COPIES / BYTES_PER_EVENT) // batch * batch)
        report = self.error if total > _MEMORY_SHARE * available else self.warning
        yield report(
            "data.chunksize",
            f"estimated host RAM {total / 1e9:.1f} GB, available {available / 1e9:.1f} GB; largest term: {largest} "
            f"{terms[largest] / 1e9:.1f} GB (data.chunksize {facts.config.data.chunksize} x {BYTES_PER_EVENT} bytes "
            f"x {WINDOW_COPIES})",
            f"data.chunksize: {chunk}",
        )


class RanksHaveDevices(Rule[Situation]):
    """Each rank of a GPU run needs a GPU of its own."""

    code = "CFG-49"
    title = "As many GPUs are visible as ranks are started"

    def check(self, facts: Situation) -> Iterator[Finding]:
        """Yield an error where ranks would share a GPU; CPU runs have none to share."""
        config, gpus = facts.config, facts.platform.num_gpus
        ranks = integer(facts.platform.environment.get("LOCAL_WORLD_SIZE")) or config.distributed.num_gpus
        on_cpu = config.training.device == "cpu" or (config.training.device == "auto" and gpus == 0)
        if ranks > max(1, gpus) and not on_cpu:
            yield self.error(
                "distributed.num_gpus",
                f"distributed.num_gpus: {ranks} ranks but {gpus} visible GPU{'s' if gpus != 1 else ''}",
                f"distributed.num_gpus: {max(1, gpus)}",
            )
        elif config.distributed.backend == "nccl" and on_cpu:
            yield self.error(
                "distributed.backend",
                "distributed.backend: nccl needs GPUs, and training.device runs on the CPU",
                "distributed.backend: gloo",
            )


def host_memory_bytes(config: RunConfig) -> dict[str, float]:
    """Return the terms of the host memory a rank takes, in bytes."""
    data = config.data
    windows = max(1, data.num_workers) * (data.prefetch_factor or 2) if data.num_workers else 0
    per_window = data.chunksize / data.num_shards
    return {
        "imports and model": BASE_BYTES * (1 + 0.25 * data.num_workers),
        "shuffling window": data.chunksize * BYTES_PER_EVENT * WINDOW_COPIES,
        "windows read ahead": windows * per_window * BYTES_PER_EVENT,
        "batches": 4 * data.batch_size * BYTES_PER_EVENT,
    }


CAPACITY_RULES: tuple[Rule[Situation], ...] = (HostMemorySuffices(), RanksHaveDevices())

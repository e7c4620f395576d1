"""Rules on a sample and the configuration that will read it: masks, sharing, memory, disk, speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from xectool.checks.data_facts import DataFacts
from xectool.config.data import DataConfig
from xectool.config.host_memory import fitting_sizes
from xectool.config.inputs import is_remote
from xectool.config.root import InpainterConfig, MaeConfig
from xectool.config.save_places import other_save_dir
from xectool.detector import faces
from xectool.detector.constants import NUM_SENSORS
from xectool.findings import Finding
from xectool.rules import Rule

_IMBALANCE: Final = 0.2
_BUDGET: Final = 0.9
_SLOW_EVENTS_PER_S: Final = 500.0
_FEW_A_UNIT: Final = 4


class SensorsCanBeMasked(Rule[DataFacts]):
    """A share of the valid sensors that rounds to none hides nothing."""

    code = "DAT-15"
    title = "Enough valid sensors to mask"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error where an event would have no hidden sensor."""
        config, cells = facts.config, facts.sample.cells
        if not isinstance(config, MaeConfig | InpainterConfig) or not cells.npho.events:
            return
        ratio = config.model.mask_ratio
        shares = ratio if isinstance(ratio, dict) else None
        valid = cells.npho.valid.sum() / cells.npho.events
        if shares is None:
            least = int(cells.least_valid * float(ratio))  # type: ignore[arg-type]
            hidden = int(valid * float(ratio))  # type: ignore[arg-type]
        else:
            by_face = {face: cells.npho.valid[faces.sensors(face)].sum() / cells.npho.events for face in faces.FACES}
            hidden = least = sum(int(by_face[face] * share) for face, share in shares.items() if face in by_face)
        if least > 0:
            yield self.info(
                "model.mask_ratio",
                f"about {hidden} of {valid:.0f} valid sensors are hidden: {100 * hidden / valid:.2f} % of the valid, "
                f"{100 * hidden / NUM_SENSORS:.2f} % of all; the network misses "
                f"{100 * (hidden + NUM_SENSORS - valid) / NUM_SENSORS:.2f} %",
            )
            return
        yield self.error(
            "model.mask_ratio",
            f"model.mask_ratio {ratio} hides no sensor in an event with {cells.least_valid} valid ones",
            "--set model.mask_ratio=0.6",
        )


class WorkIsShared(Rule[DataFacts]):
    """A rank without events stops the others, a worker without any is wasted."""

    code = "DAT-23"
    title = "Work is shared evenly"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for idle ranks and what training refuses, warnings for idle workers and uneven shares."""
        plan = facts.sharing
        if facts.refusal is not None:
            where = facts.refusal.where or "data.train_path"
            yield self.error(where, f"training refuses these files: {facts.refusal.problem}", facts.refusal.fix)
        if plan is None:
            return
        if plan.idle_ranks:
            yield self.error(
                "distributed.num_gpus",
                f"ranks {plan.idle_ranks[:8]} of {plan.world_size} get none of the {plan.num_events} events",
                f"--set distributed.num_gpus={max(1, plan.num_events)}",
            )
        if plan.num_workers and plan.idle_workers:
            count = len(plan.idle_workers)
            idle = ", ".join(f"rank {share.rank} worker {share.worker}" for share in plan.idle_workers[:8])
            busy = max(1, plan.num_workers - count // plan.world_size)
            yield self.warning(
                "data.num_workers",
                f"{count} {'worker reads' if count == 1 else 'workers read'} nothing: {idle}",
                f"--set data.num_workers={busy}",
            )
        if plan.num_workers > 1 and plan.imbalance > _IMBALANCE:
            yield self.warning(
                "data.num_workers",
                f"one worker reads {100 * plan.imbalance:.0f} % more than the mean of {plan.num_workers}",
                "--set data.num_shards=" + str(4 * plan.num_workers),
            )


class CapacitySuffices(Rule[DataFacts]):
    """Estimates of what the configuration takes, against what is here."""

    code = "DAT-24"
    title = "Memory and disk suffice"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for a buffer beyond the memory, or files beyond the disk."""
        if facts.config is None:
            return
        total = sum(facts.host_memory(facts.config).values())
        if facts.memory_bytes and total > _BUDGET * facts.memory_bytes:
            sizes = fitting_sizes(
                facts.config, lambda config: sum(facts.host_memory(config).values()), _BUDGET * facts.memory_bytes
            )
            yield self.error(
                next(iter(sizes), "data.chunksize"),
                f"a training takes about {total / 1e9:.3g} GB of memory beside its steps, "
                f"{facts.memory_bytes / 1e9:.3g} GB are free",
                " ".join(f"--set {key}={value}" for key, value in sizes.items())
                or f"a machine with {total / _BUDGET / 1e9:.3g} GB of free memory",
            )
        needed = sum(facts.disk_needed_bytes.values())
        if facts.free_disk_bytes and needed > _BUDGET * facts.free_disk_bytes:
            shown = ", ".join(f"{name} {size / 1e9:.3g} GB" for name, size in facts.disk_needed_bytes.items())
            yield self.error(
                "checkpoint.save_dir",
                f"a run writes about {needed / 1e9:.3g} GB ({shown}), {facts.free_disk_bytes / 1e9:.3g} GB are free",
                other_save_dir(Path(facts.config.checkpoint.save_dir), needed / _BUDGET),
            )


class ReadingIsFast(Rule[DataFacts]):
    """How the file is stored decides how fast it can be read."""

    code = "DAT-26"
    title = "Reading is fast enough"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for baskets far larger than a window, notes on tiny baskets and slow files."""
        data = facts.settings.data
        fits = facts.sample.num_events <= data.chunksize
        window = data.chunksize if fits else max(data.chunksize // data.num_shards, 1)
        for file in facts.sample.usable:
            branch = file.branches.get(data.npho_branch)
            if branch is None or not len(branch.units) or file.kind != "TTree":
                continue
            sizes = branch.units.stop - branch.units.start
            where = f"{file.where} branch {branch.name}"
            if sizes.max() > 4 * window:
                yield self.warning(
                    where,
                    f"a basket holds {sizes.max()} events, a window {window}: baskets are read again for each window",
                    f"--set data.chunksize={int(sizes.max()) * data.num_shards}",
                )
            if len(sizes) > 1 and sizes.mean() < _FEW_A_UNIT:
                problem = f"{len(sizes)} baskets of {sizes.mean():.1f} events each: reading them is slow"
                yield self.info(where, problem, _copied_once(data, [file.path]))
        speed = facts.sample.scanned / facts.sample.seconds if facts.sample.seconds else 0.0
        if facts.sample.seconds > 1 and speed < _SLOW_EVENTS_PER_S:
            fix = _copied_once(data, [file.path for file in facts.sample.files])
            yield self.info(facts.whole, f"{speed:.0f} events/s were read and looked at", fix)


def _copied_once(data: DataConfig, paths: Iterable[str]) -> str:
    """Return what has slow files read once a run and not once an epoch; nothing where the cache does that already."""
    if data.cache == "off":
        return "--set data.cache=auto   # epochs after the first read a copy"
    if data.cache != "auto":
        return f"nothing to do: epochs after the first read the copy in data.cache: {data.cache}"
    if any(map(is_remote, paths)):
        return "--set data.cache=./cache   # epochs after the first read a copy; by itself none is made of a url"
    return "nothing to do: data.cache: auto makes a copy where that pays; to make it before: xectool prepare CONFIG"


USE_RULES: tuple[Rule[DataFacts], ...] = (SensorsCanBeMasked(), WorkIsShared(), CapacitySuffices(), ReadingIsFast())

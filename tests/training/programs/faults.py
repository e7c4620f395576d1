"""What two ranks do when one of them is in trouble: each writes what it saw. ``faults.py OUT CONFIG``."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from xectool.config.distributed import DistributedConfig
from xectool.config.load import load_config
from xectool.data.batch import EventBatch
from xectool.errors import DiskError, XecError
from xectool.models import backbones
from xectool.runlog.status_page import StatusPage, read_page
from xectool.runlog.writer import RunWriter
from xectool.tasks.base import LossTerms
from xectool.training.guards import memory
from xectool.training.guards.base import StepFacts
from xectool.training.guards.inputs import InputScale
from xectool.training.guards.memory import HostMemory
from xectool.training.guards.report import Reporter
from xectool.training.healing.healer import Healer
from xectool.training.process.device import plan_execution
from xectool.training.process.progress import NullObserver
from xectool.training.ranks.agreement import require_agreement
from xectool.training.ranks.base import Ranks
from xectool.training.ranks.group import joined
from xectool.training.record.incidents import identities
from xectool.training.saving.saver import Saver
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import StepResult

PATIENCE_S = 120.0
out, config = Path(sys.argv[1]), sys.argv[2]
seen: dict[str, Any] = {}


def raised(name: str, work: Any) -> None:
    try:
        work()
    except XecError as error:
        seen[name] = {"kind": type(error).__name__, "code": error.code, "problem": error.problem}


def stepped(parts: RunParts, batch: EventBatch) -> dict[str, Any]:
    """Take a step and return what became of it."""
    before = torch.cat([p.detach().flatten() for p in parts.stepper.parameters()])
    result = parts.stepper.run([batch], 1e-3)
    after = torch.cat([p.detach().flatten() for p in parts.stepper.parameters()])
    moved = not torch.equal(before, after)
    return {"finite": result.finite, "fault": result.fault, "moved": moved, "events": batch.num_events,
            "checksum": float(after.double().sum())}  # fmt: skip


def decide_alone(parts: RunParts) -> None:
    """Take the guard away: each rank believes its own loss and asks nobody."""
    together = parts.stepper._summed

    def summed(sums: Tensor, tallies: Tensor, finite: bool) -> tuple[Tensor, Tensor, bool]:
        return (*together(sums, tallies, finite)[:2], finite)

    parts.stepper._summed = summed  # type: ignore[method-assign]
    parts.stepper.ranks = cast(Ranks, Alone(parts.stepper.ranks))


class Alone:
    """The ranks, of which each decides for itself."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def all(self, own: bool) -> bool:
        return own

    def any(self, own: bool) -> bool:
        return own

    def gather(self, own: Any) -> list[Any]:
        return [own]


def one_rank_would_stop(parts: RunParts, batch: EventBatch, suffix: str = "") -> None:
    """Let the readings and the memory of rank 1 be what a run stops for."""
    other = parts.ranks.rank == 1
    scaled = replace(batch, npho=batch.npho * 1e6) if other else batch
    step = StepFacts([batch], cast(StepResult, None), 0.0, 0.0)
    memory.available_memory = lambda: 0 if other else 1 << 50
    raised(f"scale{suffix}", lambda: list(InputScale(parts).before_step(Progress(), [scaled])))
    raised(f"memory{suffix}", lambda: list(HostMemory(parts).after_step(Progress(step=1), step)))


def meet_a_poisoned_event(parts: RunParts, run_dir: Path) -> dict[str, Any]:
    """Take a step in which an event of rank 1 is not finite; return what was decided, and what is served after it."""
    ranks = parts.ranks
    first = ranks.on_first(lambda: RunWriter(run_dir))
    attempt = ranks.share(first.attempt if first else 0)
    with first or RunWriter(run_dir, attempt=attempt, rank=ranks.rank) as writer:
        reporter = Reporter(writer, NullObserver())
        healer = Healer(parts, Saver(parts, run_dir, writer, {}), reporter)
        batch = next(parts.train_loader.epoch(1))
        whose = ranks.gather(identities([batch])[0])[1]
        if ranks.rank == 1:
            batch.weight[0] = math.nan
        reporter.step = 1
        result, rest = healer.take(Progress(), [batch], 1e-3)
        writer.event("finished", "finished", step=1, epoch=1)
    served = [row for later in parts.train_loader.epoch(2) for row in identities([later])]
    weights = sum(float(p.detach().double().sum()) for p in parts.stepper.parameters())
    return {
        "finite": result.finite, "taken": result.taken, "weights": weights, "poisoned": whose,
        "batch": batch.num_events, "left": rest[0].num_events,
        "quarantine": [event.identity for event in parts.quarantine.events], "served": whose in served,
    }  # fmt: skip


def collectives_may_last(seconds: float) -> None:
    """Set it for a moment: a machine that stands still for some seconds would end all the others."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def disk_is_full() -> None:
    raise DiskError("no space left", where="checkpoint_last.pt", fix="df -h")


with joined(DistributedConfig(timeout_s=PATIENCE_S), torch.device("cpu")) as ranks:
    page_path = out / f"rank{ranks.rank}.status"
    page = StatusPage(page_path, ranks.rank)
    ranks.note_into(page)
    data = open_data(load_config(config, []).config)
    parts = build_parts(data, plan_execution(data.config.training, "cpu"), ranks)
    loss = parts.task.loss

    def poisoned(outputs: Any, batch: Any, counts: Tensor) -> LossTerms:
        terms = loss(outputs, batch, counts)
        if ranks.rank == 0 or batch.step != 1:
            return terms
        # In the second epoch only the value is NaN: the gradient, which all ranks share, tells nobody.
        return LossTerms(terms.total * math.nan if batch.epoch == 1 else terms.total + math.nan, terms.sums)

    parts.task.loss = poisoned  # type: ignore[method-assign]
    parts.model.train()
    seen["steps"] = [stepped(parts, batch) for batch in parts.train_loader.epoch(1)]
    batch = next(parts.train_loader.epoch(2, 1))
    one_rank_would_stop(parts, batch)
    one_rank_would_stop(replace(parts, ranks=cast(Ranks, Alone(ranks))), batch, " alone")
    seen["value"] = stepped(parts, batch)
    decide_alone(parts)
    seen["alone"] = stepped(parts, batch)
    parts.train_loader.close()
    healed = build_parts(data, plan_execution(data.config.training, "cpu"), ranks)
    seen["poisoned"] = meet_a_poisoned_event(healed, out / "run")
    healed.train_loader.close()
    raised("differs", lambda: require_agreement(ranks, {"code": "a", "data.batch_size": str(8 + 8 * ranks.rank)}))
    backbones.NUM_HEX_LAYERS += ranks.rank  # what a plugin may do
    raised("network", lambda: build_parts(data, plan_execution(data.config.training, "cpu"), ranks))
    raised("disk", lambda: ranks.on_first(disk_is_full))
    collectives_may_last(3.0)
    ranks.on_first(lambda: time.sleep(4.0))
    collectives_may_last(PATIENCE_S)
    view = read_page(page_path, "")
    assert view is not None
    seen["collectives"] = view.collective_seq
    seen["inside"] = view.collective
    seen["any"] = ranks.any_of([ranks.rank == 1, False, True])
    (out / f"done{ranks.rank}.json").write_text(json.dumps(seen))

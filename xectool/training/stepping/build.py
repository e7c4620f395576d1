"""The composition root: a configuration and its data become the parts of a run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from xectool.config.rates import gentler_options
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.training import decay_in
from xectool.data.cache.deciding import choose_cache, tables_of, with_cache
from xectool.data.cache.tables import PreparedTables
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.prepared import event_weights, overlap
from xectool.data.selection import Overlap
from xectool.data.source import open_source
from xectool.errors import ConfigError, DataUnusable
from xectool.findings import Finding
from xectool.models.build import build_model
from xectool.tasks import build_task
from xectool.training.events.baseline import Baseline
from xectool.training.events.hidden_readings import require_hidden_readings
from xectool.training.events.mask_patterns import resolve_mask_patterns
from xectool.training.events.quarantine import Quarantine
from xectool.training.events.targets import odd_truth, require_logarithms, resolve_target_scaling, stretched_scales
from xectool.training.optimization.ema import WeightAverage
from xectool.training.optimization.optim import build_optimizer
from xectool.training.optimization.schedule import LearningRate
from xectool.training.process.device import Execution, compiled_where_it_pays
from xectool.training.ranks.agreement import network_facts, require_agreement
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.step import Stepper
from xectool.training.symptoms.nonfinite import NonFiniteGuard, Refusal
from xectool.training.symptoms.spike import SpikeDetector


@dataclass(frozen=True)
class RunData:
    """The events of a run.

    Attributes:
        train: Training events, cuts applied.
        val: Validation events, cuts applied.
        config: The configuration with every value that depends on the data resolved to numbers.
        cache: Whether and where the events are cached, and why, in one line.
        tables: Results about the files that are kept.
        findings: What was noticed about the files and their truth.
        num_repeated: Training events that stand before, numbers and readings; not counted where overlap is allowed.
        late: Training events that ``data.exclude`` has named since the epoch began: (index of the file, entry).
    """

    train: EventSource
    val: EventSource
    config: RunConfig
    cache: str = ""
    tables: PreparedTables = field(default_factory=PreparedTables)
    findings: tuple[Finding, ...] = ()
    num_repeated: int = 0
    late: frozenset[tuple[int, int]] = frozenset()


def open_data(config: RunConfig, prepares: bool = False, looks: bool = False) -> RunData:
    """Open both data sets and resolve what depends on them.

    Args:
        config: The run.
        prepares: Whether the cache is built and results are kept although ``auto`` would not.
        looks: Whether nothing is written, wherever the cache lies.

    Raises:
        DataFileError: A file or branch is missing or unreadable.
        ConfigError: Training and validation share events, or a truth has no logarithm.
        DataUnusable: The selected events cannot be trained on.
    """
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    tables = tables_of(config, prepares)
    tables = replace(tables, writes=tables.writes and not looks)
    train = open_source(config.data, "train", tasks=tasks, require_truth=True, tables=tables)
    val = open_source(config.data, "val", tasks=tasks, require_truth=True, tables=tables)
    if config.validation.max_events is not None:
        val = val.first(config.validation.max_events)
    choice = choose_cache(config, [train, val], wanted=prepares)
    train, val = with_cache([train, val], config, choice, looks)
    shared = Overlap(0) if config.data.allow_overlap else overlap(train, val, tables)
    _refuse_overlap(shared)
    stretched: tuple[Finding, ...] = ()
    if isinstance(config, RegressorConfig):
        stretched = tuple(stretched_scales(config, train))
        config = resolve_target_scaling(config, train)
        require_logarithms(config, val)
    config = resolve_mask_patterns(config, train)
    findings = (*train.findings, *val.findings, *odd_truth(train), *odd_truth(val), *stretched)
    return RunData(train, val, config, choice.note, tables, findings, shared.num_repeated)


def build_parts(data: RunData, execution: Execution, ranks: Ranks) -> RunParts:
    """Put a run together; weights are drawn from ``training.seed``.

    Raises:
        DataUnusable: There are fewer training events than one batch needs, or nothing to learn in them.
        UsageError: A rank has built another network.
    """
    config, training = data.config, data.config.training
    seed_everything(training.seed)
    model = build_model(config).to(execution.device)
    task = build_task(config, model).to(execution.device)
    require_agreement(ranks, network_facts(model, task))
    optimizer = build_optimizer([model, task], training.lr, training.weight_decay)
    train_loader = training_loader(data, execution, ranks)
    batches = training.epochs * train_loader.plan.num_steps * ranks.world_size
    # A diagnosis is alone, and looks at what so many ranks will do.
    execution = compiled_where_it_pays(execution, batches, max(ranks.world_size, config.distributed.num_gpus))
    val_loader = sequential_loader(data.val, config, execution, ranks)
    steps_per_epoch = -(-train_loader.plan.num_steps // training.grad_accum_steps)
    steps = training.epochs * steps_per_epoch
    decay = decay_in(training.ema_decay, steps)  # as the schedule, of all epochs, whatever ends the run before
    training = training.model_copy(update={"ema_decay": decay})
    config = config.model_copy(update={"training": training})
    average = WeightAverage(model, decay)
    stepper = Stepper(model, task, optimizer, average, execution, training, ranks)
    stepper.refusal = Refusal.of(config.guards)
    require_hidden_readings(config, task, data.train, "data.train_path")
    require_hidden_readings(config, task, data.val, "data.val_path")
    baseline = Baseline.of(config, task, data.train, data.val, data.late)
    return RunParts(
        config=config,
        model=model,
        task=task,
        stepper=stepper,
        average=average,
        schedule=LearningRate(training, steps_per_epoch),
        guard=NonFiniteGuard(config.guards, gentler_options(config)),
        spikes=SpikeDetector(config.guards, steps, baseline.objective),
        quarantine=Quarantine(config.guards, train_loader),
        baseline=baseline,
        train_loader=train_loader,
        val_loader=val_loader,
        execution=execution,
        ranks=ranks,
    )


def sequential_loader(
    source: EventSource, config: RunConfig, execution: Execution, ranks: Ranks, batch_size: int | None = None
) -> EventLoader:
    """Return a loader that serves every event once in file order, for validation and prediction."""
    data = config.data
    plan = DataPlan(
        source.files,
        batch_size=batch_size or config.validation.batch_size or data.batch_size,
        seed=config.training.seed,
        shuffle=False,
        num_shards=data.num_shards,
        chunksize=data.chunksize,
        world_size=ranks.world_size,
    )
    return EventLoader(source, plan, rank=ranks.rank, options=LoaderOptions.from_config(data, execution.device))


def seed_everything(seed: int) -> None:
    """Seed every source of random numbers of the process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def training_loader(data: RunData, execution: Execution, ranks: Ranks) -> EventLoader:
    """Return the loader of the training events in the order, and with the weights, that training serves them.

    Raises:
        DataUnusable: There are fewer training events than one batch needs.
    """
    config = data.config
    plan = DataPlan(
        data.train.files,
        batch_size=config.data.batch_size,
        seed=config.training.seed,
        shuffle=config.data.shuffle,
        num_shards=config.data.num_shards,
        chunksize=config.data.chunksize,
        world_size=ranks.world_size,
        drop_last=config.data.drop_last,
    )
    if plan.num_steps == 0:
        raise DataUnusable(
            f"{plan.num_events} training events give 0 batches of {config.data.batch_size} on {ranks.world_size} ranks",
            where="data.batch_size, data.drop_last",
            fix="data.drop_last: false",
            code="CFG-35",
        )
    options = LoaderOptions.from_config(config.data, execution.device)
    weights = event_weights(config, data.train, data.tables)
    return EventLoader(data.train, plan, rank=ranks.rank, options=options, weights=weights)


def _refuse_overlap(found: Overlap) -> None:
    if found.num_events:
        raise ConfigError(
            f"validation shares {found.num_events} events with training, so its metrics would mean nothing",
            where=f"data.val_path: {found.where}",
            fix="--set data.allow_overlap=true   # for a smoke test; better, other validation files",
            code="CFG-37",
        )

"""What is searched: the data of a configuration, an incident or a bad step of a run, or a saved batch on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.load import config_from_dict
from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.batch import EventBatch
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan
from xectool.data.source import EventIdentity, open_source
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.errors import UsageError, counted, in_shell
from xectool.probes.instruments.bench import Bench, build_bench
from xectool.probes.instruments.minimal import load_batch
from xectool.probes.nonfinite.search import EPOCH
from xectool.probes.repetition.history import RunHistory
from xectool.probes.repetition.incidents import chosen_incident, incident_files, incident_window, run_of
from xectool.probes.repetition.replay import Replay
from xectool.training.events.hidden_readings import require_hidden_readings
from xectool.training.events.targets import resolve_target_scaling
from xectool.training.process.device import Execution, apply_determinism, plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.saving.resolved import adopt_resolved
from xectool.training.stepping.build import RunData, training_loader

MAX_REPLAYED_STEPS = 500  # steps run again to get the very weights of a bad step; beyond, the nearest state is taken


@dataclass(frozen=True)
class Subject:
    """What is searched.

    Attributes:
        bench: What is trained.
        files: Paths that the file indices of events mean.
        loader: Serves the events; None where only a window is at hand.
        window: The batches of one step; None where the data are searched.
        checkpoint: Where the weights come from; None for those of the seed.
        trained_on: Whether steps were run again from there, so that the weights are in no file.
        validation: Whether these are validation events.
        notes: How weights and events were obtained.
        close: Stops what reads.
    """

    bench: Bench
    files: tuple[str, ...]
    loader: EventLoader | None = None
    window: tuple[EventBatch, ...] | None = None
    checkpoint: Path | None = None
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = field(default=lambda: None)
    trained_on: bool = False
    validation: bool = False

    @property
    def plan(self) -> DataPlan | None:
        """Order of the searched data; None where only a window is at hand."""
        return self.loader.plan if self.loader is not None else None

    def batches(self) -> Iterator[EventBatch]:
        """Serve the events as training serves them in the epoch that is searched."""
        assert self.loader is not None
        return self.loader.epoch(EPOCH)


def of_config(
    config: RunConfig, checkpoint: Path | None, device: str | None, which: str = "train", max_events: int | None = None
) -> Subject:
    """Return the training data of a configuration, as training serves its first epoch.

    Args:
        config: The configuration.
        checkpoint: Weights to search with; None takes those of the seed.
        device: Device that goes before the configuration's.
        which: ``train`` or ``val``.
        max_events: Look at this many events only.

    Raises:
        XecError: Data or checkpoint cannot be used.
    """
    saved = None if checkpoint is None else store.load(checkpoint)
    if saved is not None:
        config = adopt_resolved(config, saved)
    execution = eager(config, device)
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    source = _open(config, which, tasks, max_events)
    if isinstance(config, RegressorConfig):
        # Truth without a logarithm is what is looked for, so it must not keep the scale from being measured.
        wrong = _without_logarithm(config, source)
        sound = _open(config, which, tasks, max_events, wrong) if wrong else source
        config = resolve_target_scaling(config, sound)
    return replace(_served(build_bench(config, execution, saved), source, checkpoint), validation=which == "val")


def of_validation(subject: Subject, max_events: int | None = None) -> Subject:
    """Return the validation data of the configuration of a subject, with its network as it stands.

    Raises:
        XecError: The data cannot be used.
    """
    config = subject.bench.config
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    return replace(_served(subject.bench, _open(config, "val", tasks, max_events), subject.checkpoint), validation=True)


def _served(bench: Bench, source: EventSource, checkpoint: Path | None) -> Subject:
    """Return events as training serves its first epoch."""
    require_hidden_readings(bench.config, bench.task, source, "data")
    loader = training_loader(RunData(source, source, bench.config), bench.execution, Ranks())
    notes = (_weights_note(checkpoint, bench.config),)
    return Subject(bench, _paths(source), loader, None, checkpoint, notes, loader.close)


def of_batch(path: Path, config: RunConfig | None, checkpoint: Path | None, device: str | None) -> Subject:
    """Return a saved batch; it brings its configuration and its weights, and needs no data files.

    Raises:
        UsageError: The file holds no batch, or no configuration is at hand.
        CheckpointError: Its checkpoint is gone.
    """
    of_incident = run_of(path)
    if of_incident is not None:
        return near_incident(*of_incident, config, checkpoint, device)
    saved = load_batch(path)
    facts = saved.facts
    if config is None and "config" not in facts:
        raise UsageError(
            "the batch carries no configuration",
            where=str(path),
            fix=f"xectool diagnose nan-batch CONFIG --batch {in_shell(path)}",
        )
    resolved = config_from_dict(facts["config"], str(path), package="") if "config" in facts else config
    assert resolved is not None
    resolved = _as_trained(config, resolved)
    place = checkpoint or _weights_of(path, str(facts.get("checkpoint", "")))
    bench = build_bench(resolved, eager(resolved, device), None if place is None else store.load(place))
    bench = replace(bench, rank=int(facts.get("rank", 0)), channel_dropout=float(facts.get("channel_dropout", 0.0)))
    note = _weights_note(place, resolved) if checkpoint else str(facts.get("weights") or _weights_note(place, resolved))
    told = Subject(bench, saved.files, None, saved.window, place, (note,))
    return replace(told, validation=bool(facts.get("validation", False)))


def near_incident(
    history: RunHistory,
    folder: Path,
    facts: dict[str, Any],
    config: RunConfig | None,
    checkpoint: Path | None,
    device: str | None,
) -> Subject:
    """Return the events of an incident with the weights of the nearest state on disk; no data files are read.

    Raises:
        UsageError: The folder holds no batch.
        CheckpointError: The weights do not fit the configuration.
    """
    step, attempt = int(facts["step"]), int(facts.get("attempt", 0))
    counts, state = history.incident_counts(facts), history.state_before(step)
    if not counts:  # the run went another way from there on
        state = history.state_before(int(history.lineage.limits[attempt]) + 1)
    place, resolved = checkpoint or state.path, _as_trained(config, history.config)
    bench = build_bench(resolved, eager(resolved, device), store.load(place) if place else None)
    between, note = step - 1 - state.step, _weights_note(place, resolved)
    if checkpoint is None and between:
        note += f", not those of step {step}: {counted(between, 'step')} lie between"
    if not counts:
        note += f"; attempt {attempt}, which had the incident, was given up"
    elif checkpoint is None and between:
        run = in_shell(history.run_dir)
        note += f"; xectool diagnose nan-batch --run {run} --incident {int(folder.name)} runs them again"
    bench = replace(bench, rank=int(facts.get("rank", 0)), channel_dropout=resolved.training.channel_dropout_rate)
    window = incident_window(history, folder / "batch.npz", facts)
    return Subject(bench, incident_files(facts), None, window, place, (note,))


def of_run(history: RunHistory, incident: int | None, checkpoint: Path | None, device: str | None) -> Subject | None:
    """Return the events and weights of an incident of a run, or of its first step that was not finite.

    Returns:
        None where the run recorded nothing of the kind.

    Raises:
        UsageError: There is no incident of that number.
    """
    found = chosen_incident(history, incident)
    if found is None:
        record = history.first_nonfinite()
        return None if record is None else _of_step(history, record.step, None, checkpoint, device)
    folder, facts = found
    if not history.incident_counts(facts):
        return near_incident(history, folder, facts, None, checkpoint, device)
    window = incident_window(history, folder / "batch.npz", facts)
    subject = _of_step(history, int(facts["step"]), window, checkpoint, device)
    return replace(subject, bench=replace(subject.bench, rank=int(facts.get("rank", 0))))


def eager(config: RunConfig, device: str | None) -> Execution:
    """Return how a configuration computes, without compiling: hooks and traces need the plain network."""
    apply_determinism(config.training.deterministic)
    return plan_execution(config.training.model_copy(update={"compile": "none"}), device)


def _weights_of(path: Path, checkpoint: str) -> Path | None:
    """Return the checkpoint of a saved batch: where it was, or beside the batch where both were moved."""
    if not checkpoint:
        return None
    place = Path(checkpoint)
    beside = path.with_name(place.name)
    return beside if not place.is_file() and beside.is_file() else place


def _as_trained(config: RunConfig | None, resolved: RunConfig) -> RunConfig:
    """Return a configuration with what a training had resolved; the resolved one where there is none."""
    if config is None:
        return resolved
    return adopt_resolved(config, Checkpoint({"kind": resolved.kind, "config": resolved.to_dict()}, {}))


def _of_step(
    history: RunHistory, step: int, window: tuple[EventBatch, ...] | None, checkpoint: Path | None, device: str | None
) -> Subject:
    """Return a step with the very weights it had, where they can be had at a bearable cost."""
    state = history.state_before(step)
    steps, note = step - 1 - state.step, ""
    exact = checkpoint is None and steps <= MAX_REPLAYED_STEPS
    replay = Replay(history, step, device)
    replay.left_out_until = step - 1  # the step is looked at as it first came, with the events left out because of it
    if exact:
        replay.run_until(step - 1)
        note = f"the weights before step {step}: {counted(steps, 'step')} run again from {state.path or 'the seed'}"
    config = replay.parts.config
    window = window or tuple(replay.next_window() if exact else history_window(replay, step))
    bench = replay.bench()
    if not exact:
        place = checkpoint or state.path
        bench = build_bench(config, eager(config, device), store.load(place) if place else None)
        note = f"the weights of {place or 'the seed'}, not those of step {step}: {counted(steps, 'step')} lie between"
    elif step > 1:
        bench = replace(bench, fresh=lambda: build_bench(bench.config, bench.execution))
    bench = replace(bench, config=config, channel_dropout=config.training.channel_dropout_rate)
    files = _paths(replay.parts.train_loader.source)
    trained_on = exact and steps > 0
    return Subject(bench, files, None, window, checkpoint or state.path, (note,), replay.close, trained_on=trained_on)


def history_window(replay: Replay, step: int) -> list[EventBatch]:
    """Return the batches of a recorded step from the data plan, without running the steps before it."""
    record = replay.history.require_step(step)
    batches = replay.parts.train_loader.epoch(record.epoch, record.batch_start)
    return [next(batches) for _ in range(record.batch_stop - record.batch_start)]


def _open(
    config: RunConfig,
    which: str,
    tasks: Sequence[str],
    max_events: int | None,
    exclude: Sequence[EventIdentity] = (),
) -> EventSource:
    assert which in ("train", "val")
    source = open_source(config.data, "train" if which == "train" else "val", tasks, True, exclude)
    return source if max_events is None else source.first(max_events)


def _without_logarithm(config: RegressorConfig, source: EventSource) -> list[EventIdentity]:
    """Return the events, as (file index, entry), whose known truth has no logarithm."""
    found: list[EventIdentity] = []
    for name, task in config.tasks.enabled().items():
        for index, file in enumerate(source.files if task.log_transform else ()):
            truth = source.truth(index, name)
            known = (np.abs(truth) < UNKNOWN_ABOVE).all(axis=1)  # NaN compares false
            rows = np.flatnonzero(known & (truth <= 0).any(axis=1))
            entries = rows if file.selected is None else file.selected[rows]
            found += [(index, int(entry)) for entry in entries]
    return found


def _paths(source: EventSource) -> tuple[str, ...]:
    return tuple(file.name for file in source.files)


def _weights_note(checkpoint: Path | None, config: RunConfig) -> str:
    return f"weights of {checkpoint}" if checkpoint else f"fresh weights of seed {config.training.seed}"

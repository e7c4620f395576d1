"""``train``: configuration to trained model, with its record, checkpoints, predictions and plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xectool.checkpoint import store
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.capacity_rules import CAPACITY_RULES
from xectool.config.count_rules import count_rules
from xectool.config.disk_rules import disk_rules
from xectool.config.load import LoadedConfig, load_config
from xectool.config.path_rules import path_rules
from xectool.config.platform import Platform
from xectool.config.platform_rules import Situation
from xectool.engine.artifacts import RunOutputs, calibrate_conventional, write_outputs
from xectool.engine.preflight import require_memory
from xectool.findings import Finding, Severity
from xectool.rules import run_rules
from xectool.runlog.atomic import write_json
from xectool.runlog.writer import RunWriter
from xectool.training.build import RunData, build_parts, open_data
from xectool.training.description import describe_run, start_facts, tracker_settings
from xectool.training.device import apply_determinism, compile_faults, plan_execution
from xectool.training.distributed import Ranks
from xectool.training.guards.session import GuardSession
from xectool.training.guards.torch_signs import determinism_faults
from xectool.training.heartbeat import Heartbeat
from xectool.training.memory_faults import memory_faults
from xectool.training.parts import RunParts
from xectool.training.progress import NullObserver, Observer
from xectool.training.recording import watch_readers
from xectool.training.resume import adopt_resolved, data_facts, meaning_differences, require_resumable
from xectool.training.run_dir import RunPlace, choose_place
from xectool.training.run_facts import require_sound_resume, resume_facts, run_start_facts
from xectool.training.saving import Saver
from xectool.training.state import Progress, load_weights, restore
from xectool.training.tracking import TrackerHandle, start_tracker
from xectool.training.trainer import FitResult, Trainer

TRANSFER_NAME = "transfer.json"  # what became of every weight of checkpoint.init_from

# What the final table shows: the network's metric, and that of the conventional estimator on the same events.
HEADLINES = {
    "val/loss": "",
    "energy_res_68pct": "baseline_energy",
    "uvw_dist_68pct": "baseline_uvwFI",
    "angle_resolution_68pct": "baseline_angle",
    "timing_res_68pct": "baseline_timing",
    "mae_npho": "baseline_neighbour_mae_npho",
    "rmse_npho": "baseline_neighbour_rmse_npho",
    "mae_time": "",
}


@dataclass(frozen=True)
class TrainResult:
    """What a training left behind.

    Attributes:
        run_dir: The run directory.
        status: ``finished``, ``early_stopped``, ``max_steps``, ``interrupted`` or ``dry_run``.
        epochs: Finished epochs.
        steps: Optimizer steps of the run.
        best_epoch: Epoch of the lowest validation loss; 0 without validation.
        metrics: Figures of the best weights on the validation events, conventional estimators included.
        checkpoint_best: Path, or None.
        checkpoint_last: Path, or None.
        nonfinite_batches: Steps skipped because a value was not finite.
        events_per_s: Training throughput of the last finished epoch.
        artifacts: Files written beside the checkpoints.
        findings: Warnings of configuration, data and tracking.
    """

    run_dir: str
    status: str
    epochs: int = 0
    steps: int = 0
    best_epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint_best: str | None = None
    checkpoint_last: str | None = None
    nonfinite_batches: int = 0
    events_per_s: float = 0.0
    artifacts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}

    def headline_rows(self) -> list[tuple[str, object, object]]:
        """Return metric, network and conventional estimator, a row a task."""
        return [
            (metric, self.metrics[metric], self.metrics.get(baseline, ""))
            for metric, baseline in HEADLINES.items()
            if metric in self.metrics
        ]


def train(  # noqa: PLR0913  the function is the command: one argument an option
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    resume: str | None = None,
    run_name: str | None = None,
    device: str | None = None,
    max_steps: int | None = None,
    dry_run: bool = False,
    observer: Observer | None = None,
) -> TrainResult:
    """Train a model and return where everything lies.

    Args:
        config: YAML file.
        overrides: ``key=value`` settings that go before the file's.
        resume: ``auto``, a checkpoint or a run directory.
        run_name: Name of the run and of its directory.
        device: Device that goes before ``training.device``.
        max_steps: Stop after this many optimizer steps of the run.
        dry_run: Check everything and build the model, but train nothing and write nothing.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on; see `xectool.errors`.
    """
    watching = observer or NullObserver()
    named = [f"mlflow.run_name={json.dumps(run_name)}"] if run_name else []
    platform = Platform.detect()
    loaded = _checked(load_config(config, [*overrides, *named], platform), platform, resume)
    place = choose_place(loaded.config, resume)
    parts, data = _assemble(loaded, place, device)
    counted = count_rules(parts.config, data.train.num_events, data.val.num_events, parts.ranks.world_size)
    loaded = loaded.require(counted.merged(disk_rules(parts.config, _checkpoint_bytes(parts))))
    progress, started = _begin(parts, data, place, watching)
    watching.started(start_facts(parts, data, place, progress))
    findings = (*loaded.findings, *data.train.findings, *data.val.findings)
    if dry_run:
        return TrainResult(str(place.directory), "dry_run", findings=findings)
    run = _Run(parts, data, place, RunWriter(place.directory), watching, started)
    with ExitStack() as stack:
        stack.callback(run.writer.close)
        stack.enter_context(Heartbeat(run.writer.status, parts.execution.device))
        tracker = run.start_tracking()
        stack.callback(run.finish_tracking, tracker)
        # entered last and so left first: the record has its last word before the tracker reads it to the end
        stack.enter_context(run.writer)
        stack.enter_context(GuardSession(parts, run.writer, watching))
        return run.result(*run.train(progress, tracker, max_steps), findings)


def _checked(loaded: LoadedConfig, platform: Platform, resume: str | None) -> LoadedConfig:
    """Return the configuration after the rules on paths and on what this machine can hold."""
    capacity = run_rules(CAPACITY_RULES, Situation(loaded.config, platform)).report
    return loaded.require(path_rules(loaded.config, resuming=resume is not None).merged(capacity))


def _assemble(loaded: LoadedConfig, place: RunPlace, device: str | None) -> tuple[RunParts, RunData]:
    settings = loaded.config if place.checkpoint is None else adopt_resolved(loaded.config, place.checkpoint)
    execution = plan_execution(settings.training, device)
    require_memory(loaded, settings, execution)
    apply_determinism(settings.training.deterministic)
    data = open_data(settings)
    with memory_faults(settings, "building the model"):
        return build_parts(data, execution, Ranks()), data


def _checkpoint_bytes(parts: RunParts) -> int:
    """Return the size of one checkpoint: the weights, their average, and the two moments of AdamW."""
    return 4 * sum(weight.numel() * weight.element_size() for weight in parts.model.parameters())


def start_from(parts: RunParts, path: Path, observer: Observer) -> dict[str, Any]:
    """Load all weights of a model of the same kind, or the encoder of one of another kind; return what was loaded."""
    source = store.load_start(path)
    if source.kind == parts.config.kind:
        load_weights(parts.model, source.weights("best"))
        observer.message(f"all weights loaded from {path}")
        differing = [key for key, _, _ in meaning_differences(parts.config, source)] if source.config else []
        if differing:
            observer.message(
                f"they were trained with another {', '.join(differing[:5])}: xectool config diff shows both"
            )
        loaded = sorted(parts.model.state_dict())
        return {"checkpoint": str(path), "source": source.kind, "target": source.kind, "loaded": loaded}
    report = transfer_encoder(source, parts.config, parts.model)
    for line in report.lines():
        observer.message(line)
    return {"checkpoint": str(path), **report.as_dict()}


def _begin(parts: RunParts, data: RunData, place: RunPlace, observer: Observer) -> tuple[Progress, dict[str, Any]]:
    """Return where the run starts, and for a new run from other weights what became of each of them."""
    checkpoint = parts.config.checkpoint
    if place.checkpoint is None or place.checkpoint_path is None:
        if not checkpoint.init_from:
            return Progress(), {}
        started = start_from(parts, Path(checkpoint.init_from).expanduser(), observer)
        parts.average.load({}, 0)
        return Progress(), started
    require_resumable(parts.config, place.checkpoint, data.train, place.checkpoint_path)
    if checkpoint.reset_epoch:
        load_weights(parts.model, place.checkpoint.weights())
        parts.average.load({}, 0)
        return Progress(), {}
    progress = restore(parts, place.checkpoint)
    if checkpoint.refresh_lr:
        parts.schedule.restart(parts.schedule.place(progress.epoch, progress.batch))
    return progress, {}


@dataclass(frozen=True)
class _Run:
    """One attempt at a run, from its first step to its last file."""

    parts: RunParts
    data: RunData
    place: RunPlace
    writer: RunWriter
    observer: Observer
    started: dict[str, Any]

    def start_tracking(self) -> TrackerHandle:
        directory, attempt = self.place.directory, self.writer.attempt
        describe_run(self.parts, self.data, directory, attempt)
        if self.started:
            write_json(directory / TRANSFER_NAME, self.started)
        settings = tracker_settings(self.parts, directory, attempt)
        return start_tracker(directory, settings, new_run=self.parts.config.checkpoint.new_mlflow_run)

    def finish_tracking(self, tracker: TrackerHandle) -> None:
        state = tracker.finish()
        if state.status == "behind":
            self.observer.message(f"tracking is behind: {state.error}; xectool runs sync {self.place.directory}")

    def train(self, progress: Progress, tracker: TrackerHandle, max_steps: int | None) -> tuple[FitResult, RunOutputs]:
        parts, writer = self.parts, self.writer
        with memory_faults(parts.config, "training"), compile_faults(parts.execution), determinism_faults(writer.event):
            writer.status.phase("build")
            watch_readers(parts, writer)
            conventional = calibrate_conventional(self.parts)
            facts = {**data_facts(self.data.train), "conventional": conventional}
            saver = Saver(self.parts, self.place.directory, self.writer, facts)
            note = saver.adopt(progress, self.place.checkpoint_path)
            if note:
                self.observer.message(note)
            self._record_start(saver, progress)
            fit = Trainer(self.parts, saver, self.observer, tracker, max_steps).fit(progress)
            outputs = RunOutputs()
            if fit.status != "interrupted":
                outputs = write_outputs(self.parts, self.data, fit, self.place.directory, conventional, self.observer)
        kind = "interrupted" if fit.status == "interrupted" else "finished"
        self.writer.event(kind, fit.status, step=progress.step, epoch=progress.epoch, status=fit.status)
        return fit, outputs

    def _record_start(self, saver: Saver, progress: Progress) -> None:
        """Record what starts or goes on here; a run that goes on knows its good states and the events it leaves out."""
        checkpoint, path = self.place.checkpoint, self.place.checkpoint_path
        if checkpoint is not None and path is not None:
            saver.recall(checkpoint, path.parent)
            facts = resume_facts(self.parts, self.place, len(saver.states))
            self.writer.resume(progress.step, progress.epoch, **facts)
            require_sound_resume(facts)
            added = self.parts.quarantine.read(self.place.directory)
            if added:
                self.observer.message(f"{added} events found bad later in this run are left out from here on")
        self.writer.event(
            "run_start", step=progress.step, epoch=progress.epoch, **run_start_facts(self.parts, self.data)
        )

    def result(self, fit: FitResult, outputs: RunOutputs, findings: tuple[Finding, ...]) -> TrainResult:
        best, last = self.place.directory / store.BEST_NAME, self.place.directory / store.LAST_NAME
        history = fit.progress.history
        notes = tuple(Finding("XT-PLOT-SKIPPED", Severity.INFO, note) for note in outputs.notes)
        return TrainResult(
            run_dir=str(self.place.directory),
            status=fit.status,
            epochs=len(history),
            steps=fit.progress.step,
            best_epoch=fit.progress.best_epoch,
            metrics={**fit.metrics, **outputs.metrics},
            checkpoint_best=str(best) if fit.progress.best_epoch else None,
            checkpoint_last=str(last) if last.exists() else None,
            nonfinite_batches=self.parts.guard.total_bad,
            events_per_s=history[-1].get("perf/events_per_s", 0.0) if history else 0.0,
            artifacts=tuple(str(path) for path in outputs.files),
            findings=(*findings, *notes),
        )

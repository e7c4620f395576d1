"""``predict``: a trained model on ROOT files, to a ROOT file in physical units."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xectool.checkpoint.format import Checkpoint
from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.data.dead_masks import open_dead_sensors
from xectool.engine.engines import AUTO, Request, check_engine, choose_engine
from xectool.engine.exports.loading import load_exported
from xectool.engine.input_events import open_events
from xectool.engine.loading import (
    LoadedModel,
    assumed_losses,
    check_hops,
    check_options,
    events_at_once,
    load_checkpoint,
    ready_model,
    served_in_order,
    told_of,
)
from xectool.engine.metric_tables import BY_FACE, face_rows, headlines, other_rows
from xectool.engine.missing_truth import missing_truth
from xectool.engine.model_files import exported_format
from xectool.engine.output_places import files_read, require_file_place, require_folder
from xectool.engine.training_run.artifacts import Scored, Target, draw_predictions, predict_scored, watched
from xectool.errors import UsageError, counted, in_shell
from xectool.findings import Finding, Severity
from xectool.report.written import Written
from xectool.rootio.origin import Origin
from xectool.rootio.weights_state import WeightsState
from xectool.tasks.sensor_task import SensorTask
from xectool.training.predicting.variants import masked_by_dead
from xectool.training.process.heap import trimmed
from xectool.training.process.memory_faults import memory_faults
from xectool.training.process.progress import NullObserver, Observer
from xectool.training.stepping.evaluate import run_model


@dataclass(frozen=True)
class PredictResult:
    """What a prediction wrote.

    Attributes:
        events: Events predicted.
        events_per_s: Throughput, reading and writing included.
        output: The ROOT file.
        engine: What computed: ``eager`` PyTorch, ``compiled`` or ``onnx``; of a file also ``torchscript``.
        engine_reason: Why that one.
        metrics: Figures of merit where the files hold the truth, conventional estimators included.
        plots: Plots written.
        findings: What was noticed about the files, and what could not be drawn.
        sensors: Sensors predicted in all events together, dead ones included; 0 of a regressor.
    """

    events: int
    events_per_s: float
    output: str
    engine: str = "eager"
    engine_reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    plots: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    sensors: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}

    def title(self) -> str:
        """Return what was predicted by what, and whether there is a truth to compare with, for a reader."""
        lines = [f"{counted(self.events, 'event')}, {self.events_per_s:.0f} events/s: {self.output}"]
        if self.sensors and self.metrics:
            lines.append(f"{counted(self.sensors, 'sensor')} predicted")
        elif self.sensors:
            each = f"{counted(self.sensors, 'dead sensor')} of {counted(self.events, 'event')} predicted"
            lines.append(f"{each} ({self.sensors / self.events:.1f} an event): no reading to compare with")
        return "\n".join((*lines, f"engine {self.engine}: {self.engine_reason}"))

    def tables(self) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[object]]]]:
        """Yield title, columns and rows of each table of metrics: the headline ones first."""
        columns, first = headlines(self.metrics)
        if first:
            yield "", columns, first
        for of, rows in face_rows(self.metrics).items():
            yield f"hidden sensors by face: {of}", BY_FACE, rows
        if rest := other_rows(self.metrics):
            yield "others (what one is: xectool explain NAME)", ("metric", "value"), rest


def predict(  # noqa: PLR0913 - the function is the command: one argument an option
    model: str | Path,
    data: Sequence[str],
    *,
    output: str | Path = "predictions.root",
    report: str | Path | None = None,
    weights: str = "auto",
    batch_size: int | None = None,
    device: str | None = None,
    max_events: int | None = None,
    names: Sequence[str] = (),
    dead: str | None = None,
    run_number: int | None = None,
    engine: str = AUTO,
    hops: int | None = None,
    observer: Observer | None = None,
) -> PredictResult:
    """Predict the events of ROOT files.

    Args:
        model: Checkpoint of ours or of the older system, or a file that `export` wrote.
        data: ROOT files, globs, directories, ``@list`` files or urls.
        output: ROOT file to write.
        report: Directory for plots, or None.
        weights: ``auto`` (EMA where present), ``ema``, ``model`` or ``best``.
        batch_size: Events in one forward pass; None takes what is fastest on the device.
        device: Device; None takes the configuration's.
        max_events: Stop after this many events.
        names: ``data.npho_branch=NAME`` and the like, where the files have other names than those of the training; of a
            checkpoint of the older system also what it does not tell, as ``tasks.energy.log_transform=true``.
        dead: Dead channels to hide instead of random sensors, where the model predicts sensors; as
            `xectool.data.dead_channel_maps.find_dead_channels` takes them.
        run_number: Run that a database of dead channels is asked for.
        engine: ``eager``, ``compiled``, ``onnx``, or ``auto``: eager on a CPU, on a GPU the compiled network where its
            gain on the first batch pays for getting it ready.
        hops: Reach of the conventional estimates beside an inpainter; None takes ``training.baseline_hops``.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on.
    """
    watching = observer or NullObserver()
    check_options(weights, batch_size, max_events)
    check_hops(hops)
    check_engine(engine)
    reads = files_read([model], data, weights, dead)
    target = require_file_place(output, "--output", "predictions.root", reads, Origin.PREDICTIONS)
    plots_into = None if report is None else require_folder(report, "--report")
    loaded = _loaded(model, weights, device, names)
    checkpoint = loaded.checkpoint
    _refuse_dead(checkpoint, dead, run_number)
    renamed = [name for name in names if name not in loaded.told]
    source = open_events(loaded, data, max_events, renamed)
    lacking = missing_truth(loaded, source, renamed)
    sensors = None if dead is None else open_dead_sensors(dead, run_number, source)
    request = Request(Path(os.path.expanduser(model)), weights, engine, events_at_once(loaded, batch_size))
    watching.phase("choose the engine", 0)
    chosen = choose_engine(loaded, request, source)
    loaded, network, task = chosen.loaded, chosen.loaded.network, chosen.loaded.task
    _score_neighbours(loaded, hops)
    with served_in_order(loaded, source, request.batch_size) as loader, memory_faults(loaded.config, "predicting"):
        watching.phase("predict", loader.plan.num_steps)
        batches: Iterator[EventBatch] = trimmed(loader.epoch(0))
        if isinstance(task, SensorTask) and sensors is not None:
            batches = masked_by_dead(batches, task, sensors)
        predicted = watched(run_model(network, task, batches, loaded.execution, chosen.forward), watching)
        conventional = checkpoint.meta.get("conventional", {})
        written = Target(target, _state(checkpoint, weights, loaded.config))
        scored = predict_scored(network, task, predicted, written, conventional, tuple(source.branches.truth))
    drawn = Written() if plots_into is None else draw_predictions(task, target, plots_into, source, watching)
    return PredictResult(
        scored.num_events,
        scored.events_per_s,
        str(output),
        loaded.engine,
        chosen.reason,
        scored.metrics if _is_compared(scored.metrics) else {},
        tuple(str(path) for path in drawn.files),
        (*loaded.notes, *source.findings, *lacking, *_undrawn(drawn), *_nothing_predicted(dead, data, scored)),
        scored.num_sensors,
    )


def _state(checkpoint: Checkpoint, weights: str, config: RunConfig) -> WeightsState | None:
    """Return the state of its training that a model is of; None of a file that does not tell it."""
    is_average = checkpoint.held == "ema" or (bool(checkpoint.ema) and weights != "model")
    is_validated = not (checkpoint.ema or is_average) or is_average == config.validation.use_ema
    return WeightsState.of_progress(checkpoint.meta.get("progress", {}), is_validated)


def _undrawn(drawn: Written) -> Iterator[Finding]:
    yield from (Finding("XT-PLOT-SKIPPED", Severity.INFO, note) for note in drawn.notes)


def _is_compared(metrics: Mapping[str, float]) -> bool:
    """Return whether a sensor with a reading was hidden, which is the truth to compare with; always of a regressor."""
    return metrics.get("masked_of_all", 1.0) > 0 or math.isfinite(metrics.get("val/loss", math.nan))


def _nothing_predicted(dead: str | None, data: Sequence[str], scored: Scored) -> tuple[Finding, ...]:
    """Say where no sensor was hidden, so that there was nothing to predict; never of a regressor."""
    if scored.num_sensors or _is_compared(scored.metrics):
        return ()
    where, lacking = ("the events", "reading to hide") if dead is None else (f"--dead {dead}", "dead sensor")
    fix = f"xectool check-data {' '.join(map(in_shell, data))}   # says which sensors have no reading"
    problem = f"no event has a {lacking}: nothing is predicted"
    return (Finding("XT-REPAIR-NOTHING", Severity.WARNING, problem, where, fix=fix),)


def _loaded(model: str | Path, weights: str, device: str | None, names: Sequence[str]) -> LoadedModel:
    """Return a checkpoint or an exported file, ready to predict."""
    path = Path(os.path.expanduser(model))
    graph = exported_format(path)
    if graph is not None:
        return load_exported(path, graph, weights, device)
    checkpoint = load_checkpoint(model, weights)
    ready = ready_model(checkpoint, model, weights, device, told_of(checkpoint, names))
    return replace(ready, notes=(*ready.notes, *assumed_losses(ready, str(model))))


def _score_neighbours(loaded: LoadedModel, hops: int | None) -> None:
    """Set the reach of the conventional estimates, or refuse it where none are made."""
    if hops is None:
        return
    task = loaded.task
    if loaded.checkpoint.base_kind != "inpainter" or not isinstance(task, SensorTask) or "npho" not in task.channels:
        raise UsageError(
            f"{hops} hops have no effect: neighbours are estimated beside an inpainter of photons only",
            where="--hops",
            fix="leave out --hops, or compare a regressor: --compare raw,neighbour --hops 2",
        )
    task.score_neighbours(hops)


def _refuse_dead(checkpoint: Checkpoint, dead: str | None, run_number: int | None) -> None:
    """Refuse dead channels that would change nothing."""
    if dead is None and run_number is not None:
        raise UsageError(
            f"run {run_number} has no effect without a database of dead channels",
            where="--run",
            fix=f"--dead mysql://host/database --run {run_number}",
        )
    if dead is not None and checkpoint.base_kind == "regressor":
        raise UsageError(
            "a regressor predicts events as the files have them: --dead has no effect",
            where=f"--dead {dead}",
            fix=f"--compare raw,neighbour --dead {dead}   # its resolution with these sensors dead, and filled",
        )

"""``predict``: a trained model on ROOT files, to a ROOT file in physical units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.load import config_from_dict
from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.events import EventSource
from xectool.data.source import open_source
from xectool.engine.artifacts import draw_predictions, predict_scored, watched
from xectool.errors import CheckpointError, UsageError
from xectool.findings import Finding, Severity
from xectool.models.build import build_model
from xectool.report.plots import Written
from xectool.rootio.files import is_remote
from xectool.tasks import build_task
from xectool.training.build import sequential_loader
from xectool.training.device import plan_execution
from xectool.training.distributed import Ranks
from xectool.training.evaluate import run_model
from xectool.training.memory_faults import memory_faults
from xectool.training.progress import NullObserver, Observer
from xectool.training.state import load_task, load_weights

WEIGHTS = ("auto", "ema", "model", "best")


@dataclass(frozen=True)
class PredictResult:
    """What a prediction wrote.

    Attributes:
        events: Events predicted.
        events_per_s: Throughput, reading and writing included.
        output: The ROOT file.
        metrics: Figures of merit where the files hold the truth, conventional estimators included.
        plots: Plots written.
        findings: What was noticed about the files, and what could not be drawn.
    """

    events: int
    events_per_s: float
    output: str
    metrics: dict[str, float] = field(default_factory=dict)
    plots: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def predict(  # noqa: PLR0913 - the function is the command: one argument an option
    model: str | Path,
    data: Sequence[str],
    *,
    output: str | Path = "predictions.root",
    report: str | Path | None = None,
    weights: str = "auto",
    batch_size: int = 256,
    device: str | None = None,
    max_events: int | None = None,
    observer: Observer | None = None,
) -> PredictResult:
    """Predict the events of ROOT files.

    Args:
        model: Checkpoint of ours or of the older system.
        data: ROOT files, globs, directories, ``@list`` files or urls.
        output: ROOT file to write.
        report: Directory for plots, or None.
        weights: ``auto`` (EMA where present), ``ema``, ``model`` or ``best``.
        batch_size: Events in one forward pass.
        device: Device; None takes the configuration's.
        max_events: Stop after this many events.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on.
    """
    watching, target = observer or NullObserver(), Path(output).expanduser()
    _check_options(weights, batch_size, max_events)
    checkpoint = _load(Path(model).expanduser(), weights)
    config = config_from_dict(checkpoint.config, str(model))
    source = _open(config, data, max_events)
    _refuse_own_input(target, source)
    execution = plan_execution(config.training.model_copy(update={"compile": "none"}), device)
    network = build_model(config)
    load_weights(network, checkpoint.weights(weights))
    network = network.to(execution.device)
    task = build_task(config, network).to(execution.device)
    load_task(task, checkpoint)
    with (
        sequential_loader(source, config, execution, Ranks(), batch_size) as loader,
        memory_faults(config, "predicting"),
    ):
        watching.phase("predict", loader.plan.num_steps)
        predicted = watched(run_model(network, task, loader.epoch(0), execution), watching)
        conventional = checkpoint.meta.get("conventional", {})
        scored = predict_scored(network, task, predicted, target, conventional, tuple(source.branches.truth))
    drawn = draw_predictions(task, target, Path(report).expanduser(), source) if report is not None else Written()
    notes = tuple(Finding("XT-PLOT-SKIPPED", Severity.INFO, note) for note in drawn.notes)
    plots = tuple(str(path) for path in drawn.files)
    return PredictResult(
        scored.num_events, scored.events_per_s, str(output), scored.metrics, plots, (*source.findings, *notes)
    )


def _check_options(weights: str, batch_size: int, max_events: int | None) -> None:
    if weights not in WEIGHTS:
        raise UsageError(f"unknown weights '{weights}'", where="--weights", fix=f"one of {', '.join(WEIGHTS)}")
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} events", where="--batch-size", fix="--batch-size 256")
    if max_events is not None and max_events < 1:
        raise UsageError(f"{max_events} events leave nothing to predict", where="--max-events", fix="--max-events 1000")


def _load(path: Path, weights: str) -> Checkpoint:
    """Return the checkpoint; ``best`` is the best one of its run, whichever checkpoint of the run is named."""
    checkpoint = store.load(path)
    best = path.with_name(store.BEST_NAME)
    if weights != "best" or checkpoint.best or path == best:
        return checkpoint
    if not best.exists():
        raise CheckpointError(
            "the best weights are asked for, and the run has no best checkpoint",
            where=str(best),
            fix="--weights ema, or --weights model",
            code="XT-CKPT-NO-BEST",
        )
    return store.load(best)


def _refuse_own_input(target: Path, source: EventSource) -> None:
    """Refuse to replace a file that is predicted from: that would destroy the data."""
    for file in source.files:
        if target.exists() and not is_remote(file.path) and target.samefile(file.path):
            raise UsageError(
                f"the predictions would replace their own input, {file.path}",
                where="--output",
                fix=f"--output {target.with_name('predictions_' + target.name)}",
            )


def _open(config: RunConfig, data: Sequence[str], max_events: int | None) -> EventSource:
    """Open the files without the training's cuts: every event is predicted, whether its truth is known or not."""
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    section = config.data.model_copy(update={"num_workers": 0})
    source = open_source(section, list(data), tasks=tasks, require_truth=False)
    return source if max_events is None else source.first(max_events)

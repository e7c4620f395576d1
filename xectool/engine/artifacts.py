"""What a training writes beside its checkpoints: predictions, figures of merit, plots."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from xectool.checkpoint import store
from xectool.data.batch import EventBatch
from xectool.data.events import EventSource
from xectool.report.curves import plot_learning_curves
from xectool.report.plots import Written, write_plots
from xectool.report.worst import SensorFiles
from xectool.tasks.baselines import BaselineMetrics, ConventionalEstimator
from xectool.training.build import RunData
from xectool.training.parts import RunParts
from xectool.training.predict import PredictionRun, write_predictions
from xectool.training.progress import Observer
from xectool.training.state import load_weights
from xectool.training.trainer import FitResult

CALIBRATION_EVENTS = 5000  # training events the conventional estimators are calibrated on
PREDICTIONS_NAME = "predictions.root"
PLOTS_NAME = "plots"


@dataclass(frozen=True)
class RunOutputs:
    """What was written and measured.

    Attributes:
        metrics: Figures of the best weights and of the conventional estimators on the validation events.
        files: Paths of predictions and plots.
        notes: What could not be drawn, and why.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def calibrate_conventional(parts: RunParts) -> dict[str, Any]:
    """Return the calibration of the conventional estimators, measured on training events."""
    batches = -(-CALIBRATION_EVENTS // parts.config.data.batch_size)
    # Epoch 0 is never trained on, so calibrating reads events in an order of its own.
    return ConventionalEstimator().fit(islice(parts.train_loader.epoch(0), batches)).state()


def write_outputs(
    parts: RunParts, data: RunData, fit: FitResult, directory: Path, conventional: dict[str, Any], observer: Observer
) -> RunOutputs:
    """Predict the validation events with the best weights, score them, and plot.

    Args:
        parts: The trained run; its evaluated model is left with the best weights.
        data: Its events.
        fit: How the training ended.
        directory: The run directory.
        conventional: What `calibrate_conventional` returned.
        observer: Whoever watches.
    """
    config = parts.config
    model = parts.average.best_model if config.validation.use_ema else parts.model
    best = directory / store.BEST_NAME
    if fit.progress.best_epoch:
        load_weights(model, store.load(best).weights("auto" if config.validation.use_ema else "model"))
    accumulator = parts.task.accumulator()
    baseline = BaselineMetrics(ConventionalEstimator.from_state(conventional))

    def on_batch(batch: EventBatch) -> None:
        baseline.update(batch)
        observer.advanced(1, {})

    observer.phase("predict", parts.val_loader.plan.num_steps)
    path = directory / PREDICTIONS_NAME
    tasks = tuple(parts.task.terms)
    run = PredictionRun(tasks, tuple(getattr(model, "nll_tasks", ())), tasks, accumulator, on_batch)
    keep = path if config.checkpoint.save_predictions else None
    write_predictions(model, parts.val_loader.epoch(0), parts.execution, keep, run)
    metrics = {**accumulator.compute(), **baseline.compute()}
    files = (path,) if keep else ()
    if not config.checkpoint.save_artifacts or keep is None:
        return RunOutputs(metrics, files)
    plots_dir = directory / PLOTS_NAME
    drawn, curves = draw_predictions(path, plots_dir, data.val), plot_learning_curves(fit.progress.history, plots_dir)
    return RunOutputs(metrics, (*files, *drawn.files, *curves.files), (*drawn.notes, *curves.notes))


def draw_predictions(predictions: Path, out_dir: Path, source: EventSource) -> Written:
    """Plot a prediction file and display its worst events from the files of ``source``."""
    paths = [f"{file.path}:{file.tree}" for file in source.files]
    sensors = SensorFiles(paths, npho_branch=source.branches.npho, time_branch=source.branches.time)
    return write_plots(predictions, out_dir, sources=sensors)

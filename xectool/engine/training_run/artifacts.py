"""What a training writes beside its checkpoints: predictions, figures of merit, plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xectool.checkpoint import store
from xectool.checks.health import HealthScan
from xectool.config.root import RegressorConfig
from xectool.data.events import EventSource
from xectool.engine.sensor_map import draw_sensor_map, scanned
from xectool.models.regressor import Regressor
from xectool.report.written import Written
from xectool.rootio import weights_state
from xectool.rootio.weights_state import WeightsState
from xectool.tasks.base import TrainingTask
from xectool.tasks.baselines import BaselineMetrics, ConventionalEstimator
from xectool.tasks.sensor_task import SensorTask
from xectool.training.predicting.events import PredictionRun, write_predictions
from xectool.training.predicting.sensors import SensorPredictionRun, write_sensor_predictions
from xectool.training.process.progress import Observer
from xectool.training.stepping.build import RunData
from xectool.training.stepping.evaluate import Predicted, run_model
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import load_task, load_weights
from xectool.training.trainer import FitResult

if TYPE_CHECKING:
    from torch import nn

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
    """Return the calibration of the conventional estimators of a regressor, measured on training events."""
    if not isinstance(parts.config, RegressorConfig):
        return {}
    batches = -(-CALIBRATION_EVENTS // parts.config.data.batch_size)
    # Epoch 0 is never trained on, so calibrating reads events in an order of its own.
    with parts.train_loader.for_all_ranks() as loader:
        return ConventionalEstimator().fit(islice(loader.epoch(0), batches)).state()


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
    parts.stepper.on_phase("outputs")
    model = parts.average.best_model if config.validation.use_ema else parts.model
    state = WeightsState.of_progress(vars(fit.progress))
    if fit.progress.best_epoch:
        best = store.load(directory / store.BEST_NAME)
        load_weights(model, best.weights("auto" if config.validation.use_ema else "model"))
        load_task(parts.task, best)
        state = WeightsState.of_progress(best.meta["progress"])
        del best  # as large as all that was trained
    path = directory / PREDICTIONS_NAME if config.checkpoint.save_predictions else None
    sensors = HealthScan()
    with parts.val_loader.for_all_ranks() as loader:
        observer.phase("predict", loader.plan.num_steps)
        predicted = _noted(parts, watched(run_model(model, parts.task, loader.epoch(0), parts.execution), observer))
        if config.checkpoint.save_artifacts:
            predicted = scanned(predicted, sensors)
        scored = predict_scored(
            model, parts.task, predicted, Target(path, state), conventional, tuple(data.val.branches.truth)
        )
    files = (path,) if path else ()
    if not config.checkpoint.save_artifacts:
        return RunOutputs(scored.metrics, files)
    from xectool.report.curves import plot_learning_curves  # matplotlib is loaded where something is drawn

    drawn = Written(notes=["no resolution plots and event displays: checkpoint.save_predictions is false"])
    if path is not None:
        drawn = draw_predictions(parts.task, path, directory / PLOTS_NAME, data.val, observer)
    curves = plot_learning_curves(fit.progress.history, directory / PLOTS_NAME)
    health = draw_sensor_map(sensors.health(), "the validation sample", directory / PLOTS_NAME)
    return RunOutputs(scored.metrics, (*files, *drawn.files, *curves.files, *health), (*drawn.notes, *curves.notes))


@dataclass(frozen=True)
class Target:
    """Where predictions go, and what they are of.

    Attributes:
        path: The ROOT file to write; None only scores.
        state: The state of the training that predicts; None where it is not known.
    """

    path: Path | None
    state: WeightsState | None

    @property
    def texts(self) -> dict[str, str]:
        """What is kept in the file beside its tree, by name."""
        return {weights_state.KEY: self.state.text()} if self.state is not None else {}


@dataclass(frozen=True)
class Scored:
    """Predicted events with what they were worth.

    Attributes:
        num_events: Events predicted.
        events_per_s: Rate, reading and writing included.
        metrics: Figures of the network where the truth is known, and of the conventional estimators.
        num_sensors: Sensors predicted in all events together; 0 of a regressor.
    """

    num_events: int
    events_per_s: float
    metrics: dict[str, float]
    num_sensors: int = 0


def predict_scored(
    model: nn.Module,
    task: TrainingTask,
    predicted: Iterable[Predicted],
    target: Target,
    conventional: dict[str, Any],
    truth_tasks: tuple[str, ...],
) -> Scored:
    """Write what is predicted, event by event or sensor by sensor, and score it on the way.

    Args:
        model: The network that predicts.
        task: What it was trained on.
        predicted: What `run_model` yields.
        target: The ROOT file to write.
        conventional: Calibration of the conventional estimators of a regressor.
        truth_tasks: Tasks of a regressor whose truth the files hold.
    """
    accumulator = task.accumulator()
    if isinstance(task, SensorTask):
        rows = write_sensor_predictions(predicted, target.path, SensorPredictionRun(task, accumulator, target.texts))
        return Scored(rows.num_events, rows.events_per_s, accumulator.compute(), rows.num_rows)
    network, estimator = cast(Regressor, model), BaselineMetrics(ConventionalEstimator.from_state(conventional))
    run = PredictionRun(
        network.active_tasks,
        network.decode,
        network.nll_tasks,
        truth_tasks,
        accumulator if truth_tasks else None,
        target.texts,
    )
    num_events, rate = write_predictions(_scored(predicted, estimator), target.path, run)
    return Scored(num_events, rate, {**(accumulator.compute() if truth_tasks else {}), **estimator.compute()})


def _scored(predicted: Iterable[Predicted], estimator: BaselineMetrics) -> Iterator[Predicted]:
    for pair in predicted:
        estimator.update(pair[0])
        yield pair
        del pair


def _noted(parts: RunParts, predicted: Iterable[Predicted]) -> Iterator[Predicted]:
    """Yield what is predicted and say after each batch that there is progress."""
    for pair in predicted:
        yield pair
        del pair
        parts.stepper.on_phase("outputs")


def watched(predicted: Iterable[Predicted], observer: Observer) -> Iterator[Predicted]:
    """Yield what is predicted and tell the observer of each batch."""
    for pair in predicted:
        yield pair
        del pair
        observer.advanced(1, {})


def draw_predictions(
    task: TrainingTask, predictions: Path, out_dir: Path, source: EventSource, observer: Observer
) -> Written:
    """Plot a prediction file, with displays of events from the files of ``source``."""
    from xectool.report.plots import write_plots
    from xectool.report.sensor_plots import write_sensor_plots
    from xectool.report.worst import SensorFiles

    paths = [file.name for file in source.files]
    sensors = SensorFiles(paths, source.files[0].tree, source.branches.npho, source.branches.time)
    draw = write_sensor_plots if isinstance(task, SensorTask) else write_plots
    observer.phase("draw plots", 0)
    return draw(predictions, out_dir, sources=sensors)

"""``predict``: a trained model on ROOT files, to a ROOT file in physical units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.root import RegressorConfig, RunConfig, config_from_dict
from xectool.data.batch import EventBatch
from xectool.data.events import EventSource
from xectool.data.source import open_source
from xectool.engine.artifacts import draw_predictions
from xectool.errors import CheckpointError, UsageError
from xectool.models.build import build_model
from xectool.tasks import build_task
from xectool.tasks.baselines import BaselineMetrics, ConventionalEstimator
from xectool.training.build import sequential_loader
from xectool.training.device import plan_execution
from xectool.training.distributed import Ranks
from xectool.training.memory_faults import memory_faults
from xectool.training.predict import PredictionRun, write_predictions
from xectool.training.progress import NullObserver, Observer
from xectool.training.state import load_weights

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
    """

    events: int
    events_per_s: float
    output: str
    metrics: dict[str, float] = field(default_factory=dict)
    plots: tuple[str, ...] = ()


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
    if weights not in WEIGHTS:
        raise UsageError(f"unknown weights '{weights}'", where="--weights", fix=f"one of {', '.join(WEIGHTS)}")
    watching = observer or NullObserver()
    checkpoint = store.load(Path(model).expanduser())
    config = _config_of(checkpoint, str(model))
    tasks = tuple(config.tasks.enabled())
    source = _open(config, data, tasks, max_events)
    execution = plan_execution(config.training.model_copy(update={"compile": "none"}), device)
    network = build_model(config)
    load_weights(network, checkpoint.weights(weights))
    network = network.to(execution.device)
    loader = sequential_loader(source, config, execution, Ranks(), batch_size)
    truth_tasks = tuple(task for task in tasks if task in source.branches.truth)
    scored = truth_tasks == tasks
    accumulator = build_task(config, network).to(execution.device).accumulator() if scored else None
    baseline = BaselineMetrics(ConventionalEstimator.from_state(checkpoint.meta.get("conventional", {})))

    def on_batch(batch: EventBatch) -> None:
        baseline.update(batch)
        watching.advanced(1, {})

    watching.phase("predict", loader.plan.num_steps)
    run = PredictionRun(tasks, tuple(getattr(network, "nll_tasks", ())), truth_tasks, accumulator, on_batch)
    with memory_faults(config, "predicting"):
        num_events, rate = write_predictions(network, loader.epoch(0), execution, Path(output).expanduser(), run)
    metrics = {**(accumulator.compute() if accumulator else {}), **baseline.compute()}
    plots: tuple[str, ...] = ()
    if report is not None:
        drawn = draw_predictions(Path(output).expanduser(), Path(report).expanduser(), source)
        plots = tuple(str(path) for path in drawn.files)
    return PredictResult(num_events, rate, str(output), metrics, plots)


def _config_of(checkpoint: Checkpoint, where: str) -> RegressorConfig:
    config: RunConfig = config_from_dict(checkpoint.config, where)
    if not isinstance(config, RegressorConfig):
        raise CheckpointError(
            f"predict needs a regressor; this checkpoint holds a model of kind '{checkpoint.kind}'",
            where=where,
            fix="give the checkpoint of a regressor run",
            code="XT-CKPT-KIND",
        )
    return config


def _open(config: RegressorConfig, data: Sequence[str], tasks: tuple[str, ...], max_events: int | None) -> EventSource:
    """Open the files without the training's cuts: every event is predicted, whether its truth is known or not."""
    section = config.data.model_copy(
        update={"fiducial": config.data.fiducial.model_copy(update={"enabled": False}), "num_workers": 0}
    )
    source = open_source(section, list(data), tasks=tasks, require_truth=False)
    return source if max_events is None else source.first(max_events)

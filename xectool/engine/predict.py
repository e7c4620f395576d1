"""``predict``: a trained model on ROOT files, to a ROOT file in physical units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xectool.checkpoint import store
from xectool.config.root import RegressorConfig, RunConfig, config_from_dict
from xectool.data.events import EventSource
from xectool.data.source import open_source
from xectool.engine.artifacts import draw_predictions, predict_scored, watched
from xectool.errors import UsageError
from xectool.models.build import build_model
from xectool.tasks import build_task
from xectool.training.build import sequential_loader
from xectool.training.device import plan_execution
from xectool.training.distributed import Ranks
from xectool.training.evaluate import run_model
from xectool.training.memory_faults import memory_faults
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
    config = config_from_dict(checkpoint.config, str(model))
    source = _open(config, data, max_events)
    execution = plan_execution(config.training.model_copy(update={"compile": "none"}), device)
    network = build_model(config)
    load_weights(network, checkpoint.weights(weights))
    network = network.to(execution.device)
    task = build_task(config, network).to(execution.device)
    if checkpoint.training:
        task.load_state_dict(checkpoint.training["task"])
    target = Path(output).expanduser()
    with (
        sequential_loader(source, config, execution, Ranks(), batch_size) as loader,
        memory_faults(config, "predicting"),
    ):
        watching.phase("predict", loader.plan.num_steps)
        predicted = watched(run_model(network, task, loader.epoch(0), execution), watching)
        conventional = checkpoint.meta.get("conventional", {})
        scored = predict_scored(network, task, predicted, target, conventional, tuple(source.branches.truth))
    drawn = draw_predictions(task, target, Path(report).expanduser(), source).files if report is not None else []
    return PredictResult(
        scored.num_events, scored.events_per_s, str(output), scored.metrics, tuple(str(path) for path in drawn)
    )


def _open(config: RunConfig, data: Sequence[str], max_events: int | None) -> EventSource:
    """Open the files without the training's cuts: every event is predicted, whether its truth is known or not."""
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    section = config.data.model_copy(update={"num_workers": 0})
    source = open_source(section, list(data), tasks=tasks, require_truth=False)
    return source if max_events is None else source.first(max_events)

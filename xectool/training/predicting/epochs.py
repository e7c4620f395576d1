"""Keep predictions of single sensors on the way through a validation pass: no pass of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from xectool.config.root import RegressorConfig, RunConfig
from xectool.rootio.origin import Origin
from xectool.rootio.writer import TreeWriter
from xectool.tasks.base import TrainingTask
from xectool.tasks.sensor_task import SensorTask
from xectool.training.predicting.sensors import BRANCHES, SensorPredictionRun, extend_rows, sensor_rows
from xectool.training.stepping.evaluate import Predicted

MAX_EVENTS = 1000
"""Events in the file of an epoch; an event of a masked autoencoder has 2900 rows."""


def predictions_name(epoch: int) -> str:
    """Return the name of the prediction file of an epoch."""
    return f"predictions_epoch_{epoch}.root"


def is_due(config: RunConfig, epoch: int) -> bool:
    """Return whether a validated epoch writes a file: the first one at or after each ``root_save_interval`` epochs."""
    if isinstance(config, RegressorConfig) or not config.checkpoint.save_predictions:
        return False
    interval, step = config.checkpoint.root_save_interval, config.validation.interval
    previous = (epoch - 1) // step * step
    return epoch // interval > previous // interval


def kept(predicted: Iterable[Predicted], task: TrainingTask, path: Path) -> Iterator[Predicted]:
    """Yield what is predicted and write the hidden sensors of the first events; the file is whole or absent.

    Args:
        predicted: What `run_model` yields.
        task: That of a sensor-level training.
        path: The ROOT file.
    """
    assert isinstance(task, SensorTask)
    run, left = SensorPredictionRun(task), MAX_EVENTS
    with TreeWriter(path, BRANCHES, origin=Origin.PREDICTIONS) as writer:
        for pair in predicted:
            masked = task.prepare(pair[0])
            extend_rows(writer, sensor_rows(masked, task.reconstruction(pair[1]), run, max_events=left))
            left = max(0, left - masked.num_events)
            yield pair
            del pair, masked

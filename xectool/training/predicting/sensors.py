"""Write predictions of single sensors to a ROOT file, batch by batch, so memory does not grow with the events.

Axes: B events, S sensors (4760), C predicted channels, R rows of the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from xectool.data.batch import EventBatch
from xectool.detector import faces
from xectool.detector.constants import DEAD_VALUE
from xectool.models.normalize import Normalizer
from xectool.rootio.origin import Origin
from xectool.rootio.writer import TreeWriter
from xectool.tasks.base import MetricAccumulator, Outputs
from xectool.tasks.masked_batch import MaskedBatch

MAX_ROWS = 1 << 18
"""Rows converted at once: a batch of 4096 events with 5 % of the sensors hidden has 970 thousand."""


class MaskType(IntEnum):
    """Why a sensor was predicted."""

    HIDDEN = 0  # on purpose; its true reading is known
    DEAD = 1  # it has no reading


BRANCHES: dict[str, tuple[str, tuple[int, ...]]] = {
    "file_index": ("i4", ()),
    "entry": ("i8", ()),
    "run": ("i8", ()),
    "event": ("i8", ()),
    "sensor": ("i2", ()),
    "face": ("i1", ()),
    "mask_type": ("i1", ()),
    "truth_npho": ("f4", ()),
    "pred_npho": ("f4", ()),
    "truth_time": ("f4", ()),
    "pred_time": ("f4", ()),
}
"""One row a predicted sensor; photons and seconds, 1e10 where there is no such number, as in the data files."""


class SensorPredictor(Protocol):
    """What is needed of the task that was trained."""

    normalizer: Normalizer
    channels: tuple[str, ...]

    def prepare(self, batch: EventBatch) -> MaskedBatch:
        """Return a batch with its mask."""

    def reconstruction(self, outputs: Outputs) -> Tensor:
        """Return predictions by sensor in network units, shape (B, S, C)."""


@dataclass(frozen=True)
class SensorPredictionRun:
    """What to do with each predicted batch.

    Attributes:
        task: Gives masks, predictions and their units.
        accumulator: Collects metrics over the hidden sensors, or None.
        texts: What is kept beside the tree, by name.
    """

    task: SensorPredictor
    accumulator: MetricAccumulator | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SensorPredictionResult:
    """What was written.

    Attributes:
        num_events: Events predicted.
        num_rows: Rows written, one a sensor.
        events_per_s: Rate, reading included.
    """

    num_events: int
    num_rows: int
    events_per_s: float


def write_sensor_predictions(
    predicted: Iterable[tuple[EventBatch, Outputs]], output: Path | None, run: SensorPredictionRun
) -> SensorPredictionResult:
    """Write the predicted sensors of all batches; the file gets its name when it is whole.

    Killed at any time it leaves ``<output>.part`` at most, which is no file of that name.

    Args:
        predicted: Batches with the outputs of the model called with their masks.
        output: The ROOT file, tree ``tree``; branches as in :data:`BRANCHES`. None only scores.
        run: What to write.

    Raises:
        DiskError: The disk is full.
    """
    began, num_events, num_rows = time.perf_counter(), 0, 0
    with (
        TreeWriter(output, BRANCHES, overlapped=True, origin=Origin.PREDICTIONS, texts=run.texts)
        if output is not None
        else nullcontext() as writer
    ):
        for batch, outputs in predicted:
            masked = run.task.prepare(batch)
            if writer is not None:
                num_rows += extend_rows(writer, sensor_rows(masked, run.task.reconstruction(outputs), run))
            if run.accumulator is not None:
                run.accumulator.update(outputs, masked)
            num_events += batch.num_events
            del batch, outputs, masked
    return SensorPredictionResult(num_events, num_rows, num_events / max(time.perf_counter() - began, 1e-9))


def extend_rows(writer: TreeWriter, parts: Iterable[dict[str, npt.NDArray[np.generic]]]) -> int:
    """Write what `sensor_rows` yields and return the number of rows."""
    num_rows = 0
    for rows in parts:
        writer.extend(rows)
        num_rows += len(rows["sensor"])
    return num_rows


def sensor_rows(
    batch: MaskedBatch, prediction: Tensor, run: SensorPredictionRun, max_events: int | None = None
) -> Iterable[dict[str, npt.NDArray[np.generic]]]:
    """Yield the rows of a batch, at most :data:`MAX_ROWS` at once, by event and then by sensor.

    Args:
        batch: The events with their mask; every sensor in it is written, dead ones too.
        prediction: Network units, shape (B, S, C).
        run: Gives the units.
        max_events: Leave out events after so many.
    """
    places = batch.mask[:max_events].nonzero()
    for start in range(0, len(places), MAX_ROWS):
        event, sensor = places[start : start + MAX_ROWS].unbind(dim=1)
        valid = _array(batch.valid[event, sensor])
        predicted = prediction[event, sensor].double()
        rows = event.cpu().numpy()
        ids = sensor.cpu().numpy()
        yield {
            "file_index": np.asarray(batch.file_index, np.int32)[rows],
            "entry": np.asarray(batch.entry, np.int64)[rows],
            "run": np.asarray(batch.run, np.int64)[rows],
            "event": np.asarray(batch.event, np.int64)[rows],
            "sensor": ids.astype(np.int16),
            "face": faces.face_ids()[ids].astype(np.int8),
            "mask_type": np.where(valid[:, 0], MaskType.HIDDEN, MaskType.DEAD).astype(np.int8),
            "truth_npho": _known(_array(batch.npho[event, sensor]), valid[:, 0]),
            "pred_npho": _channel(run.task, "npho", predicted),
            "truth_time": _known(_array(batch.time[event, sensor]), valid[:, 1]),
            "pred_time": _channel(run.task, "time", predicted),
        }


def _channel(task: SensorPredictor, channel: str, predicted: Tensor) -> npt.NDArray[np.float32]:
    """Return a predicted channel in physical units, shape (R,); 1e10 where the network does not predict it."""
    if channel not in task.channels:
        return np.full(len(predicted), DEAD_VALUE, np.float32)
    values = predicted[:, task.channels.index(channel)]
    inverse = task.normalizer.inverse_npho if channel == "npho" else task.normalizer.inverse_time
    return _array(inverse(values)).astype(np.float32)


def _known(values: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    return np.where(valid, values, np.float32(DEAD_VALUE))


def _array(values: Tensor) -> npt.NDArray[Any]:
    return np.asarray(values.detach().cpu().numpy())

"""Numbers of the input files that no event should hold, found at the speed of reading them.

Legal by design, and so never named: 1e10, the mark of a dead channel or of unknown truth, whatever rounding made of it,
and photons below the domain of the scheme, which the network sees as a dead channel.

Axes: B events, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xectool.data.batch import EventBatch
from xectool.data.extremes import NPHO_HIGH, NPHO_LOW, TIME_HIGH, TIME_LOW
from xectool.detector.constants import LARGEST_LEGAL, UNKNOWN_ABOVE

CHANNELS: Final = ("npho", "time")


@dataclass(frozen=True)
class Anomaly:
    """One number that no event should hold.

    Attributes:
        file_index: Index of the file.
        entry: Entry in the file.
        run: Run number.
        event: Event number.
        branch: ``npho``, ``time``, the name of a task, or ``weight``.
        sensor: The sensor; -1 for truth and weights.
        value: As in the file.
        reason: Why it is none.
    """

    file_index: int
    entry: int
    run: int
    event: int
    branch: str
    sensor: int
    value: float
    reason: str


def not_a_reading(values: Tensor) -> Tensor:
    """Return which numbers are neither a measurement nor the mark of a dead channel; any shape."""
    return ~(values.abs() <= LARGEST_LEGAL)  # NaN compares false


def illegal_rows(batch: EventBatch) -> dict[str, npt.NDArray[np.bool_]]:
    """Return by branch which events of a batch that has its extremes hold an illegal number, each of shape (B,)."""
    assert batch.extremes is not None
    ends = {"npho": batch.extremes[:, NPHO_LOW : NPHO_HIGH + 1], "time": batch.extremes[:, TIME_LOW : TIME_HIGH + 1]}
    others = {**batch.targets, "weight": batch.weight.unsqueeze(-1)}
    numbers = ends | {name: values.numpy() for name, values in others.items()}
    return {name: ~(np.abs(found) <= LARGEST_LEGAL).all(axis=1) for name, found in numbers.items()}  # NaN is none


def count_anomalies(batch: EventBatch) -> int:
    """Return how many numbers of a batch are illegal."""
    return sum(int(not_a_reading(values).sum()) for values in _columns(batch).values())


def count_by_sensor(batch: EventBatch) -> npt.NDArray[np.int64]:
    """Return in how many events of a batch the photons and the time of each sensor are illegal, shape (2, S)."""
    return np.stack([not_a_reading(values).sum(dim=0).numpy() for values in (batch.npho, batch.time)])


def anomalies(batch: EventBatch, most: int, dead: npt.NDArray[np.bool_] | None = None) -> Iterator[Anomaly]:
    """Yield the first ``most`` illegal numbers of a batch in the order of its events.

    Args:
        batch: On the CPU.
        most: So many at most.
        dead: Photons and times that are not looked at, shape (2, S).
    """
    found = []
    for name, values in _columns(batch).items():
        odd = not_a_reading(values)
        if dead is not None and name in CHANNELS:
            odd &= ~torch.from_numpy(dead[CHANNELS.index(name)])
        for row, place in odd.nonzero()[:most].tolist():
            found.append((row, name, place, float(values[row, place])))
    for row, name, place, value in sorted(found, key=lambda item: item[0])[:most]:
        sensor = place if name in CHANNELS else -1
        yield anomaly(batch, row, name, sensor, value, reason_of(value))


def _columns(batch: EventBatch) -> dict[str, Tensor]:
    return {"npho": batch.npho, "time": batch.time, **batch.targets, "weight": batch.weight.unsqueeze(-1)}


def anomaly(batch: EventBatch, row: int, branch: str, sensor: int, value: float, reason: str) -> Anomaly:
    """Return an anomaly of the event in a row of a batch."""
    return Anomaly(
        int(batch.file_index[row]), int(batch.entry[row]), int(batch.run[row]), int(batch.event[row]),
        branch, sensor, value, reason,
    )  # fmt: skip


def reason_of(value: float) -> str:
    """Return why a number is not legal."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite"
    return "beyond 1e10, the mark of a dead channel"


def without_logarithm(batch: EventBatch, task: str) -> npt.NDArray[np.bool_]:
    """Return which events have a known truth of a task that has no logarithm, shape (B,)."""
    truth = batch.targets[task].cpu().numpy()
    return np.asarray((np.abs(truth) < UNKNOWN_ABOVE).all(axis=1) & (truth <= 0).any(axis=1))  # NaN is not known


def wrong_logarithms(batch: EventBatch, log_tasks: Mapping[str, object]) -> Iterator[Anomaly]:
    """Yield the known truth of tasks with ``log_transform`` that has no logarithm."""
    for name in log_tasks:
        for row in np.flatnonzero(without_logarithm(batch, name)):
            truth = batch.targets[name][int(row)].cpu().numpy()
            value = float(truth[truth <= 0][0])
            yield anomaly(batch, int(row), name, -1, value, "not positive, so it has no logarithm (log_transform)")

"""From records to the points of a curve: which names the mirror logs, and at which step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from xectool.runlog.records import EpochRecord, Record, StepRecord

STEP_MARK: Final = "step/loss"
EPOCH_MARK: Final = "perf/epoch_time_sec"
_STEP_VALUES: Final = ("lr", "grad_norm", "clip_coef", "data_wait_s", "step_s")


@dataclass(frozen=True)
class Point:
    """One value of one curve; the time is the record's, so a replay logs the same point again, not another one."""

    name: str
    value: float
    time_ms: int
    step: int


@dataclass
class Progress:
    """The last step and epoch that are in the database; records at or before them are not logged again."""

    step: int = 0
    epoch: int = 0


def point_groups(records: Iterable[Record], progress: Progress, step_every: int) -> Iterator[list[Point]]:
    """Yield the points of each record beyond ``progress``; a group must be logged as a whole, and in order."""
    step, epoch = progress.step, progress.epoch
    for record in records:
        if isinstance(record, StepRecord) and record.step > step:
            step = record.step
            if step % step_every == 0 and record.rank == 0:
                yield _step_points(record)
        elif isinstance(record, EpochRecord) and record.epoch > epoch:
            epoch = record.epoch
            yield _epoch_points(record)


def _step_points(record: StepRecord) -> list[Point]:
    values = {STEP_MARK: record.loss}
    values.update({f"step/loss_{term}": value for term, value in record.losses.items()})
    for name in _STEP_VALUES:
        value = getattr(record, name)
        # NaN is also what a field holds that was not measured; only a non-finite step makes it a value.
        if record.nonfinite or not math.isnan(value):
            values[f"step/{name}"] = value
    return [Point(_allowed(name), value, _milliseconds(record.time), record.step) for name, value in values.items()]


def _epoch_points(record: EpochRecord) -> list[Point]:
    values = {"lr": record.lr} | dict(record.metrics) | {EPOCH_MARK: record.seconds}
    return [Point(_allowed(name), value, _milliseconds(record.time), record.epoch) for name, value in values.items()]


def _milliseconds(time_s: float) -> int:
    return int(time_s * 1000)


def _allowed(name: str) -> str:
    """Return ``name`` with what MLflow refuses in a name replaced, so one odd name cannot hold up the rest."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)

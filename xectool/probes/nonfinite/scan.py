"""One pass over the events as they are read: illegal numbers, and the events worth trying on the network.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.batch import EventBatch, measured
from xectool.models.normalize import Normalizer
from xectool.probes.nonfinite.ranking import Ranking
from xectool.probes.nonfinite.raw import (
    Anomaly,
    anomalies,
    count_anomalies,
    illegal_rows,
    without_logarithm,
    wrong_logarithms,
)
from xectool.probes.nonfinite.singles import IntArray, place_of, single
from xectool.tasks.base import TrainingTask

MAX_ANOMALIES = 1000  # named one by one; the rest is counted
MOST_SUSPECTS = 4  # events kept of each branch with illegal numbers, to be tried on the network
NUM_ORDINARY = 8  # events kept of the first
_CHUNK = 256  # events whose illegal numbers are listed together


@dataclass
class ScanReport:
    """What a pass over the events found; the events it keeps are copies, each of the step that serves it.

    Attributes:
        events: Events looked at.
        seconds: Time of the pass, reading included.
        anomalies: Illegal numbers, some of them: those of the first event that has any before those of others.
        num_anomalies: Their count; an event that cannot be ranked counts nothing here.
        suspects: Single events that hold illegal numbers, of each branch the first ones, in the order of their steps.
        extremes: Single events of the largest and smallest numbers, the most extreme first.
        ordinary: The first few single events that hold no illegal number, to compare with.
        highest: Largest score by ranking.
    """

    events: int = 0
    seconds: float = 0.0
    anomalies: list[Anomaly] = field(default_factory=list)
    num_anomalies: int = 0
    suspects: list[EventBatch] = field(default_factory=list)
    extremes: list[EventBatch] = field(default_factory=list)
    ordinary: list[EventBatch] = field(default_factory=list)
    highest: dict[str, float] = field(default_factory=dict)


def scan(
    windows: Iterable[tuple[EventBatch, IntArray]],
    config: RunConfig,
    model: nn.Module,
    task: TrainingTask,
    beyond: Mapping[str, float] | None = None,
) -> ScanReport:
    """Look at every number of every event once.

    Args:
        windows: Events on the CPU, whose memory may be used again afterwards, and the step that serves each.
        config: Says which tasks learn a logarithm.
        model: Its normaliser ranks the readings.
        task: Its transforms rank the truth.
        beyond: Score by ranking that an event must exceed to count as extreme.
    """
    began, report = time.perf_counter(), ScanReport()
    normalizer = model.get_submodule("normalizer")
    assert isinstance(normalizer, Normalizer)
    ranking, suspects = Ranking(normalizer, task), _Suspects(_log_tasks(config))
    with _one_thread():
        for given, steps in windows:
            batch = measured(given)
            report.events += batch.num_events
            sound = np.flatnonzero(~suspects.add(batch, steps))[: NUM_ORDINARY - len(report.ordinary)]
            report.ordinary += [single(batch, int(row), steps) for row in sound]
            ranking.add(batch, steps)
    report.extremes, report.highest = ranking.events(beyond or {}), ranking.highest()
    report.suspects, report.anomalies = suspects.events(), suspects.anomalies()
    report.num_anomalies = suspects.num_anomalies
    report.seconds = time.perf_counter() - began
    return report


def at_their_step(batches: Iterable[EventBatch]) -> Iterator[tuple[EventBatch, IntArray]]:
    """Yield batches as they are served, and their step for each event."""
    for batch in batches:
        yield batch, np.full(batch.num_events, batch.step, np.int64)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute in this thread alone: threads that wait for more to do take the readers' cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Suspects:
    """Counts illegal numbers, names some, and keeps of each branch the first events that hold any.

    Args:
        log_tasks: Tasks that learn a logarithm.
    """

    def __init__(self, log_tasks: Mapping[str, object]) -> None:
        self._logs, self.num_anomalies = log_tasks, 0
        self._named: list[Anomaly] = []
        self._kept: dict[str, list[EventBatch]] = {}

    def add(self, batch: EventBatch, steps: IntArray) -> npt.NDArray[np.bool_]:
        """Look at a batch that has its extremes, and return which events hold an illegal number, shape (B,).

        Args:
            batch: On the CPU.
            steps: The step that serves each event, shape (B,).
        """
        illegal = illegal_rows(batch)
        found = illegal | {f"logarithm of {task}": without_logarithm(batch, task) for task in self._logs}
        for branch, rows in ((branch, np.flatnonzero(mask)) for branch, mask in found.items()):
            self._keep(branch, batch, rows[np.argsort(steps[rows], kind="stable")[:MOST_SUSPECTS]], steps)
        wrong = list(wrong_logarithms(batch, self._logs))
        self.num_anomalies += len(wrong)
        rows = np.flatnonzero(np.logical_or.reduce([*illegal.values()]))
        for start in range(0, len(rows), _CHUNK):  # a file that marks dead channels with NaN has millions
            few = batch.take(rows[start : start + _CHUNK])
            self.num_anomalies += count_anomalies(few)
            if room := MAX_ANOMALIES - len(self._named):
                self._named += anomalies(few, room)
        self._named += wrong[: MAX_ANOMALIES - len(self._named)]
        return np.asarray(np.logical_or.reduce([*found.values()]))

    def _keep(self, branch: str, batch: EventBatch, rows: npt.NDArray[np.intp], steps: IntArray) -> None:
        kept = self._kept.setdefault(branch, [])
        last = kept[-1].step if len(kept) == MOST_SUSPECTS else None
        kept += [single(batch, int(row), steps) for row in rows if last is None or steps[row] < last]
        self._kept[branch] = sorted(kept, key=lambda event: event.step)[:MOST_SUSPECTS]

    def events(self) -> list[EventBatch]:
        """Return the kept events, each once, in the order of their steps."""
        every = {place_of(event): event for kept in self._kept.values() for event in kept}
        return sorted(every.values(), key=lambda event: event.step)

    def anomalies(self) -> list[Anomaly]:
        """Return what is named, that of the first event before that of others."""
        for first in self.events()[:1]:
            own = [*anomalies(first, MAX_ANOMALIES), *wrong_logarithms(first, self._logs)]
            others = [one for one in self._named if (one.file_index, one.entry) != place_of(first)]
            return [*own, *others][:MAX_ANOMALIES]
        return []


def _log_tasks(config: RunConfig) -> dict[str, object]:
    if not isinstance(config, RegressorConfig):
        return {}
    return {name: task for name, task in config.tasks.enabled().items() if task.log_transform}

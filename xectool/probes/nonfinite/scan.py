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
from xectool.detector.constants import NUM_SENSORS
from xectool.models.normalize import Normalizer
from xectool.probes.nonfinite.ranking import Ranking
from xectool.probes.nonfinite.raw import (
    CHANNELS,
    Anomaly,
    anomalies,
    count_anomalies,
    count_by_sensor,
    illegal_rows,
    without_logarithm,
    wrong_logarithms,
)
from xectool.probes.nonfinite.singles import IntArray, place_of, single
from xectool.tasks.base import TrainingTask

MAX_ANOMALIES = 1000  # named one by one; the rest is counted
MOST_SUSPECTS = 4  # events kept of each branch with illegal numbers, to be tried on the network
NUM_ORDINARY = 8  # events kept of the first
_BESIDE_DEAD = "beside dead channels"
_CHUNK = 256  # events whose illegal numbers are listed together


@dataclass
class ScanReport:
    """What a pass over the events found; the events it keeps are copies, each of the step that serves it.

    Attributes:
        events: Events looked at.
        seconds: Time of the pass, reading included.
        anomalies: Illegal numbers, some of them: those of the first event that has any before those of others, and
            those of channels that are dead in most events after all.
        dead: Channels whose number is illegal in most events, as branch and sensor; none of a few events.
        num_anomalies: Their count; an event that cannot be ranked counts nothing here.
        suspects: Single events that hold illegal numbers, of each branch the first ones, in the order of their steps.
        extremes: Single events of the largest and smallest numbers, the most extreme first.
        ordinary: The first few single events that hold no illegal number, to compare with.
        highest: Largest score by ranking.
    """

    events: int = 0
    seconds: float = 0.0
    anomalies: list[Anomaly] = field(default_factory=list)
    dead: frozenset[tuple[str, int]] = frozenset()
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
    report.num_anomalies, report.dead = suspects.num_anomalies, suspects.dead_channels()
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
        self._events, self._counts = 0, np.zeros((len(CHANNELS), NUM_SENSORS), np.int64)
        self._others: list[Anomaly] = []

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
        self._events += batch.num_events
        parts = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
        for part in parts:  # a file that marks dead channels with NaN has millions
            few = batch.take(part)
            self.num_anomalies += count_anomalies(few)
            self._counts += count_by_sensor(few)
            if room := MAX_ANOMALIES - len(self._named):
                self._named += anomalies(few, room)
        self._named += wrong[: MAX_ANOMALIES - len(self._named)]
        if (dead := self._dead(MOST_SUSPECTS)).any():
            self._name_others(batch, parts, dead, steps)
        return np.asarray(np.logical_or.reduce([*found.values()]))

    def _dead(self, fewest: int) -> npt.NDArray[np.bool_]:
        """Return which photons and times are illegal in most events so far, or of so many, shape (2, S)."""
        return 2 * self._counts > max(self._events, fewest)

    def _name_others(
        self, batch: EventBatch, parts: list[npt.NDArray[np.intp]], dead: npt.NDArray[np.bool_], steps: IntArray
    ) -> None:
        """Name illegal numbers beside those of dead channels, and keep the first events that hold any."""
        for part in parts:
            room = max(1, MAX_ANOMALIES - len(self._others))
            found = list(anomalies(batch.take(part), room, dead))
            self._others += found[: MAX_ANOMALIES - len(self._others)]
            places = {(one.file_index, one.entry) for one in found}
            held = [row for row in part if (int(batch.file_index[row]), int(batch.entry[row])) in places]
            rows = np.array(held, np.intp)
            self._keep(_BESIDE_DEAD, batch, rows[np.argsort(steps[rows], kind="stable")[:MOST_SUSPECTS]], steps)

    def dead_channels(self) -> frozenset[tuple[str, int]]:
        """Return the channels that are dead in most events, as branch and sensor."""
        return frozenset((CHANNELS[channel], int(sensor)) for channel, sensor in np.argwhere(self._dead(NUM_ORDINARY)))

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
        dead = self.dead_channels()
        beside = [one for one in self._others if (one.branch, one.sensor) not in dead]
        for first in (self._kept.get(_BESIDE_DEAD, []) if beside else self.events())[:1]:
            own = [*anomalies(first, MAX_ANOMALIES), *wrong_logarithms(first, self._logs)]
            others = [one for one in (*beside, *self._named) if (one.file_index, one.entry) != place_of(first)]
            every = {(one.file_index, one.entry, one.branch, one.sensor): one for one in (*own, *others)}
            return sorted(every.values(), key=lambda one: (one.branch, one.sensor) in dead)[:MAX_ANOMALIES]
        return []


def _log_tasks(config: RunConfig) -> dict[str, object]:
    if not isinstance(config, RegressorConfig):
        return {}
    return {name: task for name, task in config.tasks.enabled().items() if task.log_transform}

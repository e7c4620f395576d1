"""One pass over the events at the speed of the loader: illegal numbers, and the events worth trying on the network.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.batch import EventBatch
from xectool.data.excluded import event_keys
from xectool.data.extremes import NPHO_HIGH, NPHO_LOW, PHOTONS, TIME_HIGH, TIME_LOW, measured
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.models.normalize import Normalizer
from xectool.probes.nonfinite.raw import (
    Anomaly,
    anomalies,
    count_anomalies,
    legal_rows,
    wrong_logarithms,
)
from xectool.tasks.base import TrainingTask

MAX_ANOMALIES = 1000  # named one by one; the rest is counted
MAX_SUSPECTS = 8  # events kept that hold an illegal number, whose batches are tried on the network
NUM_FIRST = 8  # events kept of the first batch
NUM_EXTREMES = 32  # events kept in each of the rankings
_CHUNK = 32  # events looked at together, 600 kB an array

FloatArray = npt.NDArray[np.floating]


@dataclass
class ScanReport:
    """What a pass over the events found.

    Attributes:
        events: Events looked at.
        seconds: Time of the pass, reading included.
        anomalies: Illegal numbers, the first ones of them.
        num_anomalies: Their count; an event that cannot be ranked counts nothing here.
        suspects: Single events that hold illegal numbers, the first ones of them.
        extremes: Single events of the largest and smallest numbers, the most extreme first.
        first: The first few events: ordinary ones to compare with.
        highest: Largest score by ranking.
    """

    events: int = 0
    seconds: float = 0.0
    anomalies: list[Anomaly] = field(default_factory=list)
    num_anomalies: int = 0
    suspects: list[EventBatch] = field(default_factory=list)
    extremes: list[EventBatch] = field(default_factory=list)
    first: EventBatch | None = None
    highest: dict[str, float] = field(default_factory=dict)


def scan(
    batches: Iterable[EventBatch],
    config: RunConfig,
    model: nn.Module,
    task: TrainingTask,
    beyond: Mapping[str, float] | None = None,
) -> ScanReport:
    """Look at every number of every event once.

    Args:
        batches: On the CPU; their memory may be used again afterwards.
        config: Says which tasks learn a logarithm.
        model: Its normaliser ranks the readings.
        task: Its transforms rank the truth.
        beyond: Score by ranking that an event must exceed to count as extreme.
    """
    began, report = time.perf_counter(), ScanReport()
    normalizer = model.get_submodule("normalizer")
    assert isinstance(normalizer, Normalizer)
    ranking = Ranking(normalizer, task)
    logs = _log_tasks(config)
    with _one_thread():
        for batch in batches:
            report.events += batch.num_events
            if not batch.num_events:
                continue
            report.first = report.first or batch.take(np.arange(min(NUM_FIRST, batch.num_events)))
            batch = measured(batch)
            _note(report, batch, logs)
            ranking.add(batch)
    report.extremes, report.highest = ranking.events(beyond or {}), ranking.highest()
    report.seconds = time.perf_counter() - began
    return report


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute in this thread alone: threads that wait for more to do take the readers' cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _note(report: ScanReport, batch: EventBatch, logs: dict[str, object]) -> None:
    legal = legal_rows(batch)
    wrong = list(wrong_logarithms(batch, logs)) if logs else []
    if legal.all() and not wrong:
        return
    illegal = 0 if legal.all() else count_anomalies(batch)
    report.num_anomalies += illegal + len(wrong)
    room = MAX_ANOMALIES - len(report.anomalies)
    if room:  # a file that marks dead channels with NaN has millions
        report.anomalies += [*(anomalies(batch, room) if illegal else ()), *wrong][:room]
    places = np.array([(one.file_index, one.entry) for one in wrong], np.int64).reshape(-1, 2)
    rows = np.flatnonzero(~legal | np.isin(event_keys(batch.file_index, batch.entry), event_keys(*places.T)))
    for row in rows[: MAX_SUSPECTS - len(report.suspects)]:
        report.suspects.append(batch.take(np.array([row])))


def _log_tasks(config: RunConfig) -> dict[str, object]:
    if not isinstance(config, RegressorConfig):
        return {}
    return {name: task for name, task in config.tasks.enabled().items() if task.log_transform}


class Ranking:
    """Keeps the events that come nearest to an overflow: by photons, time, light sum and truth, in network units.

    The network's first layer is monotonic, so the extremes of the raw numbers are those of the normalised ones.

    Args:
        normalizer: The network's first layer.
        task: Objective; a regressor's has the transforms of the truth.
    """

    def __init__(self, normalizer: Normalizer, task: TrainingTask) -> None:
        self._normalizer = normalizer
        self._transforms = dict(getattr(task, "transforms", {}))
        self._heaps: dict[str, list[tuple[float, int, EventBatch]]] = {}
        self._count = 0

    def add(self, batch: EventBatch) -> None:
        """Rank the events of a batch that has its extremes; only those that enter a ranking are copied."""
        copies: dict[int, EventBatch] = {}
        for name, scores in self._scores(batch).items():
            heap = self._heaps.setdefault(name, [])
            rows = np.flatnonzero(scores > self._floor(name))
            for row in rows[np.argsort(-scores[rows], kind="stable")[:NUM_EXTREMES]]:
                full = len(heap) == NUM_EXTREMES
                if full and scores[row] <= heap[0][0]:
                    break
                if row not in copies:
                    copies[row] = batch.take(np.array([row]))
                self._count += 1
                entry = (float(scores[row]), self._count, copies[row])
                (heapq.heappushpop if full else heapq.heappush)(heap, entry)

    def _floor(self, name: str) -> float:
        """Return the score that an event must exceed to enter a ranking."""
        heap = self._heaps.get(name, [])
        return heap[0][0] if len(heap) == NUM_EXTREMES else -1.0

    def highest(self) -> dict[str, float]:
        """Return the largest score of each ranking."""
        return {name: max(heap)[0] for name, heap in self._heaps.items()}

    def events(self, beyond: Mapping[str, float]) -> list[EventBatch]:
        """Return the kept events with a score beyond that given, each once, in turn the highest of each ranking."""
        ranked = [
            [entry for entry in sorted(heap, reverse=True) if entry[0] > beyond.get(name, -1.0)]
            for name, heap in self._heaps.items()
        ]
        found: dict[tuple[int, int], EventBatch] = {}
        for place in range(NUM_EXTREMES):
            for heap in ranked:
                for _, _, event in heap[place : place + 1]:
                    found.setdefault((int(event.file_index[0]), int(event.entry[0])), event)
        return list(found.values())

    def _scores(self, batch: EventBatch) -> dict[str, FloatArray]:
        """Return the score of each event by ranking; of times only those that enter it are the used ones'."""
        norm, extremes = self._normalizer, batch.extremes
        assert extremes is not None
        ends, highest = extremes[:, NPHO_LOW : NPHO_HIGH + 1].T.copy(), extremes[:, NPHO_HIGH]
        ends[0] = np.minimum(ends[0], highest)  # a dead event has 1e10 as its lowest
        latest = np.maximum(-extremes[:, TIME_LOW], extremes[:, TIME_HIGH])
        # Extremes count the times of sensors without light, and whatever rounding made of 1e10: few events need a look.
        rows = np.flatnonzero((latest > self._floor("time") * norm.time_scale) | (highest > UNKNOWN_ABOVE))
        if len(rows):
            few = batch.npho.numpy()[rows], batch.time.numpy()[rows]
            ends[0, rows], ends[1, rows], latest[rows] = _known(*few, norm.npho_threshold)
        light = norm.scheme(torch.from_numpy(ends).clamp_min(norm.scheme.lowest)).abs().amax(dim=0)
        scores = {"npho": light.numpy(), "light": np.abs(extremes[:, PHOTONS]), "time": latest / norm.time_scale}
        for name, transform in self._transforms.items():
            scores[f"truth {name}"] = _encoded(transform, batch.targets[name]).numpy()
        return {name: np.nan_to_num(score, nan=0.0) for name, score in scores.items()}


def _known(npho: FloatArray, times: FloatArray, threshold: float) -> FloatArray:
    """Return smallest and largest known light and latest used time without its sign, shape (3, N), of N events.

    A few events are looked at together, which then stay in the processor's cache.
    """
    found = np.empty((3, len(npho)), np.float64)
    for start in range(0, len(npho), _CHUNK):
        rows = slice(start, start + _CHUNK)
        is_light, latest = npho[rows] <= UNKNOWN_ABOVE, np.abs(times[rows])
        is_used = is_light & (npho[rows] >= threshold) & (latest <= UNKNOWN_ABOVE)
        with np.errstate(invalid="ignore"):  # infinite becomes NaN, which ranks nowhere
            # Multiplying by a mask is three times faster than choosing.
            light = npho[rows] * is_light
            latest *= is_used
        found[:, rows] = light.min(axis=1), light.max(axis=1), latest.max(axis=1)
    return found


def _encoded(transform: nn.Module, truth: Tensor) -> Tensor:
    """Return the largest component of the truth in network units, 0 where it is unknown; shape (B,)."""
    known = (truth.abs() < UNKNOWN_ABOVE).all(dim=1)
    units: Tensor = transform.encode(truth.to(transform.scale.device)).cpu()  # type: ignore[operator, arg-type]
    return units.abs().amax(dim=1).where(known, 0.0)


def as_steps(events: list[EventBatch], size: int) -> list[EventBatch]:
    """Return single events as batches of up to ``size``; the stream of random numbers is that of the first event."""
    return [join(events[start : start + size]) for start in range(0, len(events), size)]


def join(parts: list[EventBatch]) -> EventBatch:
    """Return the events of several batches, not prepared, as one."""
    first = parts[0]
    return replace(
        first,
        npho=torch.cat([part.npho for part in parts]),
        time=torch.cat([part.time for part in parts]),
        targets={name: torch.cat([part.targets[name] for part in parts]) for name in first.targets},
        weight=torch.cat([part.weight for part in parts]),
        file_index=np.concatenate([part.file_index for part in parts]),
        entry=np.concatenate([part.entry for part in parts]),
        run=np.concatenate([part.run for part in parts]),
        event=np.concatenate([part.event for part in parts]),
        extremes=None,
    )

"""One pass over the events at the speed of the loader: illegal numbers, and the events worth trying on the network.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.batch import EventBatch
from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.models.normalize import Normalizer
from xectool.probes.nonfinite.raw import (
    Anomaly,
    anomalies,
    are_legal,
    count_anomalies,
    truth_is_legal,
    wrong_logarithms,
)
from xectool.tasks.base import TrainingTask

MAX_ANOMALIES = 1000  # named one by one; the rest is counted
MAX_SUSPECTS = 8  # batches kept that hold an illegal number, to be tried on the network
NUM_EXTREMES = 32  # events kept in each of the rankings
_CHUNK = 32  # events looked at together, 600 kB an array

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass
class ScanReport:
    """What a pass over the events found.

    Attributes:
        events: Events looked at.
        batches: Batches they came in.
        seconds: Time of the pass, reading included.
        anomalies: Illegal numbers, the first ones of them.
        num_anomalies: Their count; an event that cannot be ranked counts nothing here.
        suspects: Batches that hold illegal numbers, the first ones of them.
        extremes: Single events of the largest and smallest numbers, the most extreme first.
        first: The first batch: ordinary events to compare with.
        highest: Largest score by ranking.
    """

    events: int = 0
    batches: int = 0
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
        batches: On the CPU.
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
    for batch in batches:
        report.events += batch.num_events
        report.batches += 1
        if not batch.num_events:
            continue
        report.first = report.first or batch
        ends, legal = look(batch, normalizer.npho_threshold)
        _note(report, batch, logs, legal and truth_is_legal(batch))
        ranking.add(batch, ends)
    report.extremes, report.highest = ranking.events(beyond or {}), ranking.highest()
    report.seconds = time.perf_counter() - began
    return report


def _note(report: ScanReport, batch: EventBatch, logs: dict[str, object], legal: bool) -> None:
    illegal = 0 if legal else count_anomalies(batch)
    wrong = list(wrong_logarithms(batch, logs)) if logs else []
    if not illegal and not wrong:
        return
    report.num_anomalies += illegal + len(wrong)
    room = MAX_ANOMALIES - len(report.anomalies)
    if room:  # a file that marks dead channels with NaN has millions
        report.anomalies += [*(anomalies(batch, room) if illegal else ()), *wrong][:room]
    if len(report.suspects) < MAX_SUSPECTS:
        report.suspects.append(batch)


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

    def add(self, batch: EventBatch, ends: FloatArray) -> None:
        """Rank the events of a batch, of which `look` returned ``ends``; only those that enter a ranking are copied."""
        copies: dict[int, EventBatch] = {}
        for name, scores in self._scores(batch, ends).items():
            heap = self._heaps.setdefault(name, [])
            floor = heap[0][0] if len(heap) == NUM_EXTREMES else -1.0
            rows = np.flatnonzero(scores > floor)
            for row in rows[np.argsort(-scores[rows], kind="stable")[:NUM_EXTREMES]]:
                full = len(heap) == NUM_EXTREMES
                if full and scores[row] <= heap[0][0]:
                    break
                if row not in copies:
                    copies[row] = batch.take(np.array([row]))
                self._count += 1
                entry = (float(scores[row]), self._count, copies[row])
                (heapq.heappushpop if full else heapq.heappush)(heap, entry)

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

    def _scores(self, batch: EventBatch, ends: FloatArray) -> dict[str, np.ndarray]:
        norm = self._normalizer
        light = norm.scheme(torch.from_numpy(ends[:2]).clamp_min(norm.scheme.lowest)).abs().amax(dim=0)
        scores = {"npho": light.numpy(), "light": np.abs(ends[2]), "time": ends[3] / norm.time_scale}
        for name, transform in self._transforms.items():
            scores[f"truth {name}"] = _encoded(transform, batch.targets[name]).numpy()
        return {name: np.nan_to_num(score, nan=0.0) for name, score in scores.items()}


def look(batch: EventBatch, threshold: float) -> tuple[FloatArray, bool]:
    """Go once over all readings of a batch, a few events at a time, which then stay in the processor's cache.

    Args:
        batch: On the CPU.
        threshold: Photons below which a time is not used.

    Returns:
        Smallest, largest and summed known light and the latest used time without its sign, shape (4, B); and whether
        every reading is legal.
    """
    npho, times = batch.npho.numpy(), batch.time.numpy()
    ends, legal = np.empty((4, batch.num_events), np.float32), True
    scratch = np.empty((_CHUNK, NUM_SENSORS), np.float32), np.empty((2, _CHUNK, NUM_SENSORS), np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, batch.num_events, _CHUNK):
            rows = slice(start, min(start + _CHUNK, batch.num_events))
            legal &= _look_at_few(npho[rows], times[rows], threshold, ends[:, rows], scratch)
    return ends, legal


def _look_at_few(
    npho: FloatArray, times: FloatArray, threshold: float, ends: FloatArray, scratch: tuple[FloatArray, BoolArray]
) -> bool:
    known, (counts, other) = scratch[0][: len(npho)], (mask[: len(npho)] for mask in scratch[1])
    np.min(npho, axis=1, out=ends[0])
    np.max(npho, axis=1, out=ends[1])
    lowest, highest = ends[0].min(), ends[1].max()
    light, unknown = npho, not -np.inf < lowest <= highest <= UNKNOWN_ABOVE
    if unknown:
        # Multiplying by a mask is three times faster than choosing; infinite becomes NaN, which is not legal either.
        light = np.multiply(npho, np.less_equal(npho, UNKNOWN_ABOVE, out=counts), out=known)
        np.min(light, axis=1, out=ends[0])
        np.max(light, axis=1, out=ends[1])
    np.sum(light, axis=1, out=ends[2])
    latest = np.abs(times, out=known).max()
    np.greater_equal(npho, threshold, out=counts)
    counts &= np.less_equal(known, UNKNOWN_ABOVE, out=other)
    if unknown:
        counts &= np.less_equal(npho, UNKNOWN_ABOVE, out=other)
    np.max(np.multiply(known, counts, out=known), axis=1, out=ends[3])
    return are_legal(lowest, highest) and are_legal(0.0, latest)


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
    )

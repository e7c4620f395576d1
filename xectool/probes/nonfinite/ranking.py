"""Which events come nearest to an overflow, worked out from what reading tells of every event.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xectool.data.batch import EventBatch
from xectool.data.extremes import NPHO_HIGH, NPHO_LOW, PHOTONS, TIME_HIGH, TIME_LOW
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.models.normalize import Normalizer
from xectool.probes.nonfinite.singles import IntArray, place_of, single
from xectool.tasks.base import TrainingTask

MOST_RANKED = 32  # events kept in each of the rankings
_CHUNK = 32  # events looked at together, 600 kB an array

FloatArray = npt.NDArray[np.floating]


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

    def add(self, batch: EventBatch, steps: IntArray) -> None:
        """Rank the events of a batch that has its extremes; only those that enter a ranking are copied.

        Args:
            batch: On the CPU.
            steps: The step that serves each event, shape (B,).
        """
        copies: dict[int, EventBatch] = {}
        for name, scores in self._scores(batch).items():
            heap = self._heaps.setdefault(name, [])
            rows = np.flatnonzero(scores > self._floor(name))
            for row in rows[np.argsort(-scores[rows], kind="stable")[:MOST_RANKED]]:
                full = len(heap) == MOST_RANKED
                if full and scores[row] <= heap[0][0]:
                    break
                if row not in copies:
                    copies[row] = single(batch, row, steps)
                self._count += 1
                entry = (float(scores[row]), self._count, copies[row])
                (heapq.heappushpop if full else heapq.heappush)(heap, entry)

    def _floor(self, name: str) -> float:
        """Return the score that an event must exceed to enter a ranking."""
        heap = self._heaps.get(name, [])
        return heap[0][0] if len(heap) == MOST_RANKED else -1.0

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
        for place in range(MOST_RANKED):
            for heap in ranked:
                for _, _, event in heap[place : place + 1]:
                    found.setdefault(place_of(event), event)
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
            ends[0, rows], ends[1, rows], latest[rows] = _known(batch, rows, norm.npho_threshold)
        light = norm.scheme(torch.from_numpy(ends).clamp_min(norm.scheme.lowest)).abs().amax(dim=0)
        scores = {"npho": light.numpy(), "light": np.abs(extremes[:, PHOTONS]), "time": latest / norm.time_scale}
        for name, transform in self._transforms.items():
            scores[f"truth {name}"] = _encoded(transform, batch.targets[name]).numpy()
        return {name: np.nan_to_num(score, nan=0.0) for name, score in scores.items()}


def _known(batch: EventBatch, rows: IntArray, threshold: float) -> FloatArray:
    """Return smallest and largest known light and latest used time without its sign, shape (3, n), of n events.

    A few events are looked at together, which then stay in the processor's cache.
    """
    found = np.empty((3, len(rows)), np.float64)
    for start in range(0, len(rows), _CHUNK):
        few = rows[start : start + _CHUNK]
        npho, latest = batch.npho.numpy()[few], np.abs(batch.time.numpy()[few])
        is_light = npho <= UNKNOWN_ABOVE
        is_used = is_light & (npho >= threshold) & (latest <= UNKNOWN_ABOVE)
        with np.errstate(invalid="ignore"):  # infinite becomes NaN, which ranks nowhere
            # Multiplying by a mask is three times faster than choosing.
            npho *= is_light
            latest *= is_used
        found[:, start : start + _CHUNK] = npho.min(axis=1), npho.max(axis=1), latest.max(axis=1)
    return found


def _encoded(transform: nn.Module, truth: Tensor) -> Tensor:
    """Return the largest component of the truth in network units, 0 where it is unknown; shape (B,)."""
    known = (truth.abs() < UNKNOWN_ABOVE).all(dim=1)
    units: Tensor = transform.encode(truth.to(transform.scale.device)).cpu()  # type: ignore[operator, arg-type]
    return units.abs().amax(dim=1).where(known, 0.0)

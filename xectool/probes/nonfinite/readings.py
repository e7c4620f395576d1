"""The numbers of some events, one by one: which are at fault, and what each holds in the file.

Axes: B events, S sensors (4760), 2 channels (npho, time).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from xectool.data.batch import EventBatch
from xectool.detector.constants import DEAD_VALUE
from xectool.models.normalize import Normalizer
from xectool.probes.instruments.bench import Bench
from xectool.probes.nonfinite.raw import not_a_reading
from xectool.tasks.masked_batch import MaskedBatch

NPHO, TIME, TARGET, WEIGHT = "npho", "time", "target", "weight"
SENSOR = "sensor"


@dataclass(frozen=True)
class Reading:
    """One number of an event.

    Attributes:
        row: Event in the batch.
        channel: ``npho``, ``time``, ``target`` or ``weight``.
        sensor: The sensor; -1 for targets and weights.
        value: As in the file.
        name: Task of a target, else empty.
        batch: Batch in the window.
    """

    row: int
    channel: str
    sensor: int
    value: float
    name: str = ""
    batch: int = 0


@dataclass(frozen=True)
class Item:
    """What is taken out of an event or left in it as a whole: a sensor with both its numbers, a target, or the weight.

    Attributes:
        row: Event in the batch.
        kind: ``sensor``, ``target`` or ``weight``.
        sensor: The sensor; -1 for the others.
        name: Task of a target.
    """

    row: int
    kind: str
    sensor: int = -1
    name: str = ""


class Readings:
    """Every number of the events of a batch, the most extreme ones first.

    Args:
        bench: Gives the normaliser and the centre of each target.
        batch: Prepared by the task, so that what is hidden stays hidden.
    """

    def __init__(self, bench: Bench, batch: EventBatch) -> None:
        normalizer = bench.model.get_submodule("normalizer")
        assert isinstance(normalizer, Normalizer)
        self._normalizer, self._transforms, self.batch = normalizer, getattr(bench.task, "transforms", {}), batch

    @cached_property
    def items(self) -> list[Item]:
        """Weights, targets, and the sensors that say something; dead channels are left out."""
        batch = self.batch
        found = [Item(row, WEIGHT) for row in range(batch.num_events)]
        found += [Item(row, TARGET, name=name) for name in batch.targets for row in range(batch.num_events)]
        x, valid = self._normalizer.normalize(batch.npho, batch.time)
        odd = torch.stack([not_a_reading(batch.npho), not_a_reading(batch.time)], dim=-1)
        size = torch.where(valid, x.abs(), -1.0).masked_fill(odd, math.inf).nan_to_num(nan=math.inf).amax(dim=-1)
        order = size.flatten().argsort(descending=True, stable=True)[: int((size >= 0).sum())]
        rows, sensors = np.divmod(order.cpu().numpy(), size.shape[1])
        return found + [Item(int(row), SENSOR, int(sensor)) for row, sensor in zip(rows, sensors, strict=True)]

    def keeping(self, chosen: Iterable[int]) -> EventBatch:
        """Return the events with only the chosen items as they are.

        Other sensors become dead channels, other targets the centre of their task, other weights one.
        """
        batch, kept = self.batch, [self.items[index] for index in chosen]
        npho, times = torch.full_like(batch.npho, DEAD_VALUE), torch.full_like(batch.time, DEAD_VALUE)
        targets = {name: self._centre(name, target) for name, target in batch.targets.items()}
        weight = torch.ones_like(batch.weight)
        rows, sensors = _index([item for item in kept if item.kind == SENSOR], npho.device)
        npho[rows, sensors], times[rows, sensors] = batch.npho[rows, sensors], batch.time[rows, sensors]
        for item in kept:
            if item.kind == TARGET:
                targets[item.name][item.row] = batch.targets[item.name][item.row]
            elif item.kind == WEIGHT:
                weight[item.row] = batch.weight[item.row]
        return self._changed(npho, times, targets, weight)

    def keeping_photons(self, chosen: Iterable[int]) -> EventBatch:
        """Return `keeping` of the chosen items with all times dead."""
        kept = self.keeping(chosen)
        return self._changed(kept.npho, torch.full_like(kept.time, DEAD_VALUE), dict(kept.targets), kept.weight)

    def numbers(self, item: Item, channels: Iterable[str] = (NPHO, TIME)) -> list[Reading]:
        """Return what an item holds in the file: a sensor's channels, or the most extreme number of a target."""
        row, batch = item.row, self.batch
        if item.kind == WEIGHT:
            return [Reading(row, WEIGHT, -1, float(batch.weight[row]))]
        if item.kind == TARGET:
            return [Reading(row, TARGET, -1, _most_extreme(batch.targets[item.name][row]), item.name)]
        raw = {NPHO: batch.npho, TIME: batch.time}
        return [Reading(row, name, item.sensor, float(raw[name][row, item.sensor])) for name in channels]

    def _changed(self, npho: Tensor, times: Tensor, targets: dict[str, Tensor], weight: Tensor) -> EventBatch:
        if not isinstance(self.batch, MaskedBatch):
            return replace(self.batch, npho=npho, time=times, targets=targets, weight=weight)
        x, valid = self._normalizer.normalize(npho, times)
        return replace(self.batch, npho=npho, time=times, targets=targets, weight=weight, x=x, valid=valid)

    def _centre(self, name: str, target: Tensor) -> Tensor:
        if name not in self._transforms:
            return torch.full_like(target, DEAD_VALUE)
        decoded: Tensor = self._transforms[name].decode(torch.zeros_like(target))
        return decoded.clone()


def _index(items: list[Item], device: torch.device) -> tuple[Tensor, Tensor]:
    places = torch.tensor([(item.row, item.sensor) for item in items], dtype=torch.long, device=device).reshape(-1, 2)
    return places[:, 0], places[:, 1]


def _most_extreme(values: Tensor) -> float:
    bad = values[~torch.isfinite(values)]
    return float(bad[0]) if len(bad) else float(values[values.abs().argmax()])

"""Run a regressor on several variants of the same events and compare what each is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from xectool.data.batch import EventBatch
from xectool.data.dead_masks import DeadSensors, EventPlaces
from xectool.tasks.base import MetricAccumulator, TrainingTask
from xectool.tasks.event_variants import Variant
from xectool.tasks.masked_batch import MaskedBatch
from xectool.tasks.paired import PairedMetric, paired_metrics
from xectool.tasks.sensor_task import SensorTask
from xectool.training.process.device import Execution
from xectool.training.stepping.evaluate import evaluate, run_model


@dataclass(frozen=True)
class Comparison:
    """What a regressor makes of each variant.

    Attributes:
        num_events: Events predicted.
        num_dead: Readings of dead sensors in them.
        metrics: Every metric of every task.
    """

    num_events: int
    num_dead: int
    metrics: tuple[PairedMetric, ...]


@dataclass(frozen=True)
class ComparisonRun:
    """What is compared.

    Attributes:
        model: The regressor.
        task: Its task.
        execution: Device and precision.
        dead: Which sensors are dead.
        variants: By name; the first is the one the others are compared with.
        advanced: Called after every batch.
    """

    model: nn.Module
    task: TrainingTask
    execution: Execution
    dead: DeadSensors
    variants: Mapping[str, Variant]
    advanced: Callable[[], None] = lambda: None


def compare_variants(batches: Iterable[EventBatch], run: ComparisonRun) -> Comparison:
    """Return the metrics of every task for every variant of the events, with the errors of their differences."""
    accumulators = {name: run.task.accumulator() for name in run.variants}
    num_events = num_dead = 0
    for batch in batches:
        num_events, num_dead = num_events + batch.num_events, num_dead + _add_batch(batch, run, accumulators)
        del batch
        run.advanced()
    return Comparison(num_events, num_dead, tuple(_metrics(accumulators)))


def _add_batch(batch: EventBatch, run: ComparisonRun, accumulators: Mapping[str, MetricAccumulator]) -> int:
    """Add a batch to the metrics of every variant and return how many dead readings it has."""
    mask = torch.from_numpy(run.dead.mask(EventPlaces.of(batch)).copy()).to(run.execution.device)
    on_device = batch.to(run.execution.device)
    for name, variant in run.variants.items():
        predicted = run_model(run.model, run.task, iter([variant(on_device, mask)]), run.execution)
        evaluate(predicted, accumulators[name], lambda: None)
    return int(mask.sum())


def masked_by_dead(batches: Iterable[EventBatch], task: SensorTask, dead: DeadSensors) -> Iterator[MaskedBatch]:
    """Yield batches whose hidden sensors are the dead ones, instead of random ones."""
    for batch in batches:
        mask = torch.from_numpy(dead.mask(EventPlaces.of(batch)).copy())
        yield task.prepare_masked(batch, mask)
        del batch, mask


def _metrics(accumulators: Mapping[str, MetricAccumulator]) -> Iterator[PairedMetric]:
    states = {name: _by_task(accumulator.state()) for name, accumulator in accumulators.items()}
    reference = next(iter(states))
    for task in states[reference]:
        yield from paired_metrics(task, {name: columns[task] for name, columns in states.items()}, reference)


def _by_task(state: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Return the columns of every task that had events with truth, out of the state of a regressor's accumulator."""
    tasks = [key.removesuffix("/residual") for key in state if key.endswith("/residual") and len(state[key])]
    return {
        task: {key.removeprefix(f"{task}/"): column for key, column in state.items() if key.startswith(f"{task}/")}
        for task in tasks
    }

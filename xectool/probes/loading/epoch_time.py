"""How long an epoch takes: measured steps of the configured network, and the loader beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.probes.loading.events import LoadingSubject, Setting, spread
from xectool.probes.loading.stages import StageReport
from xectool.training.process.device import Execution
from xectool.training.process.heap import keep_freed_memory
from xectool.training.ranks.base import Ranks
from xectool.training.saving.core_wait import core_wait_s
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.evaluate import evaluate, run_model
from xectool.training.stepping.parts import RunParts

_MAX_STEPS = 10
_MAX_VALIDATED = 3
_MAX_MICRO_BATCHES = 4
_LEAST_WINDOW = 1024
_LOOK_S = 0.5
KNOWN_ERROR = 0.2
"""Of a prediction, without what other processes take, against whole trainings (docs/benchmarks.md)."""


@dataclass(frozen=True)
class StepTime:
    """What the network takes of an epoch.

    Attributes:
        batch_s: Seconds a batch of training, with its share of the optimizer step.
        spread: Half the distance of the quartiles over the median.
        steps: Measured steps; 0 where the time was given.
        start_s: Seconds that the first step takes beyond the others; it compiles where the model is compiled.
        validation_event_s: Seconds an event of validation; None where it was not measured.
        validation_events: Events of a validation pass.
        on_host: Whether steps and reading share the cores.
        core_share: Share of the measured time in which a core was free for the steps, or for this process.
    """

    batch_s: float
    spread: float = 0.0
    steps: int = 0
    start_s: float = 0.0
    validation_event_s: float | None = None
    validation_events: int = 0
    on_host: bool = False
    core_share: float = 1.0


@dataclass(frozen=True)
class EpochTime:
    """A predicted epoch.

    Attributes:
        train_s: Seconds of the training part, waiting included.
        data_wait_share: Share of it in which the network waits for data.
        first_batch_s: Seconds to the first batch, part of both.
        validation_s: Seconds of a validation pass; None where it was not measured.
    """

    train_s: float
    data_wait_share: float
    first_batch_s: float
    validation_s: float | None


def measure_step(config: RunConfig, execution: Execution, seconds: float) -> StepTime:
    """Take some real steps of the configured training, and validate some batches.

    Args:
        config: The configuration.
        execution: Device, precision and compile mode.
        seconds: Time for the steps; a first one and one more are always taken.

    Raises:
        XecError: The training cannot be put together.
    """
    # A batch is the same work whatever it was shuffled with, and a large window takes long to fill.
    # Nor does a diagnosis begin to copy the events.
    window = {"chunksize": max(_LEAST_WINDOW, 2 * config.data.batch_size), "num_workers": 0, "cache": "off"}
    small = config.model_copy(update={"data": config.data.model_copy(update=window)})
    if execution.device.type == "cpu":
        keep_freed_memory()  # as a training does; a step without takes a tenth longer
    parts = build_parts(open_data(small), execution, Ranks())
    try:
        return _measured(parts, seconds)
    finally:
        parts.train_loader.close()
        parts.val_loader.close()


def _measured(parts: RunParts, seconds: float) -> StepTime:
    parts.model.train()
    parts.task.train()
    accumulated = parts.config.training.grad_accum_steps
    batches = _full_batches(parts, min(accumulated, _MAX_MICRO_BATCHES))
    first = _step(parts, batches)
    spent: list[float] = []
    waited_s = core_wait_s()
    while len(spent) < _MAX_STEPS and (not spent or sum(spent) + spent[-1] < seconds):
        spent.append(_step(parts, batches))
    core_share = 1.0 - min(1.0, (core_wait_s() - waited_s) / sum(spent))
    start_s = max(0.0, first - statistics.median(spent))
    batch_s = statistics.median(spent) / len(batches)
    if accumulated > len(batches):  # the optimizer's part of a step is shared by more batches than were measured
        alone = _step(parts, batches[:1])
        each = (statistics.median(spent) - alone) / (len(batches) - 1)
        batch_s = each + max(0.0, alone - each) / accumulated
    validated = _validation_event_s(parts)
    on_host = parts.execution.device.type == "cpu"
    events = parts.val_loader.plan.num_events
    return StepTime(batch_s, spread(spent), len(spent), start_s, validated, events, on_host, core_share)


def _full_batches(parts: RunParts, count: int) -> list[EventBatch]:
    """Return batches as training serves them; the first again where an epoch has fewer."""
    served = parts.train_loader.epoch(1)
    found = [batch for batch, _ in zip(served, range(min(count, parts.train_loader.plan.num_steps)), strict=False)]
    return (found * count)[:count]


def _step(parts: RunParts, window: Sequence[EventBatch]) -> float:
    began = time.perf_counter()
    parts.stepper.run(window, parts.config.training.lr)
    if parts.execution.device.type == "cuda":
        torch.cuda.synchronize(parts.execution.device)
    return time.perf_counter() - began


def _validation_event_s(parts: RunParts) -> float:
    """Return the seconds an event of validation; the first batch warms up where there are more."""
    accumulator, marks = parts.task.accumulator(), list[float]()
    parts.task.eval()
    batches = list(_first(parts.val_loader.epoch(0), _MAX_VALIDATED))
    predicted = run_model(parts.model, parts.task, batches, parts.execution)
    marks.append(time.perf_counter())
    evaluate(predicted, accumulator, lambda: marks.append(time.perf_counter()))
    rates = [(marks[i + 1] - marks[i]) / batch.num_events for i, batch in enumerate(batches)]
    return min(rates[1:] or rates)


def _first(batches: Iterator[EventBatch], count: int) -> Iterator[EventBatch]:
    for _, batch in zip(range(count), batches, strict=False):
        yield batch


def predict_epoch(
    subject: LoadingSubject, setting: Setting, events_per_s: float, stages: StageReport, step: StepTime, cores: int
) -> EpochTime:
    """Predict an epoch: the first batch waits for one window of every shard, then reading and steps run side by side.

    T = F / r + max(n (s + g + c), (N - F) / r + n g) with F events read before the first batch, N events, n batches of
    s seconds, r events a second of reading, g seconds to put a batch together, and, where steps run on the host, c
    seconds of the cores that reading takes from a step.

    Args:
        subject: The events.
        setting: How they are read.
        events_per_s: Rate of reading.
        stages: Where its time goes.
        step: What the network takes.
        cores: Cores of this process.
    """
    plan = subject.plan(setting.chunksize)
    size, events = plan.batch_size, plan.events_of_rank(0)
    before = _events_before_first_batch(subject, setting)
    batches = events / size
    gather = 1e-6 * stages.gather_us * size
    taken = 1e-6 * stages.reading_us * (events - before) / cores if step.on_host else 0.0
    first = before / events_per_s
    busy = batches * (step.batch_s + gather)
    reading = (events - before) / events_per_s + batches * gather
    train = first + max(busy + taken, reading)
    validation = None
    if step.validation_event_s is not None:
        validation = step.validation_events * max(step.validation_event_s + 1e-6 * stages.gather_us, 1 / events_per_s)
    return EpochTime(train, max(0.0, train - batches * step.batch_s - taken) / train, first, validation)


def epoch_range(train_s: float, step: StepTime) -> tuple[float, float]:
    """Return between which seconds an epoch lies; on the host from no other processes to those of now.

    Args:
        train_s: The prediction.
        step: What it was made of.
    """
    error, alone = max(KNOWN_ERROR, step.spread), step.core_share if step.on_host else 1.0
    return alone * train_s * (1 - error), train_s * (1 + error)


def core_share() -> float:
    """Return the share of half a second in which a core was free for this thread."""
    waited_s, began = core_wait_s(), time.perf_counter()
    while time.perf_counter() - began < _LOOK_S:
        pass
    return 1.0 - min(1.0, (core_wait_s() - waited_s) / (time.perf_counter() - began))


def _events_before_first_batch(subject: LoadingSubject, setting: Setting) -> int:
    plan = subject.plan(setting.chunksize)
    order, events = plan.order(1), 0
    for key in {key for key, _, _ in plan.batch_layout(1, 0, 0)}:
        low, high = order.bounds(key)
        events += high - low
    return events

"""Run a model over a data set without gradients: metrics for validation and prediction alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from xectool.data.batch import EventBatch
from xectool.tasks.base import MetricAccumulator, TrainingTask
from xectool.training.process.device import Execution
from xectool.training.ranks.base import Ranks

Forward = Callable[..., dict[str, Tensor]]
Predicted = tuple[EventBatch, dict[str, Tensor]]


def run_model(
    model: nn.Module,
    task: TrainingTask,
    batches: Iterable[EventBatch],
    execution: Execution,
    forward: Forward | None = None,
) -> Iterator[Predicted]:
    """Yield each batch on the device with the model's outputs in network units, float32.

    The model is in evaluation mode while this runs and is given back in the mode it had. Precision is that of
    training, so validation measures the model that is trained. Nothing of a batch is kept when the next is asked for;
    consumers drop theirs too, else two batches take turns in the heap and its holes grow with the events.

    Args:
        model: The network.
        task: Prepares each batch and says what the network is called with.
        batches: Events in the order they are wanted back.
        execution: Device and precision.
        forward: Computes in place of the network, such as the network compiled.
    """
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            if batch.num_events:
                yield _predict(forward or model, task, batch, execution)
            del batch
    finally:
        model.train(was_training)


@torch.inference_mode()
def _predict(forward: Forward, task: TrainingTask, batch: EventBatch, execution: Execution) -> Predicted:
    prepared = task.prepare(batch.to(execution.device, non_blocking=True))
    with execution.autocast():
        outputs = forward(*task.inputs(prepared))
    return prepared, in_float32(outputs)


def in_float32(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs with numbers in float32, whatever precision computed them; masks stay as they are."""
    return {name: value.float() if value.is_floating_point() else value for name, value in outputs.items()}


def evaluate(predicted: Iterable[Predicted], accumulator: MetricAccumulator, on_batch: Callable[[], None]) -> float:
    """Feed ``accumulator`` with what `run_model` yields and return events per second."""
    started, num_events = time.perf_counter(), 0
    for batch, outputs in predicted:
        accumulator.update(outputs, batch)
        num_events += batch.num_events
        del batch, outputs
        on_batch()
    return num_events / max(time.perf_counter() - started, 1e-9)


def merged(
    task: TrainingTask, ranks: Ranks, accumulator: MetricAccumulator, rate: float
) -> tuple[MetricAccumulator, float]:
    """Return what all ranks have collected, the same on each of them, and the events per second of all."""
    if ranks.world_size == 1:
        return accumulator, rate
    whole = task.accumulator()
    for state, _ in (everywhere := ranks.gather((accumulator.state(), rate))):
        whole.merge(state)
    return whole, sum(part for _, part in everywhere)

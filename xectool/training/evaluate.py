"""Run a model over a data set without gradients: metrics for validation and prediction alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from xectool.data.batch import EventBatch
from xectool.tasks.base import MetricAccumulator
from xectool.training.device import Execution

Forward = Callable[[Tensor, Tensor], dict[str, Tensor]]


def run_model(
    model: nn.Module, batches: Iterable[EventBatch], execution: Execution, forward: Forward | None = None
) -> Iterator[tuple[EventBatch, dict[str, Tensor]]]:
    """Yield each batch on the device with the model's outputs in network units, float32.

    The model is in evaluation mode while this runs and is given back in the mode it had. Precision is that of
    training, so validation measures the model that is trained.

    Args:
        model: The network.
        batches: Events in the order they are wanted back.
        execution: Device and precision.
        forward: Compiled form of the model, or None for the model itself.
    """
    call: Forward = forward or model
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            if not batch.num_events:
                continue
            moved = batch.to(execution.device, non_blocking=True)
            with torch.inference_mode(), execution.autocast():
                outputs = call(moved.npho, moved.time)
            yield moved, {name: value.float() for name, value in outputs.items()}
    finally:
        model.train(was_training)


def evaluate(
    model: nn.Module,
    batches: Iterable[EventBatch],
    accumulator: MetricAccumulator,
    execution: Execution,
    on_batch: Callable[[], None],
) -> float:
    """Feed ``accumulator`` with the model's outputs on all batches and return events per second."""
    started, num_events = time.perf_counter(), 0
    for batch, outputs in run_model(model, batches, execution):
        accumulator.update(outputs, batch)
        num_events += batch.num_events
        on_batch()
    return num_events / max(time.perf_counter() - started, 1e-9)

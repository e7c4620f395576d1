"""Run a model on some events as the training step did, without touching anything.

Axes: B events.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xectool.config.training import TrainingConfig
from xectool.data.batch import EventBatch
from xectool.tasks.base import Outputs, TrainingTask
from xectool.tasks.sensor_task import SensorTask
from xectool.training.events.augment import drop_channels
from xectool.training.process.device import Execution
from xectool.training.stepping.batch_loss import seed_batch
from xectool.training.stepping.evaluate import in_float32

if TYPE_CHECKING:
    from xectool.training.stepping.parts import RunParts

MASKS = 5  # other choices of hidden sensors that say what an event usually loses


@dataclass(frozen=True)
class Trial:
    """What is needed to repeat a step on any of its events.

    The random numbers of a batch are those of its step, so dropout and augmentation come out the same for the same
    events. The generators are given back as they were.

    Attributes:
        model: The network, in the mode it is to be tried in.
        task: The objective.
        execution: Device and precision.
        training: Gives the seed and the augmentation.
        rank: Rank whose stream is used.
        loss_scale: Factor of the loss in the backward pass, as float16 training has it.
    """

    model: nn.Module
    task: TrainingTask
    execution: Execution
    training: TrainingConfig
    rank: int = 0
    loss_scale: float = 1.0

    @classmethod
    def of(cls, parts: RunParts) -> Trial:
        """Return the trial of a run as it stands."""
        scale = float(parts.stepper.scaler.get_scale())
        return cls(parts.model, parts.task, parts.execution, parts.config.training, parts.ranks.rank, scale)

    def forward(self, batch: EventBatch) -> tuple[EventBatch, Outputs]:
        """Return a batch as the task prepares it, on the device, and the model's outputs in float32."""
        prepared = self.task.prepare(batch.to(self.execution.device))
        seed_batch(self.training.seed, batch.epoch, batch.step, self.rank)
        npho, times, *added = self.task.inputs(prepared)
        npho, times = drop_channels(npho, times, self.training.channel_dropout_rate)
        with self.execution.autocast():
            outputs = self.model(npho, times, *added)
        return prepared, in_float32(outputs)

    @torch.no_grad()
    def event_losses(self, batch: EventBatch) -> npt.NDArray[np.float64]:
        """Return what each event alone adds to the objective, shape (B,); NaN for one without any truth."""
        if not batch.num_events:
            return np.empty(0)
        with kept_generators():
            _, outputs = self.forward(batch)
            return np.array([self._one_loss(batch, outputs, row) for row in range(batch.num_events)])

    def usual_losses(self, window: Sequence[EventBatch]) -> npt.NDArray[np.float64]:
        """Return what each event mostly adds with other sensors hidden, shape (B,); infinite where none are.

        A bright sensor beside the shower is hard to foretell, and hidden now and then; what is wrong with an event
        stays.
        """
        if not isinstance(self.task, SensorTask):
            return np.full(sum(batch.num_events for batch in window), math.inf)
        masked = [[replace(batch, epoch=batch.epoch + shift) for batch in window] for shift in range(1, MASKS + 1)]
        losses = [np.concatenate([self.event_losses(batch) for batch in one]) for one in masked]
        return np.asarray(np.median(losses, axis=0))

    @torch.no_grad()
    def has_finite_outputs(self, batch: EventBatch) -> bool:
        """Return whether the model's outputs for a batch are all finite."""
        with kept_generators():
            _, outputs = self.forward(batch)
        return all(bool(torch.isfinite(value).all()) for value in outputs.values())

    def has_truth(self, batch: EventBatch) -> npt.NDArray[np.bool_]:
        """Return which events enter the loss at all, shape (B,)."""
        singles = (batch.take(np.array([row])).to(self.execution.device) for row in range(batch.num_events))
        return np.array([bool((self.task.counts(self.task.prepare(one)) > 0).any()) for one in singles], dtype=bool)

    def mean_loss(self, window: Sequence[EventBatch]) -> float:
        """Return the mean loss of the events that have truth; infinite where one is not finite."""
        losses = np.concatenate([self.event_losses(batch)[self.has_truth(batch)] for batch in window])
        return float(losses.mean()) if len(losses) and bool(np.isfinite(losses).all()) else math.inf

    def is_finite(self, window: Sequence[EventBatch], *, gradient: bool = True) -> bool:
        """Return whether loss and gradient of a window are finite; nothing is changed."""
        with kept_generators():
            return self._is_finite([batch for batch in window if batch.num_events], gradient)

    def _is_finite(self, window: Sequence[EventBatch], gradient: bool) -> bool:
        if not window:
            return True
        counts = sum(self.task.counts(self.task.prepare(b.to(self.execution.device))) for b in window)
        assert isinstance(counts, Tensor)
        parameters = [p for part in (self.model, self.task) for p in part.parameters() if p.requires_grad]
        added: list[Tensor | None] = [None] * len(parameters)
        for batch in window:
            with torch.set_grad_enabled(gradient):
                prepared, outputs = self.forward(batch)
                total = self.task.loss(outputs, prepared, counts).total
            if not math.isfinite(float(total.detach())):
                return False
            if gradient and total.requires_grad:
                grads = torch.autograd.grad(total * self.loss_scale, parameters, allow_unused=True)
                added = [_sum(one, other) for one, other in zip(added, grads, strict=True)]
        found = [grad for grad in added if grad is not None]
        return not found or math.isfinite(float(nn.utils.get_total_norm(found)))

    def _one_loss(self, batch: EventBatch, outputs: Outputs, row: int) -> float:
        one = self.task.prepare(batch.take(np.array([row])).to(self.execution.device))
        picked = {name: _row(value, row, batch.num_events) for name, value in outputs.items()}
        counts = self.task.counts(one)
        sums = self.task.loss(picked, one, counts).sums.to(counts.device)
        return self.task.combine(sums, counts)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Give the random generators of torch back as they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _row(value: Tensor, row: int, num_events: int) -> Tensor:
    """Return one event of an output; what has no axis of events belongs to all of them."""
    return value[row : row + 1] if value.ndim and len(value) == num_events else value


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other

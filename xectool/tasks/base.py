"""Everything the training loop asks of a task.

Axes: B events, N loss terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.registry import Registry

if TYPE_CHECKING:
    from xectool.config.root import RunConfig
    from xectool.data.batch import EventBatch

Outputs = Mapping[str, Tensor]
AccumulatorState = dict[str, np.ndarray]


class LossTerms(NamedTuple):
    """Loss of one batch.

    Attributes:
        total: Scalar with graph, already divided by the counts of the accumulation window.
        sums: Sum over the batch of each term's per-event loss, detached float64, shape (N,).
    """

    total: Tensor
    sums: Tensor


@dataclass(frozen=True, order=True)
class WorstEvent:
    """One badly reconstructed event; ordered by loss, then by identity.

    Attributes:
        loss: What it adds to the objective before averaging; infinite when the prediction is not finite.
        file_index: Which input file it lies in.
        entry: Its entry in that file.
        run: Run number.
        event: Event number.
    """

    loss: float
    file_index: int
    entry: int
    run: int
    event: int


class MetricAccumulator(ABC):
    """Collects what the metrics of one pass over a data set need, in bounded memory."""

    @abstractmethod
    def update(self, outputs: Outputs, batch: EventBatch) -> None:
        """Add one batch; events without valid truth are left out."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Return all metrics by name; NaN where predictions were not finite, absent where no event had truth."""

    @abstractmethod
    def worst(self, count: int) -> list[WorstEvent]:
        """Return up to ``count`` events, largest loss first."""

    @abstractmethod
    def state(self) -> AccumulatorState:
        """Return everything collected as plain arrays, to send to another rank."""

    @abstractmethod
    def merge(self, state: AccumulatorState) -> None:
        """Add what another rank's accumulator collected."""


class TrainingTask(nn.Module, ABC):
    """A loss, its denominators and its metrics.

    A module, so that parameters of the loss (learned task weights) are saved and optimised; those take no weight decay.

    Attributes:
        terms: Names of the loss terms, in the order of every ``(N,)`` tensor here.
        num_tallies: Length of what :meth:`tallies` returns.
    """

    terms: tuple[str, ...]
    num_tallies: int = 0

    def prepare(self, batch: EventBatch) -> EventBatch:
        """Return the batch with what the task adds before the forward pass, such as a mask; already on its device."""
        return batch

    def inputs(self, batch: EventBatch) -> tuple[Tensor, ...]:
        """Return what the model is called with: raw npho and time, shape (B, S), then what the task adds."""
        return batch.npho, batch.time

    @abstractmethod
    def counts(self, batch: EventBatch) -> Tensor:
        """Return how many events of the batch enter each term, float64, shape (N,); needs no model output.

        Raises:
            XecError: The truth cannot be trained on as configured.
        """

    @abstractmethod
    def loss(self, outputs: Outputs, batch: EventBatch, counts: Tensor) -> LossTerms:
        """Return the batch's share of the objective.

        Args:
            outputs: Model outputs in network units, by name, shape (B, head width).
            batch: The events that produced them.
            counts: Totals of `counts` over the whole accumulation window and all ranks, shape (N,); summed over the
                batches of the window, gradients equal those of the one big batch.
        """

    @abstractmethod
    def combine(self, sums: Tensor, counts: Tensor) -> float:
        """Return the objective of many batches from their added ``LossTerms.sums`` and `counts`."""

    @abstractmethod
    def accumulator(self) -> MetricAccumulator:
        """Return an empty accumulator of this task's metrics."""

    def term_losses(self, sums: Sequence[float], counts: Sequence[float]) -> dict[str, float]:
        """Return the mean losses worth logging of a training epoch, by name, from its added sums and counts."""
        return {
            f"{term}/loss": total / count for term, total, count in zip(self.terms, sums, counts, strict=True) if count
        }

    def tallies(self, batch: EventBatch) -> Tensor:
        """Return numbers of a prepared batch that add up over an epoch, such as hidden sensors; float64, its device."""
        return batch.npho.new_zeros(0, dtype=torch.float64)

    def tally_metrics(self, totals: Sequence[float]) -> dict[str, float]:
        """Return what an epoch's added `tallies` say, by name."""
        return {}

    def scalars(self) -> dict[str, float]:
        """Return further values worth logging each epoch, such as learned task weights."""
        return {}

    def trivial_losses(self, targets: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return, by term, the mean loss of the best constant prediction; a model must beat it to have learned.

        Args:
            targets: Truth of training events in physical units by task, shape (B, D).
        """
        return {}


def valid_truth(truth: Tensor) -> Tensor:
    """Return which events have a known truth: all components finite and below the sentinel for "unknown", 1e10.

    Args:
        truth: Physical units, shape (B, D).

    Returns:
        Booleans, shape (B,).
    """
    return (truth.isfinite() & (truth.abs() < UNKNOWN_ABOVE)).all(dim=-1)


TaskBuilder = Callable[["RunConfig", nn.Module], TrainingTask]
TASKS: Registry[TaskBuilder] = Registry("kind of training", "xectool.tasks", "tasks")

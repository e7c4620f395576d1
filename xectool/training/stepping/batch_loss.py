"""The loss of one batch as one module: network, augmentation, precision and task; several ranks can share it."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from xectool.config.training import TrainingConfig
from xectool.data.batch import EventBatch
from xectool.tasks.base import TrainingTask
from xectool.training.events.augment import drop_channels
from xectool.training.process.device import Execution, keep_counts_in_graph
from xectool.training.stepping.evaluate import Forward, in_float32


class BatchLoss(nn.Module):
    """The loss of a batch and its sums per term.

    Every parameter that is trained takes part in what it returns; it is what the gradients of several ranks are added
    up behind.

    Args:
        model: The network; called with raw npho and time.
        task: The objective.
        execution: Device, precision and compile mode.
        config: The training section.
        rank: Rank whose random numbers are drawn.
    """

    def __init__(
        self, model: nn.Module, task: TrainingTask, execution: Execution, config: TrainingConfig, rank: int
    ) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.execution = execution
        self.config = config
        self.rank = rank
        # in a tuple, for a compiled network is no part of its own beside the network
        self._run: tuple[Forward] = (compiled(model, execution, config),)

    def forward(self, batch: EventBatch | None, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss with its graph, a scalar, and the sums of the terms, shape (N,).

        Args:
            batch: Prepared events; None takes part with a loss of zero.
            counts: Denominators of the terms over the whole window and all ranks, shape (N,).
        """
        if batch is None:
            return self._nothing(), torch.zeros_like(counts)
        seed_batch(self.config.seed, batch.epoch, batch.step, self.rank)
        npho, times, *added = self.task.inputs(batch)
        npho, times = drop_channels(npho, times, self.config.channel_dropout_rate)
        with self.execution.autocast():
            outputs = self._run[0](npho, times, *added)
        # losses always in float32: log, exp and squares of reduced precision overflow or lose the target's digits
        terms = self.task.loss(in_float32(outputs), batch, counts)
        return terms.total, terms.sums.to(counts.device)

    def _nothing(self) -> Tensor:
        parts = [0.0 * parameter.sum() for parameter in self.parameters() if parameter.requires_grad]
        return torch.stack(parts).sum()


def compiled(model: nn.Module, execution: Execution, config: TrainingConfig) -> Forward:
    """Return the model's forward, compiled if the execution plan says so."""
    if execution.compile_mode is None:
        return model
    keep_counts_in_graph()
    mode = None if execution.compile_mode == "default" else execution.compile_mode
    forward: Forward = torch.compile(model, mode=mode, fullgraph=config.compile_fullgraph)
    return forward


def seed_batch(seed: int, epoch: int, step: int, rank: int) -> None:
    """Give the random numbers of one batch a stream of their own.

    Dropout and augmentation of a batch then depend on nothing that happened before, so a resumed run repeats them
    and a recorded step can be replayed alone.
    """
    torch.manual_seed(stream_seed(seed, epoch, step, rank))


def stream_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """Return the seed of the random numbers of one batch, below 2**63."""
    key = hashlib.blake2b(f"{seed} {epoch} {step} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(key, "little") >> 1

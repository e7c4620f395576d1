"""A training put together for experiments: network, loss and optimizer, without loaders and without a run directory."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from xectool.checkpoint.format import Checkpoint
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.errors import ConfigError
from xectool.models.build import build_model
from xectool.tasks import build_task
from xectool.tasks.base import LossTerms, TrainingTask
from xectool.training.events.augment import drop_channels
from xectool.training.optimization.optim import build_optimizer
from xectool.training.process.device import Execution
from xectool.training.saving.resume import network_options
from xectool.training.stepping.batch_loss import seed_batch
from xectool.training.stepping.build import seed_everything
from xectool.training.stepping.evaluate import in_float32
from xectool.training.stepping.state import load_optimizer, load_task, load_weights


@dataclass(frozen=True)
class Bench:
    """What is experimented on.

    Attributes:
        config: The resolved configuration.
        model: The network, eager, on its device.
        task: The objective.
        optimizer: As training has it.
        execution: Device and precision.
        lr: Rate of the scratch update.
        rank: Whose random stream is used.
        channel_dropout: Share of sensors made dead; 0 shows the network every value.
        fresh: Builds the same with the weights of the configuration's seed; None where these are them.
        evaluating: Whether the modules are tried as validation and prediction use them.
    """

    config: RunConfig
    model: nn.Module
    task: TrainingTask
    optimizer: torch.optim.Optimizer
    execution: Execution
    lr: float
    rank: int = 0
    channel_dropout: float = 0.0
    fresh: Callable[[], Bench] | None = None
    evaluating: bool = False

    def set_mode(self) -> None:
        """Put network and objective in the mode in which they are tried."""
        self.model.train(not self.evaluating)
        self.task.train(not self.evaluating)

    def prepared(self, window: Sequence[EventBatch]) -> list[EventBatch]:
        """Return the batches that hold events, on the device, with their masks."""
        device = self.execution.device
        return [self.task.prepare(batch.to(device)) for batch in window if batch.num_events]

    def counts(self, batches: Sequence[EventBatch]) -> Tensor:
        """Return the denominators of a window of prepared batches, float64, shape (N,).

        Raises:
            XecError: The truth cannot be trained on as configured.
        """
        counts = torch.zeros(len(self.task.terms), dtype=torch.float64, device=self.execution.device)
        for batch in batches:
            counts += self.task.counts(batch)
        return counts

    def forward(self, batch: EventBatch) -> dict[str, Tensor]:
        """Return the outputs for a prepared batch, with the random stream training gives it."""
        seed_batch(self.config.training.seed, batch.epoch, batch.step, self.rank)
        npho, times, *added = self.task.inputs(batch)
        # Drawn as in float32 whatever the precision, so that the same sensors are made dead.
        npho, times = (
            dropped.to(npho.dtype) for dropped in drop_channels(npho.float(), times.float(), self.channel_dropout)
        )
        with self.execution.autocast():
            outputs: dict[str, Tensor] = self.model(npho, times, *added)
        return outputs

    def loss(self, outputs: dict[str, Tensor], batch: EventBatch, counts: Tensor) -> LossTerms:
        """Return the loss terms of outputs, in float32 or better as in training."""
        double = any(value.dtype == torch.float64 for value in outputs.values())
        return self.task.loss(outputs if double else in_float32(outputs), batch, counts)

    def with_execution(self, **changes: Any) -> Bench:
        """Return the same modules under another device plan, such as ``autocast_dtype=None``."""
        return replace(self, execution=replace(self.execution, **changes))

    def doubled(self) -> Bench:
        """Return a copy that computes in float64; feed it with `in_double`."""
        model, task = copy.deepcopy((self.model, self.task))
        model.double()
        task.double()
        return replace(self, model=model, task=task).with_execution(autocast_dtype=None, use_scaler=False)

    def state(self) -> dict[str, Any]:
        """Return a copy of everything an update changes."""
        live = {"model": self.model.state_dict(), "task": self.task.state_dict()}
        return copy.deepcopy({**live, "optimizer": self.optimizer.state_dict()})

    def checkpoint(self) -> Checkpoint:
        """Return weights, loss and moments as they stand, with the configuration; not what a resume needs."""
        state = self.state()
        meta = {"kind": self.config.kind, "config": self.config.to_dict()}
        return Checkpoint(meta, state["model"], training={name: state[name] for name in ("task", "optimizer")})

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.task.load_state_dict(state["task"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


def in_double(batch: EventBatch) -> EventBatch:
    """Return a batch, not yet prepared, with its numbers in float64."""
    return replace(
        batch,
        npho=batch.npho.double(),
        time=batch.time.double(),
        targets={task: target.double() for task, target in batch.targets.items()},
        weight=batch.weight.double(),
    )


def build_bench(config: RunConfig, execution: Execution, checkpoint: Checkpoint | None = None) -> Bench:
    """Put the training of a configuration together: weights of its seed, or those of a checkpoint.

    Raises:
        CheckpointError: The checkpoint does not fit the configuration.
    """
    training = config.training
    seed_everything(training.seed)
    model = build_model(config).to(execution.device)
    task = build_task(config, model).to(execution.device)
    optimizer = build_optimizer([model, task], training.lr, training.weight_decay)
    return with_weights(Bench(config, model, task, optimizer, execution, training.lr), checkpoint)


def with_weights(bench: Bench, checkpoint: Checkpoint | None) -> Bench:
    """Return a bench of fresh weights with those of a checkpoint, if there is one; activations are never recomputed.

    Raises:
        CheckpointError: The checkpoint does not fit the configuration.
    """
    without = getattr(bench.model, "set_activation_checkpointing", None)
    if without is not None:  # recomputed activations would hide where a value was first made
        without("none")
    if checkpoint is None:
        return bench
    fits = _shapes(bench.model.state_dict()) == _shapes(checkpoint.model)
    load_weights(bench.model, checkpoint.model, None if fits else _fitting(bench.config, checkpoint))
    load_task(bench.task, checkpoint)
    if "optimizer" in checkpoint.training:
        load_optimizer(bench.optimizer, checkpoint.training["optimizer"])
    return replace(bench, fresh=lambda: build_bench(bench.config, bench.execution))


def _fitting(config: RunConfig, checkpoint: Checkpoint) -> str | None:
    """Return the options with which the network is that of a checkpoint; None where its weights do not fit that one."""
    options = network_options(config, checkpoint)
    settings = [shlex.split(option)[1] for option in options]
    try:
        described = build_model(config_from_dict(config.to_dict(), "the configuration", settings))
    except ConfigError:  # what cannot be configured is no advice
        return None
    return " ".join(options) if _shapes(described.state_dict()) == _shapes(checkpoint.model) else None


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in weights.items()}

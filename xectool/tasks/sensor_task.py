"""Reconstruction of hidden sensors: what the masked autoencoder and the inpainter are trained on.

Axes: B events, S sensors (4760), C predicted channels, G groups of sensors, N loss terms = G C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from xectool.config.training import SensorTrainingConfig
from xectool.data.batch import EventBatch
from xectool.models.normalize import Normalizer
from xectool.models.sensor_input import SensorHider
from xectool.tasks.balance import LossBalance, ManualBalance
from xectool.tasks.base import LossTerms, Outputs, TrainingTask
from xectool.tasks.baseline_scores import BaselineScores
from xectool.tasks.event_masks import event_masks
from xectool.tasks.masked_batch import MaskedBatch
from xectool.tasks.sensor_losses import ChannelBalance, SensorGroups, SensorLoss
from xectool.tasks.sensor_metrics import SensorMetrics

Reconstruction = Callable[[Outputs], Tensor]


class SensorModel(Protocol):
    """What a task needs of a network that predicts hidden sensors."""

    normalizer: Normalizer
    hider: SensorHider
    channels: tuple[str, ...]


@dataclass(frozen=True)
class SensorObjective:
    """What distinguishes one sensor-level training from another.

    Attributes:
        training: The training section.
        by_face: Whether each face has a mean loss of its own, or all sensors share one.
        auto_channel_weight: Whether the weights of the channels are learnt.
        baselines: Whether conventional estimators are scored beside the network.
    """

    training: SensorTrainingConfig
    by_face: bool
    auto_channel_weight: bool = False
    baselines: bool = False


class SensorTask(TrainingTask):
    """Mean loss over hidden readings, for each channel and, if wanted, for each face.

    The mask of an event is a function of the run's seed, the epoch and the event, drawn before the forward pass: the
    counts are known when the loss is taken, validation sees the same masks every epoch (its batches carry epoch 0), and
    batches add up to exactly what one big batch gives.

    Args:
        model: The network; keeps its normaliser and masking.
        objective: What is minimised.
        seed: Of the run.
    """

    def __init__(self, model: nn.Module, objective: SensorObjective, seed: int) -> None:
        super().__init__()
        parts = cast(SensorModel, model)
        self.training_config = objective.training
        self.channels = parts.channels
        self.normalizer = parts.normalizer
        self.hider = parts.hider
        self.objective = objective
        self.seed = seed
        self.loss_fn = SensorLoss(objective.training, self.channels)
        self.groups = SensorGroups(objective.by_face)
        self.faces = SensorGroups(by_face=True)
        self.terms = self.groups.terms(self.channels)
        self.balance = self._balance(model)
        self._covered: Tensor | None = getattr(model, "covered", None)
        self._baselines = BaselineScores(self.normalizer) if objective.baselines and "npho" in self.channels else None

    def prepare(self, batch: EventBatch) -> MaskedBatch:
        """Return the batch with its mask, on the device it lies on; a prepared batch is returned as it is."""
        if isinstance(batch, MaskedBatch):
            return batch
        x, valid = self.normalizer.normalize(batch.npho, batch.time)
        mask = event_masks(self.hider, x, valid, batch, self.seed)
        return MaskedBatch.of(batch, self._predicted(mask), x, valid)

    def prepare_with_dead(self, batch: EventBatch) -> MaskedBatch:
        """Return the batch with a mask that also asks for the sensors without a reading; they enter no metric."""
        prepared = self.prepare(batch)
        mask = prepared.mask | self._predicted(~prepared.valid[..., 0])
        return MaskedBatch.of(prepared, mask, prepared.x, prepared.valid)

    def inputs(self, batch: EventBatch) -> tuple[Tensor, ...]:
        """Return what the model is called with: raw npho and time, shape (B, S), and the mask, bool (B, S)."""
        prepared = self.prepare(batch)
        return prepared.npho, prepared.time, prepared.mask

    def reconstruction(self, outputs: Outputs) -> Tensor:
        """Return predictions by sensor in network units, shape (B, S, C)."""
        return outputs["sensors"]

    def counts(self, batch: EventBatch) -> Tensor:
        """Return the sum of the weights of the hidden readings, by term, float64, shape (N,)."""
        weights = self.loss_fn.weights(self.prepare(batch))
        return self.groups.sums(weights.sum(dim=0)).flatten()

    def loss(self, outputs: Outputs, batch: EventBatch, counts: Tensor) -> LossTerms:
        """Return ``sum over terms of weight * (sum of event weight * reading weight * loss) / counts``.

        Event weights are not renormalised: their mean over the training events is one by construction.
        """
        masked = self.prepare(batch)
        weights = self.loss_fn.weights(masked)
        values = self.loss_fn.values(self.reconstruction(outputs), masked)
        # Selected before it is weighted: what is not hidden must not send a gradient back, not even 0 times infinity.
        weighted = torch.where(weights > 0, values, 0.0) * weights * masked.weight[:, None, None]
        sums = self.groups.sums(weighted.sum(dim=0)).flatten()
        divisor = _divisor(counts.to(sums.device))
        total = self.balance.combine(sums / divisor, self.groups.sums(weights.sum(dim=0)).flatten() / divisor)
        return LossTerms(total, sums.detach())

    @torch.no_grad()
    def combine(self, sums: Tensor, counts: Tensor) -> float:
        """Return the objective from accumulated sums; NaN when nothing was hidden."""
        if not bool((counts > 0).any()):
            return float("nan")
        device = self.balance.effective_weights().device
        sums, counts = sums.to(device), counts.to(device)
        return float(self.balance.combine(sums / _divisor(counts), (counts > 0).double()))

    def accumulator(self) -> SensorMetrics:
        """Return an empty accumulator."""
        return SensorMetrics(self, self._baselines)

    def scalars(self) -> dict[str, float]:
        """Return the learnt channel weights: ``channel/<channel>_log_var`` and ``channel/<channel>_weight``."""
        if not isinstance(self.balance, ChannelBalance):
            return {}
        log_vars, weights = self.balance.log_vars.tolist(), self.balance.effective_weights().tolist()
        found = {f"channel/{name}_log_var": value for name, value in zip(self.channels, log_vars, strict=True)}
        return found | {f"channel/{name}_weight": value for name, value in zip(self.channels, weights, strict=False)}

    def _predicted(self, mask: Tensor) -> Tensor:
        """Return the mask without the sensors that the network has no output for: nothing could be compared."""
        return mask if self._covered is None else mask & self._covered.to(mask.device)

    def _balance(self, model: nn.Module) -> LossBalance:
        if self.objective.auto_channel_weight:
            log_vars = getattr(model, "channel_log_vars", None)
            return ChannelBalance(len(self.groups.names), len(self.channels), log_vars)
        training = self.objective.training
        by_channel = {"npho": training.npho_weight, "time": training.time.weight}
        return ManualBalance([by_channel[name] for _ in self.groups.names for name in self.channels])


def _divisor(counts: Tensor) -> Tensor:
    """Return counts without zeros; a sum of weights may be below 1."""
    return torch.where(counts > 0, counts, torch.ones_like(counts))

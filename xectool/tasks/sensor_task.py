"""Reconstruction of hidden sensors: what the masked autoencoder and the inpainter are trained on.

Axes: B events, S sensors (4760), C predicted channels, G groups of sensors, N loss terms = G C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
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
        baseline_hops: Reach of the conventional estimators that are scored beside the network; 0 for none.
    """

    training: SensorTrainingConfig
    by_face: bool
    auto_channel_weight: bool = False
    baseline_hops: int = 0


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

    num_tallies = 3

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
        self._baselines: BaselineScores | None = None
        self.score_neighbours(objective.baseline_hops if "npho" in self.channels else 0)

    def score_neighbours(self, hops: int) -> None:
        """Score conventional estimators of this reach beside the network; of 0 hops none."""
        self._baselines = BaselineScores(self.normalizer, hops) if hops else None

    def prepare(self, batch: EventBatch) -> MaskedBatch:
        """Return the batch with its mask, on the device it lies on; a prepared batch is returned as it is."""
        if isinstance(batch, MaskedBatch):
            return batch
        x, valid = self.normalizer.normalize(batch.npho, batch.time)
        mask = event_masks(self.hider, x, valid, batch, self.seed)
        return MaskedBatch.of(batch, self._predicted(mask), x, valid)

    def prepare_masked(self, batch: EventBatch, mask: Tensor) -> MaskedBatch:
        """Return the batch with the given sensors hidden, bool (B, S); those without a reading enter no metric."""
        x, valid = self.normalizer.normalize(batch.npho, batch.time)
        return MaskedBatch.of(batch, self._predicted(mask), x, valid)

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

    def term_losses(self, sums: Sequence[float], counts: Sequence[float]) -> dict[str, float]:
        """Return mean losses by face and channel where ``training.track_metrics`` asks for them."""
        if not self.training_config.track_metrics:
            return {}
        return {name: value for name, value in self.mean_losses(sums, counts).items() if np.isfinite(value)}

    def mean_losses(self, sums: Sequence[float], counts: Sequence[float]) -> dict[str, float]:
        """Return ``loss_<term>``, and with losses by face ``loss_<face>`` and ``loss_<channel>``; NaN of nothing."""
        totals, weights = np.asarray(sums), np.asarray(counts)
        means = np.divide(totals, weights, out=np.full_like(totals, np.nan), where=weights > 0)
        found = {f"loss_{term}": float(mean) for term, mean in zip(self.terms, means, strict=True)}
        names, table = self.groups.names, means.reshape(len(self.groups.names), len(self.channels))
        if len(names) == 1:
            return found
        weighted = table * self.balance.effective_weights().cpu().numpy().reshape(table.shape)
        found |= {f"loss_{name}": _sum(row) for name, row in zip(names, weighted, strict=True)}
        return found | {f"loss_{name}": _sum(row) for name, row in zip(self.channels, table.T, strict=True)}

    def tallies(self, batch: EventBatch) -> Tensor:
        """Return how many sensors are hidden with a reading, have a reading, and are there at all; float64, (3,).

        A reading counts where the encoder would see it: in the older geometry, which leaves out sensors without a time
        where time is predicted, those have none.
        """
        masked = self.prepare(batch)
        seen = self.hider.readable(masked.x, masked.valid)
        numbers = [(masked.mask & seen).sum(), seen.sum(), seen.new_tensor(seen.numel(), dtype=torch.int64)]
        return torch.stack(numbers).double()

    def tally_metrics(self, totals: Sequence[float]) -> dict[str, float]:
        """Return the three ratios of hidden sensors from added `tallies`; nothing of no event.

        ``masked_of_valid`` of those with a reading, ``masked_of_all`` of all, and ``hidden_of_all``, which counts the
        sensors without a reading as hidden.
        """
        hidden, valid, everything = totals or (0.0, 0.0, 0.0)
        if not everything:
            return {}
        found = {"masked_of_all": hidden / everything, "hidden_of_all": (everything - valid + hidden) / everything}
        if valid:
            found["masked_of_valid"] = hidden / valid
        return {name: float(value) for name, value in found.items()}

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


def _sum(row: np.ndarray) -> float:
    """Return the sum of what is known; NaN of nothing."""
    return float(np.nansum(row)) if np.isfinite(row).any() else float("nan")


def _divisor(counts: Tensor) -> Tensor:
    """Return counts without zeros; a sum of weights may be below 1."""
    return torch.where(counts > 0, counts, torch.ones_like(counts))

"""Losses at hidden sensors: which readings count, how much, and how far a prediction is off.

Axes: B events, S sensors (4760), C predicted channels, G groups of sensors (faces, or all of them), N loss terms = G C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from xectool.config.model import CHANNEL_NAMES
from xectool.config.training import DEFAULT_TIME_THRESHOLD, SensorTrainingConfig
from xectool.detector import faces
from xectool.tasks.balance import LOG_VAR_LIMIT, LossBalance
from xectool.tasks.losses import LOSSES, clamp_straight_through
from xectool.tasks.masked_batch import MaskedBatch


def time_threshold(training: SensorTrainingConfig) -> float:
    """Return the photons a sensor needs for its time to enter the loss."""
    found = training.time.npho_threshold
    return DEFAULT_TIME_THRESHOLD if found is None else found


def photons(batch: MaskedBatch) -> Tensor:
    """Return photons of all sensors, shape (B, S), zero where there is no valid reading."""
    return torch.where(batch.valid[..., 0], batch.npho, 0.0)


@dataclass(frozen=True)
class SensorLoss:
    """Pointwise loss and weight of every hidden reading.

    * npho: every hidden sensor with a valid npho; with ``npho_loss_weight`` by ``(max(n, 1) + 1)^alpha``.
    * time: of those with a valid time, the sensors with at least ``time.npho_threshold`` photons; with
      ``use_npho_weight`` by ``sqrt(max(n, threshold))``.

    A mean over weights divides by the sum of the weights, which is the older system's weight of mean one. The sums are
    taken over the whole accumulation window, so its gradient does not depend on how it is cut into batches.

    Attributes:
        training: The training section.
        channels: Predicted channels, in the order of the model's outputs.
    """

    training: SensorTrainingConfig
    channels: tuple[str, ...]

    def weights(self, batch: MaskedBatch) -> Tensor:
        """Return the weight of every reading, shape (B, S, C), zero where it does not count."""
        return torch.stack([getattr(self, f"_{channel}_weights")(batch) for channel in self.channels], dim=-1)

    def values(self, prediction: Tensor, batch: MaskedBatch) -> Tensor:
        """Return pointwise losses of a prediction in network units, both of shape (B, S, C)."""
        target = self.targets(batch)
        pointwise = LOSSES[self.training.loss_fn].pointwise
        return pointwise(prediction.to(target.dtype), target, self.training.loss_beta)

    def targets(self, batch: MaskedBatch) -> Tensor:
        """Return the true readings in network units, shape (B, S, C)."""
        return torch.stack([batch.x[..., CHANNEL_NAMES.index(channel)] for channel in self.channels], dim=-1)

    def _npho_weights(self, batch: MaskedBatch) -> Tensor:
        counts = batch.mask & batch.valid[..., 0]
        setting = self.training.npho_loss_weight
        if not setting.enabled:
            return counts.to(batch.x.dtype)
        return torch.where(counts, (photons(batch).clamp_min(1.0) + 1).pow(setting.alpha), 0.0)

    def _time_weights(self, batch: MaskedBatch) -> Tensor:
        threshold = time_threshold(self.training)
        light = photons(batch)
        counts = batch.mask & batch.valid.all(dim=-1) & (light >= threshold)
        if not self.training.time.use_npho_weight:
            return counts.to(batch.x.dtype)
        return torch.where(counts, light.clamp_min(max(threshold, 0.0)).sqrt(), 0.0)


class SensorGroups(nn.Module):
    """Sums readings over groups of sensors.

    Args:
        by_face: Six groups, one a face, or a single group of all sensors.
    """

    members: Tensor

    def __init__(self, by_face: bool) -> None:
        super().__init__()
        self.names: tuple[str, ...] = faces.FACES if by_face else ("",)
        ids = faces.face_ids() if by_face else np.zeros(faces.NUM_SENSORS, np.int64)
        members = torch.from_numpy(np.eye(len(self.names))[:, ids])
        self.register_buffer("members", members, persistent=False)

    def sums(self, values: Tensor) -> Tensor:
        """Return sums over sensors, float64 (..., G, C), of values (..., S, C)."""
        return torch.matmul(self.members, values.double())

    def terms(self, channels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the loss terms: ``<face>_<channel>``, or the channel alone."""
        return tuple(f"{name}_{channel}".lstrip("_") for name in self.names for channel in channels)


class ChannelBalance(LossBalance):
    """Learns one log variance for each channel: ``sum over groups and channels of 0.5 e^-s L + 0.5 s``.

    Args:
        num_groups: Groups that share a channel's log variance.
        num_channels: C.
        log_vars: Parameter of the model, shape (C,), or None for one of its own. The model's stays with the model:
            listed here too, it would be optimised twice.
    """

    def __init__(self, num_groups: int, num_channels: int, log_vars: nn.Parameter | None = None) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.own = nn.Parameter(torch.zeros(num_channels)) if log_vars is None else None
        self._theirs = [log_vars]  # a list hides it from named_parameters

    @property
    def log_vars(self) -> nn.Parameter:
        """The log variance of each channel, shape (C,)."""
        found = self.own if self.own is not None else self._theirs[0]
        assert found is not None
        return found

    def combine(self, means: Tensor, shares: Tensor) -> Tensor:
        """Return ``sum(0.5 e^-s mean + 0.5 s share)``, groups outside, channels inside."""
        log_vars = clamp_straight_through(self.log_vars.double(), LOG_VAR_LIMIT).repeat(self.num_groups)
        return 0.5 * (torch.exp(-log_vars) * means + log_vars * shares).sum()

    def effective_weights(self) -> Tensor:
        """Return ``0.5 e^-s`` of every term, shape (N,)."""
        limited = self.log_vars.detach().double().clamp(-LOG_VAR_LIMIT, LOG_VAR_LIMIT)
        return 0.5 * torch.exp(-limited).repeat(self.num_groups)

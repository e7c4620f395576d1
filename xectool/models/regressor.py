"""The regressor: raw sensor readings to the photon's energy, time, position, direction and number.

Axes: B events, S sensors (4760), T tokens, D encoder width, K numbers of a task.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from xectool.config.model import RegressorModelConfig
from xectool.config.normalization import NormalizationConfig
from xectool.config.tasks import TASK_NAMES, TASK_WIDTHS, TaskConfig
from xectool.errors import ConfigError, did_you_mean
from xectool.models.encoder import Encoder
from xectool.models.heads import TargetTransform, regression_head
from xectool.models.normalize import Normalizer

GAUSSIAN_NLL = "gaussian_nll"


class Regressor(nn.Module):
    """Normaliser, encoder and one head for every task.

    All six heads exist whatever is trained, because the state dict of the older system has them; those without a task
    are frozen, so that neither an optimiser nor a distributed wrapper waits for their gradients.

    A head of a Gaussian likelihood gives mean and logarithm of the variance, 2K numbers.

    Args:
        model: The ``model`` section.
        normalization: The ``normalization`` section.
        tasks: The enabled tasks.

    Raises:
        ConfigError: A task is unknown.
    """

    def __init__(
        self, model: RegressorModelConfig, normalization: NormalizationConfig, tasks: Mapping[str, TaskConfig]
    ) -> None:
        super().__init__()
        _check_names(tasks)
        self.active_tasks = tuple(name for name in TASK_NAMES if name in tasks)
        self.nll_tasks = tuple(name for name in self.active_tasks if tasks[name].loss_fn == GAUSSIAN_NLL)
        self.normalizer = Normalizer(normalization)
        sentinels = (self.normalizer.sentinel_npho, self.normalizer.sentinel_time)
        self.backbone = Encoder(model, sentinels, model.drop_path_rate)
        features = self.backbone.num_tokens * self.backbone.width
        self.heads = nn.ModuleDict()
        for name in TASK_NAMES:
            outputs = TASK_WIDTHS[name] * (2 if name in self.nll_tasks else 1)
            head = regression_head(features, model.hidden_dim, outputs, model.head_dropout)
            self.heads[name] = head.requires_grad_(name in self.active_tasks)
        self.target_transforms = nn.ModuleDict()
        for name in self.active_tasks:
            task = tasks[name]
            self.target_transforms[name] = TargetTransform(
                TASK_WIDTHS[name], task.scale, task.shift, task.log_transform
            )

    def forward(self, npho: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return network units (B, K or 2K) by task of raw npho (B, S) in photons and time (B, S) in seconds."""
        return self.forward_normalized(*self.normalizer.normalize(npho, time))

    def forward_normalized(self, x: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
        """Return network units by task of normalised readings x (B, S, 2) and their validity, bool (B, S, 2)."""
        latent = self.backbone(x, valid=valid).flatten(1)
        return {name: self.heads[name](latent) for name in self.active_tasks}

    def tokens(self, npho: Tensor, time: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the encoder's tokens (B, T, D) of raw readings; ``mask`` (B, S) is True where a sensor is hidden."""
        x, valid = self.normalizer.normalize(npho, time)
        tokens: Tensor = self.backbone(x, mask, valid)
        return tokens

    def predict(self, npho: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return physical values (B, K) by task, and ``sigma_<task>`` (B, K) where the head predicts it."""
        return self.decode(self(npho, time))

    def decode(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return physical values, and ``sigma_<task>``, of the outputs of :meth:`forward`."""
        physical: dict[str, Tensor] = {}
        for name, value in outputs.items():
            transform = self.target_transforms[name]
            assert isinstance(transform, TargetTransform)
            mean = value[:, : transform.width]
            physical[name] = transform.decode(mean)
            if name in self.nll_tasks:
                physical[f"sigma_{name}"] = transform.decode_sigma(mean, value[:, transform.width :])
        return physical

    def set_activation_checkpointing(self, mode: str) -> None:
        """Recompute the encoder's stages in the backward pass (``stages``) or keep their activations (``none``)."""
        self.backbone.set_activation_checkpointing(mode)

    @torch.no_grad()
    def num_parameters(self, trainable_only: bool = False) -> int:
        """Return how many numbers the parameters hold."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad or not trainable_only)


def _check_names(tasks: Mapping[str, TaskConfig]) -> None:
    for name in tasks:
        if name not in TASK_NAMES:
            raise ConfigError(
                f"unknown task '{name}'",
                where=f"tasks.{name}",
                fix=did_you_mean(name, TASK_NAMES) or f"choose from {', '.join(TASK_NAMES)}",
            )

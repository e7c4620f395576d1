"""Network and task of the kind: the regressor of xectool with every time unknown.

Axes: B events, S sensors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from xectool.models.regressor import Regressor
from xectool.tasks.regression import RegressionTask, build

from xectool_example.kinds import PhotonsOnlyConfig

NO_READING_S = 1e10


class PhotonsOnly(Regressor):
    """A regressor whose encoder is told that no sensor has a time."""

    def forward(self, npho: Tensor, time: Tensor) -> dict[str, Tensor]:
        """Return what the regressor returns for raw npho (B, S) in photons; the time (B, S) is not looked at."""
        return super().forward(npho, torch.full_like(time, NO_READING_S))


def build_model(cfg: PhotonsOnlyConfig) -> PhotonsOnly:
    """Return the network of a configuration."""
    return PhotonsOnly(cfg.model, cfg.normalization, cfg.tasks.enabled())


def build_task(cfg: PhotonsOnlyConfig, model: PhotonsOnly) -> RegressionTask:
    """Return losses and metrics: those of the regressor."""
    return build(cfg, model)

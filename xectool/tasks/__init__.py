"""What is trained: losses, metrics and conventional estimators, one file a kind of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from xectool.tasks import inpainting, masked_autoencoding, regression  # noqa: F401  (register themselves)
from xectool.tasks.base import TASKS, LossTerms, MetricAccumulator, TrainingTask, WorstEvent

if TYPE_CHECKING:
    from xectool.config.root import RunConfig

__all__ = ["TASKS", "LossTerms", "MetricAccumulator", "TrainingTask", "WorstEvent", "build_task"]


def build_task(cfg: RunConfig, model: nn.Module) -> TrainingTask:
    """Return the loss and metrics of ``cfg.kind`` for a model built from the same configuration."""
    return TASKS[cfg.kind](cfg, model)

"""Masked autoencoding: reconstruct hidden sensors to train an encoder without truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn

from xectool.tasks.base import TASKS
from xectool.tasks.sensor_task import SensorObjective, SensorTask

if TYPE_CHECKING:
    from xectool.config.root import MaeConfig, RunConfig


@TASKS.register("mae")
def build(cfg: RunConfig, model: nn.Module) -> SensorTask:
    """Return the task of a masked autoencoder: the mean losses of the six faces are added."""
    cfg = cast("MaeConfig", cfg)
    objective = SensorObjective(cfg.training, by_face=True, auto_channel_weight=cfg.training.auto_channel_weight)
    return SensorTask(model, objective, cfg.training.seed)

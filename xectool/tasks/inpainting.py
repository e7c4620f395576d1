"""Inpainting: fill sensors that are dead, trained on sensors that are hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import nn

from xectool.tasks.base import TASKS
from xectool.tasks.sensor_task import SensorObjective, SensorTask

if TYPE_CHECKING:
    from xectool.config.root import InpainterConfig, RunConfig


@TASKS.register("inpainter")
def build(cfg: RunConfig, model: nn.Module) -> SensorTask:
    """Return the task of an inpainter: one mean over all hidden sensors, conventional estimators scored beside it."""
    cfg = cast("InpainterConfig", cfg)
    objective = SensorObjective(cfg.training, by_face=False, baseline_hops=cfg.training.baseline_hops)
    return SensorTask(model, objective, cfg.training.seed)

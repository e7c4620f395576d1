"""What a run has measured or looked up once, and goes on with."""

from __future__ import annotations

from typing import Any

from xectool.checkpoint.format import Checkpoint
from xectool.config.root import InpainterConfig, MaeConfig, RegressorConfig, RunConfig


def adopt_resolved(config: RunConfig, checkpoint: Checkpoint) -> RunConfig:
    """Return the configuration with what was measured or looked up as the checkpoint was trained with it.

    That is the numbers of ``auto`` scales and of the decay of the averaged weights, and the sensors of mask patterns
    whose origins are the same.
    """
    decay = checkpoint.config.get("training", {}).get("ema_decay")
    if config.training.ema_decay == "auto" and decay is not None:
        training = config.training.model_copy(update={"ema_decay": decay})
        config = config.model_copy(update={"training": training})
    if not isinstance(config, RegressorConfig):
        return _with_patterns(config, checkpoint)
    if "tasks" not in checkpoint.config:
        return config
    updates = {}
    for name, task in config.tasks.enabled().items():
        saved = checkpoint.config["tasks"].get(name, {})
        changes = {key: frozen(saved.get(key)) for key in ("scale", "shift") if getattr(task, key) == "auto"}
        if changes:
            updates[name] = task.model_copy(update=changes)
    return config.model_copy(update={"tasks": config.tasks.model_copy(update=updates)}) if updates else config


def _with_patterns(config: MaeConfig | InpainterConfig, checkpoint: Checkpoint) -> RunConfig:
    saved = checkpoint.config.get("model", {}).get("mask_patterns", {})
    ours = config.model.mask_patterns
    origin = ("origins", "files", "runs")
    if ours.sensors or not ours.wanted or any(frozen(saved.get(key)) != getattr(ours, key) for key in origin):
        return config
    patterns = ours.model_copy(update={"sensors": frozen(saved.get("sensors", ()))})
    return config.model_copy(update={"model": config.model.model_copy(update={"mask_patterns": patterns})})


def frozen(value: Any) -> Any:
    """Return a value with tuples for its lists, as configurations have them."""
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value

"""What the record says at the start of a run and where one is resumed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xectool.config.root import RegressorConfig
from xectool.errors import CheckpointError, in_shell
from xectool.training.optimization.parameter_blocks import weight_norm
from xectool.training.record.run_dir import RunPlace
from xectool.training.record.state_marks import state_marks, weight_marks
from xectool.training.stepping.build import RunData
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.symptoms.nonfinite import nonfinite_weights
from xectool.training.symptoms.weight_likeness import sign_digest


def run_start_facts(parts: RunParts, data: RunData) -> dict[str, Any]:
    """Return the fields of the ``run_start`` event."""
    config, training = parts.config, parts.config.training
    accumulated = config.data.batch_size * training.grad_accum_steps
    return {
        "kind": config.kind,
        "tasks": list(config.tasks.enabled()) if isinstance(config, RegressorConfig) else [],
        "terms": list(parts.task.terms),
        "world_size": parts.ranks.world_size,
        "num_train": data.train.num_events,
        "num_entries": sum(file.num_entries for file in data.train.files),
        "num_val": data.val.num_events,
        "num_repeated": data.num_repeated,
        "steps_per_epoch": parts.schedule.steps_per_epoch,
        "batch_size": config.data.batch_size,
        "grad_accum_steps": training.grad_accum_steps,
        "effective_batch": accumulated * parts.ranks.world_size,
        "lr": training.lr,
        "amp": training.amp,
        "compile": parts.execution.compile_mode or "none",
        "device": str(parts.execution.device),
        "blocks": list(parts.stepper.blocks.names),
        "parameters": sum(p.numel() for p in parts.model.parameters() if p.requires_grad),
        "weight_norm": weight_norm(parts.stepper.parameters()),
        "marks": weight_marks(parts.model),
    }


def resume_facts(parts: RunParts, place: RunPlace, progress: Progress, ring: int) -> dict[str, Any]:
    """Return the fields of the ``resume`` event; the checkpoint's digest was verified when it was read.

    Args:
        parts: The run as it was restored.
        place: Where it was restored from.
        progress: Where it goes on.
        ring: Good states at hand to go back to.
    """
    absmax, finite = 0.0, True
    for moment in _moments(parts):
        finite = finite and bool(torch.isfinite(moment).all())
        absmax = max(absmax, float(torch.nan_to_num(moment.abs(), nan=math.inf).max()))
    bad = nonfinite_weights(parts.model)
    averaged = [] if bad else nonfinite_weights(parts.average.best_model)  # the model itself where there is none
    return {
        "path": str(place.checkpoint_path),
        "weights_finite": not bad,
        "average_finite": not averaged,
        "optimizer_finite": finite,
        "optimizer_absmax": absmax,
        "weight_norm": weight_norm(parts.stepper.parameters()),
        "signs": sign_digest(parts.model),
        "marks": state_marks(parts, progress) | ({"rate_of": ""} if parts.config.checkpoint.refresh_lr else {}),
        "loss_before": parts.spikes.last_loss,
        "digest_ok": True,
        "ring": ring,
    }


def require_sound_resume(facts: dict[str, Any]) -> None:
    """Refuse to go on from numbers that are not finite.

    Raises:
        CheckpointError: Weights, their average or moments of the optimizer are NaN or infinite.
    """
    named = {"weights_finite": "weights", "average_finite": "averaged weights", "optimizer_finite": "moments"}
    what = next((name for key, name in named.items() if not facts[key]), "")
    if not what:
        return
    raise CheckpointError(
        f"the {what} in the checkpoint are not finite, so every step after it would be lost",
        where=facts["path"],
        fix=f"--resume {in_shell(Path(facts['path']).parent)}   # the furthest checkpoint there that holds numbers",
        code="XT-NAN-RESUME",
    )


def _moments(parts: RunParts) -> Iterator[Tensor]:
    for entry in parts.stepper.optimizer.state.values():
        yield from (value for value in entry.values() if isinstance(value, Tensor) and value.ndim and value.numel())

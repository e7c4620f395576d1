"""Numbers that tell the state of a run from any other: what was saved is compared by them with what a resume loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from xectool.training.optimization.parameter_blocks import cut_blocks
from xectool.training.ranks.agreement import digest
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_RATE_KEYS: Final = (
    "lr", "warmup_epochs", "lr_scheduler", "max_lr", "pct_start", "lr_patience", "lr_factor", "lr_min",
    "lr_restart_period", "lr_restart_mult", "epochs", "grad_accum_steps",
)  # fmt: skip
_SPREAD: Final = 97  # places of tensors that have factors of their own

Marks = dict[str, list[float]]


def state_marks(parts: RunParts, progress: Progress) -> dict[str, Any]:
    """Return what tells the state of a run, part by part: of weights, their average and both moments of the optimizer.

    With it go the updates the moments and the average have seen, and the rate of the next step with what decides it.
    """
    names = [name for name, _ in parts.model.named_parameters()]
    blocks = cut_blocks([(name, parameter.numel()) for name, parameter in parts.model.named_parameters()])
    block_of = dict(zip(names, blocks, strict=True))
    state = parts.stepper.optimizer.state
    held = {name: state.get(parameter, {}) for name, parameter in parts.model.named_parameters()}
    schedule, training = parts.schedule, parts.config.training
    kept = training.ema_decay is not None
    rate_of = {key: getattr(training, key) for key in _RATE_KEYS} | {"steps": schedule.steps_per_epoch}
    return {
        "weights": weight_marks(parts.model),
        "average": _marks(parts.average.best_model.named_parameters(), block_of) if kept else {},
        **{
            key: _marks(((name, own[key]) for name, own in held.items() if isinstance(own.get(key), Tensor)), block_of)
            for key in MOMENTS
        },
        "updates": max((float(own["step"]) for own in held.values() if "step" in own), default=0.0),
        "averaged": parts.average.num_averaged,
        "rate": schedule(schedule.place(progress.epoch, progress.batch)),
        "rate_of": digest(rate_of),
    }


def weight_marks(model: nn.Module) -> Marks:
    """Return what tells the weights of a model from any other, block by block."""
    named = list(model.named_parameters())
    blocks = cut_blocks([(name, parameter.numel()) for name, parameter in named])
    return _marks(named, {name: block for (name, _), block in zip(named, blocks, strict=True)})


@torch.no_grad()
def _marks(tensors: Iterable[tuple[str, Tensor]], block_of: Mapping[str, str]) -> Marks:
    """Return norm and weighted sum of the tensors of each block; tensors that changed places change the sum."""
    named = [(name, tensor.detach().float()) for name, tensor in tensors]
    if not named:
        return {}
    norms = torch._foreach_norm([tensor for _, tensor in named])
    numbers = torch.stack([torch.stack((norm, t.sum())) for norm, (_, t) in zip(norms, named, strict=True)]).tolist()
    found: Marks = {}
    for place, ((name, _), (norm, total)) in enumerate(zip(named, numbers, strict=True)):
        mark = found.setdefault(block_of[name], [0.0, 0.0])
        mark[0] = math.hypot(mark[0], norm)
        mark[1] += (1.0 + place * 31 % _SPREAD / _SPREAD) * total
    return {block: [float(f"{value:.7g}") for value in mark] for block, mark in found.items()}

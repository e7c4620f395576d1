"""AdamW with decay only where decay makes sense."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from xectool.config.adam import BETAS


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies to a parameter.

    Norm scales, GRN gains, biases, positional embeddings and loss weights are left alone: pulling them to zero
    changes what the layer means instead of regularising it.
    """
    return parameter.ndim > 1 and not name.endswith("bias") and not name.endswith("pos_embed")


def parameter_groups(modules: Iterable[nn.Module], weight_decay: float) -> list[dict[str, object]]:
    """Return the two groups of trainable parameters, decayed first, in the modules' own order."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in _trainable(modules):
        (decayed if is_decayed(name, parameter) else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(modules: Iterable[nn.Module], lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters, fused into one kernel per group."""
    return torch.optim.AdamW(parameter_groups(modules, weight_decay), lr=lr, betas=BETAS, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _trainable(modules: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

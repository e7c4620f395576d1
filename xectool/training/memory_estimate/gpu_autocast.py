"""Functions that autocast takes in float32 on a GPU, and in their own type on the CPU, where steps are taped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from xectool.models import backbones, inpaint_context

# of fp32 and fp32_set_opt_dtype in ATen/autocast_mode.h of PyTorch 2.11, what networks call and the CPU's list lacks
_WIDENED: Final = frozenset(
    {
        F.layer_norm, F.group_norm, F.softmax, F.log_softmax, F.softplus, F.interpolate, F.cosine_similarity,
        torch.layer_norm, torch.group_norm, torch.softmax, Tensor.softmax, torch.log_softmax, Tensor.log_softmax,
        torch.exp, Tensor.exp, torch.expm1, Tensor.expm1, torch.log, Tensor.log, torch.log1p, Tensor.log1p,
        torch.pow, Tensor.pow, Tensor.__pow__, Tensor.__rpow__, Tensor.__rtruediv__, torch.rsqrt, Tensor.rsqrt,
        torch.reciprocal, Tensor.reciprocal,
        torch.norm, Tensor.norm, torch.cumsum, Tensor.cumsum, torch.prod, Tensor.prod,
    }
)  # fmt: skip
_NARROW: Final = (torch.bfloat16, torch.float16)
_RECOMPUTE: Final = "checkpoint"
RECOMPUTING: Final = (backbones, inpaint_context)
"""Modules that compute activations again in the backward pass, in which PyTorch takes modes of functions away."""


class GpuAutocast(TorchFunctionMode):
    """Widens what a GPU would, wherever autocast is on; what follows keeps the wide values for the backward pass."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function with what autocast of a GPU would give it."""
        named = dict(kwargs or {})
        if func in _WIDENED and torch.is_autocast_enabled("cpu"):
            args, named = [_wide(value) for value in args], {name: _wide(value) for name, value in named.items()}
        return func(*args, **named)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _NARROW else value


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Widen what autocast of a GPU widens, also in what is computed again in the backward pass."""
    plain = {module: vars(module)[_RECOMPUTE] for module in RECOMPUTING}
    for module, checkpoint in plain.items():
        vars(module)[_RECOMPUTE] = _keeping_wide(checkpoint)
    try:
        with GpuAutocast():
            yield
    finally:
        for module, checkpoint in plain.items():
            vars(module)[_RECOMPUTE] = checkpoint


def _keeping_wide(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    def wide(run: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def again(*given: Any) -> Any:
            with GpuAutocast():
                return run(*given)

        return checkpoint(again, *args, **options)

    return wide

"""Functions that autocast takes in float32 on a GPU, and in their own type on the CPU, where steps are taped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# of fp32 and fp32_set_opt_dtype in ATen/autocast_mode.h of PyTorch 2.11, those that networks and losses here may use
_WIDENED: Final = frozenset(
    {
        F.layer_norm, F.group_norm, F.softmax, F.log_softmax, F.softplus, F.smooth_l1_loss, F.l1_loss, F.mse_loss,
        torch.layer_norm, torch.group_norm, torch.softmax, Tensor.softmax, torch.log_softmax, Tensor.log_softmax,
        torch.exp, Tensor.exp, torch.expm1, Tensor.expm1, torch.log, Tensor.log, torch.log1p, Tensor.log1p,
        torch.pow, Tensor.pow, torch.rsqrt, Tensor.rsqrt, torch.reciprocal, Tensor.reciprocal,
        torch.norm, Tensor.norm, torch.cumsum, Tensor.cumsum, torch.prod, Tensor.prod,
    }
)  # fmt: skip
_NARROW: Final = (torch.bfloat16, torch.float16)


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

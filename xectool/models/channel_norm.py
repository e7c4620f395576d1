"""Layer normalisation over the channels of positions, quick for very few channels too.

PyTorch's kernel works row by row and takes as long for a row of four numbers as for one of sixteen: 57 ns forward on
one core. Mean and variance as products with matrices take 10 to 18 ns, and half of that where as many positions of an
event as fill a vector register lie side by side in a row, with the matrix of each on the diagonal.

Axes: B events, C channels, G positions side by side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from xectool.models import event_parts
from xectool.models.products import wants_plain_operations

CACHED_BYTES = 2**19
NARROW = 8
"""Fewer channels than this fill no vector register."""
_REGISTER = 16


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation of (B, ..., C); parameters and values are those of its base class.

    Args:
        channels: C.
        eps: Added to the variance.
    """

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised positions (B, ..., C)."""
        if not 1 < input.shape[-1] < NARROW or input.device.type != "cpu" or wants_plain_operations():
            return super().forward(input)
        if input.dtype is not self.weight.dtype or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        out: Tensor = _NarrowNorm.apply(input, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return out


class _NarrowNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        x, rows = x.contiguous(), _Rows.of(x)
        out, weight, bias = torch.empty_like(x), weight.repeat(rows.side_by_side), bias.repeat(rows.side_by_side)
        for part in event_parts.of(x, CACHED_BYTES):
            normal = rows.normalised(x[part], eps)[0]
            torch.addcmul(bias, normal, weight, out=rows.cut(out[part]))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = (tensor.contiguous() for tensor in ctx.saved_tensors)
        g_out, rows = gradients[0].contiguous(), _Rows.of(x)
        g_x, weights = torch.empty_like(x), weight.repeat(rows.side_by_side)
        g_weights = torch.zeros_like(weights)
        for part in event_parts.of(x, CACHED_BYTES):
            normal, scale = rows.normalised(x[part], ctx.eps)
            g_here = rows.cut(g_out[part])
            g_weights += (g_here * normal).sum(0)
            g_normal = g_here * weights
            pull = normal.mul_((g_normal * normal) @ rows.mean)
            torch.mul((g_normal @ rows.centre).sub_(pull), scale, out=rows.cut(g_x[part]))
        return g_x, g_weights.view(rows.side_by_side, -1).sum(0), g_out.flatten(0, -2).sum(0), None


class _Rows(NamedTuple):
    """Positions in rows of G.

    Attributes:
        side_by_side: G, a divisor of the positions of an event: what is broken in one event stays there.
        mean: Matrix that puts the mean of each position into all of its channels, (GC, GC).
        centre: Matrix that takes it away.
    """

    side_by_side: int
    mean: Tensor
    centre: Tensor

    @classmethod
    def of(cls, x: Tensor) -> _Rows:
        positions, channels = x.shape[1:-1].numel(), x.shape[-1]
        number = next(count for count in range(_REGISTER // channels, 0, -1) if positions % count == 0)
        unit = torch.eye(number * channels, dtype=x.dtype)
        mean = torch.kron(unit[:number, :number], x.new_full((channels, channels), 1 / channels))
        return cls(number, mean, unit - mean)

    def cut(self, x: Tensor) -> Tensor:
        """Return a view of contiguous positions (B, ..., C) as rows (R, GC)."""
        return x.view(-1, len(self.mean))

    def normalised(self, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the rows of normalised positions, and one over their standard deviation, in every channel."""
        centred = self.cut(x) @ self.centre
        variance = (centred.square() @ self.mean).add_(eps)
        scale = variance.sqrt().div_(variance)  # not a number where the variance overflows, as with PyTorch's kernel
        return centred.mul_(scale), scale

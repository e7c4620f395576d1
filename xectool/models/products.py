"""Matrix products over all positions, by the faster of PyTorch's two CPU libraries.

PyTorch gives a linear layer to the BLAS library (MKL) and a convolution to oneDNN. MKL uses AVX2 on processors of other
makers: 85 GFLOP/s a core of an AMD EPYC (Zen 5), where oneDNN with AVX-512 reaches 120 to 200. So in float32 on the CPU
a linear layer is written as the convolution with a 1 x 1 kernel that it is; elsewhere it stays a linear layer.

Axes: R rows (all leading axes), K features in, N features out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HAS_ONEDNN = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]  # torch's own
# With one thread and fewer images PyTorch gives a 1 x 1 convolution to MKL after all.
_FEWEST_IMAGES = 16
_SHORTEST_ROW = 8
_FEW_ROWS = 512
# A convolution takes 50 us before it begins, and more where few rows are turned round. MKL is done with so many
# operations before that, unless a side is short.
_LEAST_WORK, _LEAST_WORK_OF_FEW, _LEAST_WORK_OF_SHORT, _SHORT = 2**23, 2**28, 2**20, 16
# Gradients by so few features are faster as matrix products.
_FEWEST_FOR_INPUT, _FEWEST_FOR_WEIGHT = 8, 16


class PositionLinear(nn.Linear):
    """Linear layer over many positions; parameters and values are those of its base class."""

    def forward(self, input: Tensor) -> Tensor:
        """Return features (..., N) of (..., K)."""
        return linear(input, self.weight, self.bias)


def wants_plain_operations() -> bool:
    """Return whether a graph is being made: compilers fuse plain operations themselves, traces hold nothing else."""
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b, shape (..., N), of x (..., K), W (N, K) and b (N,)."""
    if not _on_cpu(x, weight) or _is_little(x, weight):
        return F.linear(x, weight, bias)
    rows, shape = x.shape[:-1].numel(), (*x.shape[:-1], weight.shape[0])
    width = _cut(rows if rows >= _FEW_ROWS else weight.shape[0])
    if not width or rows < _FEWEST_IMAGES:
        return F.linear(x, weight, bias)
    if rows >= _FEW_ROWS:
        product: Tensor = _Product.apply(x, weight, bias, width)  # type: ignore[no-untyped-call]  # torch's own
        return product.view(shape)
    # oneDNN reorders the kernel, so the smaller matrix is the kernel.
    out = F.conv2d(_as_images(weight, width), _as_kernel(x.reshape(rows, -1)))
    return (_as_rows(out).view(-1, rows).t().contiguous() + bias).view(shape)


class _Product(torch.autograd.Function):
    """x W^T + b as a convolution; oneDNN takes five times as long for the gradient of b as a sum over the rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.width = width
        return _as_rows(F.conv2d(_as_images(x, width), _as_kernel(weight), bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        g_out, wanted = gradients[0], ctx.needs_input_grad
        g_x, g_weight, _ = _gradients(g_out, x, weight, ctx.width, [wanted[0], wanted[1], False])
        return (
            _as_rows(g_x).view(x.shape) if wanted[0] else None,
            g_weight.view(weight.shape) if wanted[1] else None,
            g_out.flatten(0, -2).sum(0) if wanted[2] else None,
            None,
        )


def input_gradient(g_out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return g W, shape of x (..., K), of the gradient g (..., N) of ``linear(x, weight)``."""
    width = _image_width(g_out, weight) if weight.shape[0] >= _FEWEST_FOR_INPUT else 0
    if not width:
        return torch.matmul(g_out, weight)
    return _as_rows(_gradients(g_out, x, weight, width, [True, False, False])[0]).view(x.shape)


def weight_gradient(g_out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return g^T x, shape (N, K), of the gradient g (..., N) of ``linear(x, weight)`` and x (..., K)."""
    width = _image_width(g_out, weight) if weight.shape[0] >= _FEWEST_FOR_WEIGHT else 0
    if not width:
        return torch.mm(g_out.flatten(0, -2).t(), x.flatten(0, -2))
    return _gradients(g_out, x, weight, width, [False, True, False])[1].view(weight.shape)


def _gradients(g_out: Tensor, x: Tensor, weight: Tensor, width: int, wanted: list[bool]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        _as_images(g_out, width), _as_images(x, width), _as_kernel(weight),
        None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted,
    )  # fmt: skip
    return found


def _image_width(rows: Tensor, weight: Tensor) -> int:
    """Return the width of the images that the rows are cut into, 0 where a convolution would not be faster."""
    return _cut(rows.shape[:-1].numel()) if _on_cpu(rows, weight) and not _is_little(rows, weight) else 0


def _on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Return whether both are plain float32 tensors of the CPU, to be multiplied as such."""
    if wants_plain_operations() or torch.is_autocast_enabled("cpu") or not _HAS_ONEDNN:
        return False
    return all(tensor.device.type == "cpu" and tensor.dtype is torch.float32 for tensor in (x, weight))


def _is_little(rows: Tensor, weight: Tensor) -> bool:
    count = rows.shape[:-1].numel()
    least = _LEAST_WORK_OF_FEW if count < _FEW_ROWS else _LEAST_WORK
    return 2 * count * weight.numel() < (least if min(weight.shape) >= _SHORT else _LEAST_WORK_OF_SHORT)


@lru_cache(maxsize=1024)
def _cut(rows: int) -> int:
    for images in range(_FEWEST_IMAGES, rows // _SHORTEST_ROW + 1):
        if rows % images == 0:
            return rows // images
    return 0


def _as_images(rows: Tensor, width: int) -> Tensor:
    return rows.reshape(-1, 1, width, rows.shape[-1]).permute(0, 3, 1, 2)


def _as_rows(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


def _as_kernel(weight: Tensor) -> Tensor:
    return weight.view(*weight.shape, 1, 1)

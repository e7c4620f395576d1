"""What kernels allocate that tensors without data do not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from xectool.training.memory_estimate.reductions import staging_bytes

_ATEN: Final = torch.ops.aten
_NARROW: Final = (torch.bfloat16, torch.float16)
_SUMS: Final = (
    _ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN.prod.default, _ATEN.prod.dim_int, _ATEN.cumsum.default,
)  # fmt: skip
_MEANS: Final = (_ATEN.mean.default, _ATEN.mean.dim)
_REDUCTIONS: Final = (*_SUMS, *_MEANS, _ATEN.linalg_vector_norm.default)
_NORMS: Final = (_ATEN.native_layer_norm.default, _ATEN.native_group_norm.default)


def copies(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], on_gpu: bool) -> tuple[Tensor, ...]:
    """Return the copies that an operation makes of what it is given, and drops at its end."""
    if func is _ATEN.convolution_backward.default and not on_gpu:
        return _reordered(args)
    if func in _REDUCTIONS:
        return _widened(func, args[0], kwargs.get("dtype"), on_gpu)
    return ()


def staged_bytes(func: Any, args: Sequence[Any], on_gpu: bool) -> int:
    """Return the memory that a kernel takes beside tensors, and frees at its end."""
    if not on_gpu or func not in _REDUCTIONS:
        return 0
    place = 2 if func is _ATEN.linalg_vector_norm.default else 1
    dims = args[place] if len(args) > place and isinstance(args[place], Sequence) else range(args[0].ndim)
    return staging_bytes(args[0], dims)


def corrected(func: Any, args: Sequence[Any], out: Any, on_gpu: bool) -> Any:
    """Return what an operation makes, in the types that its kernel makes them in.

    Mean and spread of a norm are of the type of its weights; on a GPU always float32. Without data they are of the
    type of the input.
    """
    if func not in _NORMS or args[0].dtype not in _NARROW:
        return out
    weight = next((value for value in args[1:] if isinstance(value, Tensor)), None)
    kind = torch.float32 if on_gpu or weight is None else weight.dtype
    if weight is None and not on_gpu:
        return out
    return (out[0], *(torch.empty(value.shape, dtype=kind) for value in out[1:]))


def _reordered(args: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return the copies in its own layout that oneDNN makes for the gradient of a convolution's weights.

    One of the output's gradient, one of the input; images whose channels lie last it takes as they are.
    """
    if args[1].is_contiguous(memory_format=torch.channels_last):
        return ()
    return tuple(torch.empty(value.shape, dtype=value.dtype) for value in args[:2])


def _widened(func: Any, given: Tensor, kind: torch.dtype | None, on_gpu: bool) -> tuple[Tensor, ...]:
    """Return the whole of what is summed in the type it is summed in, where that is another one."""
    if kind is None and func in _SUMS and not given.dtype.is_floating_point:
        kind = torch.int64
    if kind is None and func in _MEANS and given.dtype in _NARROW:
        kind = torch.float32
    if kind is None or kind is given.dtype or (on_gpu and given.dtype in _NARROW):
        return ()
    return (torch.empty(given.shape, dtype=kind),)

"""Memory that sums take on a GPU beside what they are given and return."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from torch import Tensor

_THREADS: Final = 512  # of a block
_WARP: Final = 32
_LEAST: Final = 16  # numbers that a thread adds before more blocks share an output
_MOST: Final = 256
_PROCESSORS: Final = 132  # of an H100, H200 or GH200; an A100 has 108, and takes less
_THREADS_OF_PROCESSOR: Final = 2048


@dataclass(frozen=True)
class _Block:
    """Threads of a block: along the numbers that are kept and, ``height``, along those that are summed."""

    width: int
    height: int


def staging_bytes(given: Tensor, dims: Collection[int]) -> int:
    """Return the memory in which blocks of threads that share an output leave their parts of it.

    PyTorch's reduction (``setReduceConfig`` and ``global_memory_size`` of ATen/native/cuda/Reduce.cuh, 2.11) takes it
    where the innermost dimension is kept and the others are long: 62 blocks an output, and for each the threads of a
    block as well, make twice the memory of what is summed. 0 where the innermost is summed, which needs next to none.

    Args:
        given: What is summed.
        dims: Which dimensions are.
    """
    summed = {dim % given.ndim for dim in dims} if given.ndim else set[int]()
    long = [dim for dim in range(given.ndim) if given.shape[dim] > 1]
    if not summed.intersection(long) or not given.numel():
        return 0
    inner = min(long, key=given.stride)
    if inner in summed or given.stride(inner) != 1:
        return 0
    kept = math.prod(given.shape[dim] for dim in long if dim not in summed)
    each = given.numel() // kept
    together = _vector(given, inner, long)
    block = _block(kept // together, each, _THREADS // together)
    if each < min(block.height * _LEAST, _MOST):
        return 0
    a_thread = -(-each // block.height)
    grid = -(-(kept // together) // block.width)
    target = _PROCESSORS * (_THREADS_OF_PROCESSOR // (block.width * block.height))
    if a_thread < _MOST or grid > target:
        return 0
    sharing = max(min(-(-target // grid), -(-a_thread // _LEAST)), -(-a_thread // _MOST))
    return 0 if sharing == 1 else max(4, given.itemsize) * kept * sharing * block.width * together


def _vector(given: Tensor, inner: int, long: Collection[int]) -> int:
    """Return how many neighbouring outputs a thread takes: 4, 2 or 1."""
    steps = [given.shape[inner], *(given.stride(dim) for dim in long if dim != inner)]
    return next(size for size in (4, 2, 1) if not any(step % size for step in steps))


def _block(kept: int, each: int, most: int) -> _Block:
    wide, high = (min(most, 1 << (max(count, 1).bit_length() - 1)) for count in (kept, each))
    height = min(high, most // min(wide, _WARP))
    return _Block(min(wide, most // height), height)

"""From tapes to what a device must hold: the peak, its parts, what fits, and the largest batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Final

from xectool.training.memory_estimate.recording import GPU_BLOCK_BYTES, Recording

USABLE: Final = 0.9
"""Share of a device beyond which a step is refused."""
PLANNED: Final = 0.85
"""Share of a GPU that what is proposed takes, where it can.

Batches of an H200's 90 % left 7 and 12 % of it in unusable pieces.
"""
CONTEXT_BYTES: Final = 750_000_000
"""Context and kernels of a CUDA process, 0.5 to 1 GB; 0.72 of a step of width 1024 on an H200 with PyTorch 2.11."""
WORKSPACE_BYTES: Final = 2 * 32 * 2**20
"""Workspaces of cuBLAS for the thread of the forward and that of the backward pass, as measured on an H200."""
GRAPH_SHARE: Final = 0.2
"""Pools of CUDA graphs, as a share of the activations; not measured on a GPU."""
GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")
_FIRST_TRY: Final = 64
_LARGEST_BATCH: Final = 1_000_000


def held_bytes(tensors_bytes: int, factor: float, most_kept_bytes: int | None) -> int:
    """Return what an allocator holds for tensors: a share more, as far as it keeps so much."""
    kept = (factor - 1.0) * tensors_bytes
    return tensors_bytes + round(kept if most_kept_bytes is None else min(kept, most_kept_bytes))


@dataclass(frozen=True)
class Device:
    """Where the step would run.

    Attributes:
        name: For people.
        total_bytes: Memory that the driver reports; for the CPU, what the host may still take.
        is_gpu: Whether blocks are rounded, and a context is there.
        graphs: Whether CUDA graphs keep pools of their own.
        factor: Measured peak of the allocator over the predicted one.
        most_kept_bytes: More than this is never held beside tensors; None where no such end is known.
        at_hand: Whether this machine has a GPU, whose allocator can be asked.
    """

    name: str
    total_bytes: int
    is_gpu: bool
    graphs: bool = False
    factor: float = 1.0
    most_kept_bytes: int | None = None
    at_hand: bool = False

    def overhead(self, recording: Recording) -> int:
        """Return what is there beside tensors: context, workspaces, graph pools."""
        if not self.is_gpu:
            return 0
        pools = round(GRAPH_SHARE * recording.saved()) if self.graphs else 0
        return CONTEXT_BYTES + WORKSPACE_BYTES + pools

    def tensors(self, recording: Recording) -> int:
        """Return the peak of all tensors, in the blocks of the device's allocator."""
        return recording.peak(GPU_BLOCK_BYTES if self.is_gpu else 1)

    def allocated(self, recording: Recording) -> int:
        """Return the peak that the device's allocator will tell: of tensors, and of workspaces on a GPU at hand."""
        return self.tensors(recording) + (WORKSPACE_BYTES if self.is_gpu and self.at_hand else 0)

    def needed(self, recording: Recording) -> int:
        """Return tensors and what is there beside them."""
        return held_bytes(self.tensors(recording), self.factor, self.most_kept_bytes) + self.overhead(recording)

    @property
    def planned_bytes(self) -> float:
        """Return what a batch or a remedy that is proposed takes; a remedy more where none leaves that room."""
        return (PLANNED if self.is_gpu else USABLE) * self.total_bytes

    def fits(self, recording: Recording) -> bool:
        """Return whether a step may be tried on the device."""
        return self.needed(recording) <= USABLE * self.total_bytes


@dataclass(frozen=True)
class Tries:
    """Which batches a search may look at, and how close it must come.

    Attributes:
        known: Batches whose tapes are there already, rising.
        within: Share of the batch that it may be short of the largest; 0 for none.
    """

    known: tuple[int, ...] = (_FIRST_TRY,)
    within: float = 0.0


def largest_batch(
    device: Device,
    at: Callable[[int], Recording],
    beside: Callable[[int], int] = lambda batch_size: 0,
    tries: Tries = Tries(),
) -> int:
    """Return the largest batch that fits into what is planned with, 0 where not even one event does.

    Memory is nearly a straight line in the batch, so each try goes where the line through the last two says; a tape of
    one takes seconds where `at` has to make it.

    Args:
        device: The device.
        at: Gives the tape of any batch.
        beside: Memory of the device that the rest of the process takes with a batch.
        tries: Where to begin and where to end.
    """
    room = device.planned_bytes
    needed = cache(lambda size: device.needed(at(size)) + beside(size))
    fitting = [size for size in tries.known if needed(size) <= room]
    if not fitting and needed(1) > room:
        return 0
    low = fitting[-1] if fitting else 1
    high = next((size for size in tries.known if size not in fitting), low)
    before = fitting[-2] if len(fitting) > 1 else 1
    while needed(high) <= room:
        if high == _LARGEST_BATCH:
            return high
        slope = max(1.0, (needed(high) - needed(before)) / max(high - before, 1))
        before = low = high
        high = min(high + math.ceil((room - needed(high)) / slope) + 1, _LARGEST_BATCH)
    for turn in count():
        span = high - low
        if span <= max(1, tries.within * low):
            break
        share = (room - needed(low)) / (needed(high) - needed(low))
        step = span // 2 if turn % 3 == 2 else math.floor(share * span)  # halves where the line is bent
        guess = low + min(max(step, 1), span - 1)
        low, high = (guess, high) if needed(guess) <= room else (low, guess)
    return low

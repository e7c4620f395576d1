"""Random numbers that belong to an event: the same whatever batch, rank or order it is served in.

Axes: B events, N numbers of an event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch

# Constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as signed 64-bit integers; products wrap around.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_MANTISSA_BITS = 24
_UNIT = 0.5**_MANTISSA_BITS


class EventNoise:
    """A stream of uniform numbers for every event of a batch.

    An event's numbers depend on the seed, the epoch and
    its place in the files only, so a mask made of them is reproduced by any later pass, and gradients of a batch
    equal the sum over its parts.

    Args:
        batch: The events.
        seed: Of the run.
        device: Where the numbers are needed.
    """

    def __init__(self, batch: EventBatch, seed: int, device: torch.device) -> None:
        text = f"mask {seed} {batch.epoch}".encode()
        start = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
        place = torch.from_numpy(
            np.stack([np.asarray(batch.file_index, np.int64), np.asarray(batch.entry, np.int64)])
        ).to(device)
        self._state = _mixed(_mixed(place[0] + start) + place[1])
        self._calls = 0

    def __call__(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return numbers in [0, 1), float32, shape (B, N); each call opens new streams, however many it draws.

        Raises:
            ValueError: The shape is not (B, N).
        """
        if len(shape) != 2 or shape[0] != len(self._state):
            raise ValueError(f"event noise has shape ({len(self._state)}, N), not {tuple(shape)}")
        self._calls += 1
        stream = _mixed(self._state + self._calls * _GOLDEN).to(device)
        bits = _mixed(stream.unsqueeze(1) + torch.arange(shape[1], device=device) * _GOLDEN)
        return _shifted(bits, 64 - _MANTISSA_BITS).to(torch.float32) * _UNIT


def _mixed(values: Tensor) -> Tensor:
    values = (values ^ _shifted(values, 30)) * _FIRST
    values = (values ^ _shifted(values, 27)) * _SECOND
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Return an unsigned right shift; torch shifts signed numbers only."""
    ones: int = 2 ** (64 - bits) - 1
    return (values >> bits) & ones

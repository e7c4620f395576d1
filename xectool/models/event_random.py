"""Random numbers that belong to an event: computed from its key, not drawn from a stream that others share.

Axes: B events, N columns.

Number ``j`` of stream ``s`` is a hash of key, ``s`` and ``j``, so an event gets the same numbers whatever batch, device
or order it comes in, and a batch of any size is computed at once. The hash is SplitMix64 (Steele, Lea, Flood: Fast
splittable pseudorandom number generators, OOPSLA 2014): a counter in steps of the golden ratio, and a mixing function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_STREAM_STRIDE = 1 << 32
"""Numbers of one stream; a stream has one a sensor at most."""
_FRACTION_BITS = 53
_WORD = 1 << 64


class EventRandom:
    """Random numbers of a batch of events.

    Args:
        keys: One 64-bit number an event, shape (B,), int64; events of equal keys get equal numbers.
    """

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys

    def uniform(self, num_columns: int, stream: int) -> Tensor:
        """Return uniform numbers in [0, 1), shape (B, N), float64; ``stream`` tells independent ones apart."""
        counter = torch.arange(1, num_columns + 1, device=self.keys.device) + stream * _STREAM_STRIDE
        mixed = _mix(self.keys.unsqueeze(1) + counter * _signed(_GOLDEN))
        return _shifted(mixed, 64 - _FRACTION_BITS).double() * 2.0**-_FRACTION_BITS


def event_keys(numbers: Sequence[int | Tensor]) -> Tensor:
    """Return one key an event, int64 (B,), that depends on every bit of every number and on their order.

    Args:
        numbers: What identifies an event: integers that all events share, and int64 tensors (B,); at least one tensor.
    """
    device = next(number.device for number in numbers if isinstance(number, Tensor))
    key = torch.zeros((), dtype=torch.int64, device=device)
    for number in numbers:
        word = number if isinstance(number, Tensor) else torch.tensor(_signed(number), device=device)
        key = _mix((key ^ word) + _signed(_GOLDEN))
    return key


def _mix(value: Tensor) -> Tensor:
    """Return SplitMix64's mixing of 64-bit numbers; int64 arithmetic wraps as the unsigned one does."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        value = (value ^ _shifted(value, shift)) * _signed(multiplier)
    return value ^ _shifted(value, _SHIFTS[-1])


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Return the logical right shift; that of int64 would repeat the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit number."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value

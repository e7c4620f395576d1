"""The numbers of a tensor: what is not finite, what stands far out, what never moved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

_STAND_OUT_FLOOR: Final = 10.0
_STAND_OUT_RATIO: Final = 100.0
_IMPOSSIBLE: Final = 1e6
_IMPOSSIBLE_RATIO: Final = 1e7
_FEWEST: Final = 4


@dataclass(frozen=True)
class Outlier:
    """A value unlike all others of its tensor.

    Attributes:
        index: Where it is.
        value: What it is.
        next_largest: Largest magnitude of the others.
        median: Median magnitude.
        impossible: Whether training cannot have made it; otherwise it is only unusual.
    """

    index: tuple[int, ...]
    value: float
    next_largest: float
    median: float
    impossible: bool


@dataclass(frozen=True)
class TensorStats:
    """The numbers of one tensor.

    Attributes:
        minimum: Smallest finite value; NaN without any.
        maximum: Largest finite value; NaN without any.
        num_nonfinite: NaN and infinite values.
        first_nonfinite: Index of the first of them.
        first_value: What it is.
        constant: Whether all values are the same.
        outlier: The value unlike all others.
    """

    minimum: float
    maximum: float
    num_nonfinite: int = 0
    first_nonfinite: tuple[int, ...] = ()
    first_value: float = math.nan
    constant: bool = False
    outlier: Outlier | None = None


@torch.no_grad()
def statistics(values: Tensor) -> TensorStats | None:
    """Return the numbers of a tensor of real or complex values; None for an empty one or one without bytes."""
    if values.device.type == "meta" or not values.numel() or values.is_quantized:
        return None
    real = _real(values)
    if real is None:
        return None
    low, high = (float(edge) for edge in torch.aminmax(real))
    if math.isfinite(low) and math.isfinite(high):
        outlier = _outlier(real) if max(-low, high) > _STAND_OUT_FLOOR and real.is_floating_point() else None
        return TensorStats(low, high, constant=low == high, outlier=outlier)
    bad = ~torch.isfinite(real)
    first = int(bad.reshape(-1).int().argmax())
    index = _index(first, tuple(real.shape))
    finite = real[~bad]
    low, high = (float(edge) for edge in torch.aminmax(finite)) if finite.numel() else (math.nan, math.nan)
    return TensorStats(low, high, int(bad.sum()), index, float(real.reshape(-1)[first]))


@torch.no_grad()
def relative_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return |a - b| / |b| over all floating-point tensors the two sets share; NaN where they share none."""
    difference, norm = 0.0, 0.0
    for name, value in second.items():
        other = first.get(name)
        if other is None or other.shape != value.shape or not value.is_floating_point():
            continue
        a, b = other.double(), value.double()
        difference += float((a - b).square().sum())
        norm += float(b.square().sum())
    return math.sqrt(difference / norm) if norm else math.nan


def is_additive_mask(name: str, values: Tensor) -> bool:
    """Return whether infinities belong into a tensor: a mask of zeros and infinities, added before a softmax."""
    return "mask" in name.rsplit(".", 1)[-1] and bool((values.isinf() | (values == 0)).all())


def _real(values: Tensor) -> Tensor | None:
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if values.dtype == torch.bool or values.dtype.itemsize == 0:
        return values.to(torch.uint8)
    if values.is_floating_point():
        exact = values.dtype in (torch.float32, torch.float64)
        try:
            return values if exact else values.to(torch.float32)
        except (RuntimeError, NotImplementedError):  # packed element types that torch stores without arithmetic
            return None
    plain = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    return values if values.dtype in plain else None


def _outlier(real: Tensor) -> Outlier | None:
    """Return the largest value where it stands far from the rest."""
    sizes = real.abs().reshape(-1)
    if sizes.numel() < _FEWEST:
        return None
    top, at = torch.topk(sizes, 2)
    largest, second, median = float(top[0]), float(top[1]), float(sizes.median())
    impossible = largest >= _IMPOSSIBLE and (
        largest >= _IMPOSSIBLE_RATIO * median or largest >= _STAND_OUT_RATIO**2 * second
    )
    if not impossible and largest < _STAND_OUT_RATIO * second:
        return None
    flat = int(at[0])
    value = float(real.reshape(-1)[flat])
    return Outlier(_index(flat, tuple(real.shape)), value, second, median, impossible)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        found.insert(0, place)
    return tuple(found)

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
_MANY: Final = 64
_MANY_TENSORS: Final = 8
_CLOSE: Final = 0.3
_SAME_SIZE: Final = (0.5, 2.0)
_SMALL_COSINE: Final = 0.3
_FEWEST_EDGES: Final = 8
_MASK_SHARE: Final = (0.05, 0.95)
_LEARNED: Final = ("weight", "bias")
_BOUNDS: Final = frozenset(("min", "max", "best", "low", "high", "lower", "upper", "bound", "limit"))


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


@torch.no_grad()
def unlike(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[str]:
    """Return large tensors that have as little in common as two drawn at random, where most are close to one another.

    A tensor that was zero at the start may be far from its average; it is not of the size of it.
    """
    distances: dict[str, float] = {}
    found: list[str] = []
    for name, value in second.items():
        other = first.get(name)
        if other is None or other.shape != value.shape or not value.is_floating_point() or value.numel() < _MANY:
            continue
        a, b = other.double().flatten(), value.double().flatten()
        size, own = float(a.norm()), float(b.norm())
        if not (size and math.isfinite(size) and math.isfinite(own)):
            continue
        distances[name] = float((a - b).norm()) / size
        of_its_size = _SAME_SIZE[0] < own / size < _SAME_SIZE[1]
        if own == 0 or (of_its_size and float(a @ b) / (size * own) < _SMALL_COSINE):
            found.append(name)
    close = len(distances) >= _MANY_TENSORS and sorted(distances.values())[len(distances) // 2] < _CLOSE
    return found if close else []


def is_learned(name: str) -> bool:
    """Return whether a tensor is a weight or a bias by its name."""
    return name.rsplit(".", 1)[-1].lower() in _LEARNED


def may_be_infinite(name: str, values: Tensor) -> bool:
    """Return whether infinities belong into a tensor: masks before a softmax, outer edges, bounds not yet found."""
    last = name.rsplit(".", 1)[-1].lower()
    if values.is_complex() or is_learned(name) or bool(values.isnan().any()):
        return False
    infinite = values.isinf()
    if bool((infinite | (values == 0)).all()):
        share = float(infinite.float().mean())
        if "mask" in last or (values.ndim >= 2 and _MASK_SHARE[0] <= share <= _MASK_SHARE[1]):
            return True
    if bool(infinite.all()):
        return not _BOUNDS.isdisjoint(last.split("_"))
    return _are_edges(values, infinite)


def _are_edges(values: Tensor, infinite: Tensor) -> bool:
    """Return whether numbers rise from one infinity to the other, or to one of them where they are many."""
    if values.ndim != 1 or not bool((values[1:] > values[:-1]).all()) or bool(infinite[1:-1].any()):
        return False
    return len(values) >= _FEWEST_EDGES or (len(values) > _FEWEST - 2 and bool(infinite[0] & infinite[-1]))


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

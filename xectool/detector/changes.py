"""Values in another unit, and numbers that stand for none, as they have to be.

Axes: N values of a branch, in any shape.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector.constants import DEAD_VALUE, LARGEST_LEGAL, UNKNOWN_ABOVE
from xectool.findings.mends import Change, Marker

Array = npt.NDArray[Any]

MOST_EXACT: Final = 2**53
"""Whole numbers up to this one have a float64 of their own."""


@dataclass
class Effect:
    """What the parts of a change found in the values of a branch, block after block.

    Attributes:
        marked: Values that were each marker.
        near: The next stored value below and above each marker that is not found, and how many there are of it.
        scaled: Values that the factor made others.
        passed_over: Numbers beyond 1e10, which count as not known and were not multiplied.
        lost: Known values that the factor made so large that they count as not known.
        outside: Values beyond the range, but for NaN and 1e10.
        not_finite: Values that are no number, or beyond 1e10.
        lowest: Of the values within the range.
        highest: Of the values within the range.
    """

    marked: Counter[Marker] = field(default_factory=Counter)
    near: dict[Marker, tuple[Counter[float], Counter[float]]] = field(default_factory=dict)
    scaled: int = 0
    passed_over: int = 0
    lost: int = 0
    outside: int = 0
    not_finite: int = 0
    lowest: float = math.inf
    highest: float = -math.inf


def changed(values: Array, components: Array, change: Change, effect: Effect | None = None) -> Array:
    """Return values after a change; what is not known stays so, and numbers of few digits get more.

    Args:
        values: As they are stored, shape (N,), (B, D) or any other.
        components: Component of each value, of a shape that broadcasts to that of the values.
        change: What is done.
        effect: Told what each part of it found.

    >>> stored = np.array([[20.0, -999.0], [np.nan, 1e10]], np.float32)
    >>> identities = np.array([2**53 + 1, 2**53 + 2])
    >>> changed(identities, np.arange(2), Change((Marker(2**53 + 2),))).tolist()
    [9007199254740993, 10000000000]
    >>> changed(stored, np.arange(2), Change((Marker(-999.0),), 0.5, ((0.0, 5.0), (0.0, 50.0)))).tolist()
    [[10000000000.0, 10000000000.0], [10000000000.0, 10000000000.0]]
    """
    effect = Effect() if effect is None else effect
    result = values.astype(changed_type(values.dtype, change))
    odd = _marked(values, components, change, effect)
    if change.factor != 1.0:
        _scale(result, values, odd, change.factor, effect)
    if change.within:
        odd = odd | _beyond(result, components, odd, change, effect)
    if change.is_finite:
        beyond = ~((result <= LARGEST_LEGAL) & (result >= -LARGEST_LEGAL))
        effect.not_finite += int(beyond.sum())
        odd = odd | beyond
    result[odd] = DEAD_VALUE
    return result


def changed_type(dtype: npt.DTypeLike, change: Change) -> np.dtype[Any]:
    """Return the type that has room for 1e10, and for fractions where there is a factor: 64 bits hold 1e10 as they are.

    >>> [str(changed_type(dtype, Change((Marker(-1),)))) for dtype in ("float32", "int16", "int32", "int64")]
    ['float32', 'float32', 'float64', 'int64']
    >>> str(changed_type("int64", Change(factor=2.0)))
    'float64'
    """
    is_kept = _is_long(np.dtype(dtype)) and change.factor == 1.0
    return np.dtype(dtype) if is_kept else np.result_type(dtype, np.float32)


def inexact(values: Array, components: Array, change: Change) -> Array:
    """Return which whole numbers a factor cannot multiply with every digit: no float64 holds them.

    >>> inexact(np.array([5, 2**53 + 1, 2**53 + 2]), np.arange(3), Change((Marker(2**53 + 2),), 2.0)).tolist()
    [False, True, False]
    """
    if change.factor == 1.0 or not _is_long(values.dtype):
        return np.zeros(values.shape, bool)
    odd = _marked(values, components, change, Effect())
    return np.asarray(((values > MOST_EXACT) | (values < -MOST_EXACT)) & ~odd)


def is_changed(before: Array, after: Array) -> Array:
    """Return which values a change made others; NaN that stays is the same.

    >>> is_changed(np.array([1.0, np.nan]), np.array([2.0, np.nan])).tolist()
    [True, False]
    """
    return np.asarray(~((before == after) | (np.isnan(before) & np.isnan(after))))


def _is_long(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" and dtype.itemsize == np.dtype(np.int64).itemsize


def _marked(values: Array, components: Array, change: Change, effect: Effect) -> Array:
    odd = np.zeros(values.shape, bool)
    for marker in change.markers:
        here = marker.component is None or components == marker.component
        found = _same(values, marker.value) & here
        effect.marked[marker] += int(found.sum())
        if not effect.marked[marker]:
            _look_beside(marker, values[np.broadcast_to(here, values.shape)], effect)
        odd |= found
    return odd


def _same(values: Array, marker: float) -> Array:
    if values.dtype.kind in "iu":  # every digit of an identity counts, which a comparison with a float leaves out
        return np.asarray(values == int(marker)) if marker == int(marker) else np.zeros(values.shape, bool)
    if values.dtype.kind == "b":
        return np.asarray(values == marker)
    return np.asarray(np.logical_or.reduce([values == number for number in _stored(marker, values.dtype)]))


def _stored(marker: float, dtype: np.dtype[Any]) -> list[np.floating[Any]]:
    """Return the numbers of a type that a marker may be: a float64 may have been a float32 of that name.

    A marker that the type makes 0 or infinite is none of its numbers.

    >>> [_stored(-999.9, np.dtype(kind)) for kind in ("float32", "float64")]
    [[np.float32(-999.9)], [np.float64(-999.9), np.float64(-999.9000244140625)]]
    >>> _stored(1700000002, np.dtype("float64")), len(_stored(1e-50, np.dtype("float32")))
    ([np.float64(1700000002.0)], 1)
    """
    with np.errstate(over="ignore", under="ignore"):
        own, short = dtype.type(marker), np.float32(marker)
    known = own if np.isfinite(own) and (own or not marker) else dtype.type(np.nan)
    is_called_so = dtype.itemsize > short.itemsize and float(str(short)) == marker and short != own
    return [known, dtype.type(short)] if is_called_so else [known]


def _look_beside(marker: Marker, values: Array, effect: Effect) -> None:
    """Note the stored values next to a marker that no value is."""
    sides = effect.near.setdefault(marker, (Counter(), Counter()))
    with np.errstate(over="ignore"):
        parts = values[values < marker.value], values[values > marker.value]
    for side, nearest, part in zip(sides, (np.max, np.min), parts, strict=True):
        part = part[np.isfinite(part)]
        if part.size:
            value = nearest([nearest(part), *side]).item()
            count = side[value] + int((part == value).sum())
            side.clear()
            side[value] = count


def _scale(result: Array, values: Array, odd: Array, factor: float, effect: Effect) -> None:
    """Multiply known values in place; of whole numbers only 1e10 itself is not known."""
    known = ~odd & ((values != int(DEAD_VALUE)) if values.dtype.kind in "iu" else (np.abs(result) < UNKNOWN_ABOVE))
    effect.passed_over += int((~known & ~odd & np.isfinite(result) & (np.abs(result) > LARGEST_LEGAL)).sum())
    before = result[known]
    with np.errstate(over="ignore"):  # infinite then, which `is_finite` is for
        np.multiply(result, factor, out=result, where=known)
    effect.scaled += int((before != result[known]).sum())
    effect.lost += int((np.abs(result[known]) >= UNKNOWN_ABOVE).sum())


def _beyond(result: Array, components: Array, odd: Array, change: Change, effect: Effect) -> Array:
    """Return which values lie beyond their range."""
    ends = _ends(change.within, result.dtype)[components if len(change.within) > 1 else 0]
    beyond = ~((result >= ends[..., 0]) & (result <= ends[..., 1]))
    is_known = (result != DEAD_VALUE) & ~np.isnan(result)
    effect.outside += int((beyond & ~odd & is_known).sum())
    inside = result[~beyond & ~odd & is_known]
    if inside.size:
        effect.lowest = min(effect.lowest, inside.min().item())
        effect.highest = max(effect.highest, inside.max().item())
    return np.asarray(beyond)


def _ends(within: tuple[tuple[float, float], ...], dtype: np.dtype[Any]) -> Array:
    """Return the ends of each range in the type of the values, which may have no fractions."""
    if dtype.kind not in "iu":
        largest = np.finfo(dtype).max
        return np.asarray(np.clip(np.array(within), -largest, largest).astype(dtype))
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    whole = ((math.ceil(low), math.floor(high)) for low, high in within)
    cut = ((max(low, least), min(high, most)) for low, high in whole)
    return np.array([ends if ends[0] <= ends[1] else (1, 0) for ends in cut], dtype)

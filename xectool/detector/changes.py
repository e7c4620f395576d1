"""Values in another unit, and numbers that stand for none, as they have to be.

Axes: N values of a branch, in any shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xectool.detector.constants import DEAD_VALUE, LARGEST_LEGAL, UNKNOWN_ABOVE
from xectool.findings.mends import Change

Array = npt.NDArray[Any]

_SAME = 1e-6  # relative: a marker is a number in decimals, and what is stored is often float32


def changed(values: Array, components: Array, change: Change) -> Array:
    """Return values after a change; what is not known stays so, and numbers of few digits get more.

    Args:
        values: As they are stored, shape (N,), (B, D) or any other.
        components: Component of each value, of a shape that broadcasts to that of the values.
        change: What is done.

    >>> from xectool.findings.mends import Marker
    >>> stored = np.array([[20.0, -999.0], [np.nan, 1e10]], np.float32)
    >>> identities = np.array([2**53 + 2, 2**53 + 4])
    >>> changed(identities, np.arange(2), Change((Marker(float(2**53 + 2)),))).tolist()
    [10000000000.0, 9007199254740996.0]
    >>> changed(stored, np.arange(2), Change((Marker(-999.0),), 0.5, ((0.0, 5.0), (0.0, 50.0)))).tolist()
    [[10000000000.0, 10000000000.0], [10000000000.0, 10000000000.0]]
    """
    result = values.astype(np.result_type(values.dtype, np.float32))
    odd = np.zeros(values.shape, bool)
    for marker in change.markers:
        here = marker.component is None or components == marker.component
        is_whole = values.dtype.kind in "iu"  # every digit of an identity counts
        odd |= (values == marker.value if is_whole else np.isclose(result, marker.value, _SAME, 0)) & here
    if change.factor != 1.0:
        with np.errstate(over="ignore"):  # infinite then, which `is_finite` is for
            np.multiply(result, change.factor, out=result, where=np.abs(result) < UNKNOWN_ABOVE)
    if change.within:
        ends = np.array(change.within, result.dtype)[components if len(change.within) > 1 else 0]
        odd |= ~((result >= ends[..., 0]) & (result <= ends[..., 1]))
    if change.is_finite:
        odd |= ~(np.abs(result) <= LARGEST_LEGAL)
    result[odd] = DEAD_VALUE
    return result


def is_changed(before: Array, after: Array) -> Array:
    """Return which values a change made others; NaN that stays is the same.

    >>> is_changed(np.array([1.0, np.nan]), np.array([2.0, np.nan])).tolist()
    [True, False]
    """
    return np.asarray(~((before == after) | (np.isnan(before) & np.isnan(after))))

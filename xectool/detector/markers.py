"""Numbers that a file has in place of readings that are none, other than 1e10 and NaN: -999, -9999 and their like.

Axes: B events, S sensors.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector.constants import DEAD_VALUE, LARGEST_NPHO, LARGEST_TIME_S, UNKNOWN_ABOVE

Array = npt.NDArray[Any]

LOWEST_NPHO: Final = -90.0  # of the noise of one sensor, with room; a marker lies below it
_POSSIBLE: Final = {"npho": (LOWEST_NPHO, LARGEST_NPHO), "time": (-LARGEST_TIME_S, LARGEST_TIME_S)}
_USUAL: Final = re.compile(r"-?(10{2,}|1e\+\d+|99+(\.9+)?)|-?3\.40\d*e\+38")
_FAR_OFF: Final = 3.0  # times as far as any other truth
_FEWEST: Final = 20  # readings of one value; bits flip one by one
_MOST: Final = 5  # values that are looked at
_BESIDE: Final = 0.01  # of its own readings: what else may lie as far out as half of it, as damage does
_SHARE: Final = 0.01  # of all readings, where a value is no usual marker
_EVENTS: Final = 0.5  # which have it: damage sits in a few
_DOMINANT_SHARE: Final = 0.2  # of all readings: of a number that lies among them
_DOMINANT_TIMES: Final = 5.0  # as many as any other value out of range


def markers_in(values: Array, channel: str) -> list[float]:
    """Return the numbers that look like markers of "no reading" in one channel, most frequent first.

    A marker is one number, exactly repeated, that no sensor delivers in photons or seconds. It lies far from all other
    readings, or it is by far the most frequent of them: readings of another unit are out of range as well, be they
    quantised or saturated. Zero, 1e10 and NaN are none: they are known.

    Args:
        values: Raw readings, shape (B, S), float32.
        channel: ``npho`` or ``time``.

    >>> times = np.linspace(0, 1e-8, 200, dtype=np.float32).reshape(2, 100)
    >>> times[:, ::3] = -999
    >>> markers_in(times, "time"), markers_in(np.where(times < 0, np.float32(1e10), times), "time")
    ([-999.0], [])
    """
    low, high = _POSSIBLE[channel]
    odd = values[(values < np.float32(low)) | (values > np.float32(high))]  # NaN compares false
    odd = odd[np.isfinite(odd) & (np.abs(odd - np.float32(DEAD_VALUE)) > 1e-3 * DEAD_VALUE)]
    if len(odd) < _FEWEST:
        return []
    numbers, counts = np.unique(odd, return_counts=True)
    order = np.argsort(-counts, kind="stable")[: _MOST + 1]
    often = [(float(numbers[at]), int(counts[at])) for at in order]
    return [number for number, count in often[:_MOST] if count >= _FEWEST and _is_marker(number, often, odd, values)]


def marker_in_truth(rows: Array) -> float | None:
    """Return the number that stands for "not known" among truths; None where there is none.

    It is one of the usual ones, in two events or more, and far from all others in each component that has it.

    Args:
        rows: Truths, shape (n, D).

    >>> rows = np.linspace(20.0, 50.0, 40)[:, None]
    >>> rows[::10] = -999.0
    >>> marker_in_truth(rows), marker_in_truth(np.where(rows < 0, 60.0, rows))
    (-999.0, None)
    """
    numbers, counts = np.unique(rows, return_counts=True)
    for number in numbers[counts > 1]:
        if not _USUAL.fullmatch(marker_words(float(number))):
            continue
        marked = rows == number
        others = np.where(marked, np.nan, rows)[:, marked.any(axis=0)]
        known = np.isfinite(others)
        if not known.any(axis=0).all():
            continue
        middle = np.nanmedian(others, axis=0)
        widest = np.nanmax(np.abs(others - middle), axis=0)
        if (np.abs(number - middle) > _FAR_OFF * widest).all():
            return float(number)
    return None


def marker_words(number: float) -> str:
    """Return a marker as it is written.

    >>> marker_words(-999.0), marker_words(float(np.float32(-999.9)))
    ('-999', '-999.9')
    """
    return f"{number:.7g}"


def decimal(number: float) -> float:
    """Return a reading, which is a float32, as the decimal number it is called by, which a float64 branch may hold.

    >>> decimal(float(np.float32(-999.9))), decimal(-999.0)
    (-999.9, -999.0)
    """
    return float(str(np.float32(number)))


def _is_marker(number: float, often: list[tuple[float, int]], odd: Array, values: Array) -> bool:
    """Return whether a number that is repeated stands apart.

    Args:
        number: The number.
        often: The most frequent numbers out of range, with how many readings each has.
        odd: All readings out of range.
        values: All readings, shape (B, S).
    """
    count = dict(often)[number]
    beyond = (odd < number / 2) if number < 0 else ((odd > number / 2) & (odd <= UNKNOWN_ABOVE))
    repeated = sum(many for other, many in often if other * np.sign(number) > abs(number) / 2 and many >= _FEWEST)
    if int(np.count_nonzero(beyond)) - repeated <= _BESIDE * count and _is_far(number):
        return _is_usual(number) or ((number < 0 or count >= _SHARE * values.size) and _in_many(values, number))
    others = max((many for other, many in often if other != number), default=0)
    is_end = number > 0 and int(np.count_nonzero(odd > number)) <= _BESIDE * count  # saturated
    return not is_end and count >= _DOMINANT_SHARE * values.size and count >= _DOMINANT_TIMES * others


def _is_far(number: float) -> bool:
    """Return whether a number is far out in any unit: whole numbers near zero may be steps of readings."""
    return abs(number) >= abs(LOWEST_NPHO)


def _is_usual(number: float) -> bool:
    return _USUAL.fullmatch(marker_words(number)) is not None


def _in_many(values: Array, number: float) -> bool:
    return float((values == np.float32(number)).any(axis=1).mean()) >= _EVENTS

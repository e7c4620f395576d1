"""What the truth of each task can be, and what it is in when it is in another unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.errors import counted

Array = npt.NDArray[Any]

_MARGIN_CM: Final = 5.0
_HALF_V_CM: Final = np.radians(c.INNER_SPAN_DEG / 2) * c.REFERENCE_RADIUS_CM
_DEPTH_CM: Final = c.OUTER_RADIUS_CM - c.REFERENCE_RADIUS_CM
# The end faces slope outwards: widest at the outer face.
_HALF_U_CM: Final = c.END_FIRST_Z_CM + c.END_PITCH_Z_CM * (_DEPTH_CM / c.END_PITCH_RADIUS_CM)


@dataclass(frozen=True)
class TruthRange:
    """Range of the truth of a task.

    Attributes:
        unit: Its unit.
        low: Smallest possible value of each component.
        high: Largest possible value of each component.
        typical: Smallest and largest size (median of absolute values) in that unit; None where it tells nothing.
        others: Other units by the factor that brings them to this one.
        usual: Usual size in that unit, which tells units apart that are all possible; the middle of ``typical`` if 0.
    """

    unit: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    typical: tuple[float, float] | None = None
    others: tuple[tuple[str, float], ...] = ()
    usual: float = 0.0


RANGES: Final[dict[str, TruthRange]] = {
    "angle": TruthRange("deg", (0.0, -360.0), (180.0, 360.0), others=(("radians", 180 / math.pi),)),
    "energy": TruthRange(
        "GeV", (0.0,), (1.0,), (1e-3, 0.3), (("MeV", 1e-3), ("keV", 1e-6), ("eV", 1e-9), ("TeV", 1e3))
    ),
    "timing": TruthRange(
        "s", (-1e-5,), (1e-5,), (0.0, 1e-6), (("ns", 1e-9), ("us", 1e-6), ("ps", 1e-12), ("ms", 1e-3)), 3e-9
    ),
    "uvwFI": TruthRange(
        "cm",
        (-_HALF_U_CM - _MARGIN_CM, -_HALF_V_CM - _MARGIN_CM, -_MARGIN_CM),
        (_HALF_U_CM + _MARGIN_CM, _HALF_V_CM + _MARGIN_CM, _DEPTH_CM + _MARGIN_CM),
        (1.5, 60.0),
        (("mm", 0.1), ("m", 100.0)),
    ),
    "angleVec": TruthRange("1", (-1.001, -1.001, -1.001), (1.001, 1.001, 1.001)),
    "n_gamma": TruthRange("1", (0.0,) * 5, (1000.0,) * 5),
}
NEVER_ZERO: Final = ("energy", "uvwFI", "angle", "angleVec")
"""Tasks whose truth is never exactly 0: no light, one point, along the beam, without length."""
NEVER_FILLED_FIX: Final = "write 1e10 where a truth is not known: its loss leaves it out"
_ANGLES_TO_TELL: Final = 10
_NEARLY_ALL: Final = 0.9


def impossible(task: str, rows: Array) -> npt.NDArray[np.bool_]:
    """Return which events have a truth outside of its range, shape (n,).

    Args:
        task: The task.
        rows: Truth, shape (n, D); what is not known, NaN or 1e10, is not impossible.
    """
    low, high = RANGES[task].low, RANGES[task].high
    known = np.abs(rows) < c.UNKNOWN_ABOVE
    return np.asarray((known & ((rows < low) | (rows > high))).any(axis=1))


def never_filled(task: str, rows: Array) -> npt.NDArray[np.bool_]:
    """Return which events have the truth that a branch begins with, 0 in all components, and cannot have it, (n,)."""
    return np.asarray((rows == 0).all(axis=1) & (task in NEVER_ZERO))


def no_number(task: str, rows: Array) -> npt.NDArray[np.bool_]:
    """Return which events have a truth that is NaN, infinite or beyond 1e10, the mark of what is not known, (n,)."""
    return np.asarray(~(np.abs(rows) <= c.LARGEST_LEGAL).all(axis=1))


def told_no_number(task: str, count: int, num_events: int) -> str:
    """Return how many events of a task have the truth of `no_number`, in words."""
    return f"the truth of task {task} is NaN, infinite or beyond 1e10 in {count} of {counted(num_events, 'event')}"


def told_impossible(task: str, value: float, count: int) -> str:
    """Return how many events of a task have a truth outside of its range, and that of the first, in words."""
    return (
        f"the truth of task {task} is {value:.6g} {RANGES[task].unit}: outside of what is possible; {count} such in all"
    )


def told_never_filled(task: str, count: int, num_events: int) -> str:
    """Return how many events of a task have the truth of `never_filled`, in words."""
    return f"the truth of task {task} is exactly 0 in {count} of {num_events} events: it was never filled"


def typical_size(rows: Array) -> float:
    """Return the median over events of the largest component."""
    return float(np.median(np.abs(rows).max(axis=1)))


def other_unit(task: str, rows: Array) -> str:
    """Return the unit the truth of a task seems to be in where that is another than it should be, else empty.

    Args:
        task: The task.
        rows: Known truth, shape (n, D).
    """
    if not len(rows):
        return ""
    if task in ("angle", "angleVec"):
        return _other_direction(task, rows) if len(rows) >= _ANGLES_TO_TELL else ""
    span = RANGES[task].typical
    if span is None:
        return ""
    size = typical_size(rows)
    if span[0] <= size <= span[1] or size == 0:
        return ""
    unknown = "" if len(rows) < _ANGLES_TO_TELL else f"another unit (typical size {size:.3g})"
    return likely_unit(task, size) or unknown


def likely_unit(task: str, size: float) -> str:
    """Return the other unit in which a size is nearest to the usual one of a task; empty where none is possible."""
    allowed = RANGES[task]
    low, high = allowed.typical or (0.0, 0.0)
    usual = allowed.usual or float(np.sqrt(low * high))
    fitting = [(unit, factor) for unit, factor in allowed.others if low <= size * factor <= high]
    return min(fitting, key=lambda other: abs(np.log(size * other[1] / usual)), default=("", 1.0))[0]


def _other_direction(task: str, rows: Array) -> str:
    if task == "angle":
        # Emission angles cluster about 90 deg; below pi they would all lie along the beam.
        small = float(np.abs(rows).max()) <= 2 * np.pi and float(np.median(rows[:, 0])) <= np.pi
        return "radians" if small else ""
    norm = float(np.median(np.linalg.norm(rows, axis=1)))
    return "" if abs(norm - 1) < 0.02 else f"vectors of length {norm:.4g}"


def are_few(num_far: int, num_events: int) -> bool:
    """Say whether events far from all others are few enough for damage; more are a population, as pile-up is one.

    >>> are_few(3, 40), are_few(4, 40), are_few(4, 400)
    (True, False, True)
    """
    return num_far <= max(3, num_events // 100)


def unit_of_times(times: Array) -> str:
    """Return the unit of times of sensors, nearly all of which no event lasts as seconds; empty where some are seconds.

    >>> unit_of_times(np.array([20.0, -35.0, 0.0, 1e10])), unit_of_times(np.array([2e-8, 3e-8, 4e-3]))
    ('ns', '')
    """
    sizes = np.abs(times[times != 0])
    sizes = sizes[sizes < c.UNKNOWN_ABOVE]
    longer = sizes[sizes > c.LARGEST_TIME_S]
    return likely_unit("timing", float(np.median(longer))) if len(longer) > _NEARLY_ALL * len(sizes) else ""

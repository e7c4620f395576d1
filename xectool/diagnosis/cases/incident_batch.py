"""What sets some events of a kept batch apart from the others: targets and readings far from all of theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.detector.truth_ranges import RANGES
from xectool.runlog.arrays import read_arrays

FAR: Final = 30.0  # robust deviations of the rest of the batch; light and truth of sound events stay far within
ENOUGH: Final = 8  # values whose spread can be trusted
FEWEST: Final = 3  # values that have a spread: two may be alike by chance, and one is like itself
INFINITE: Final = "is infinite"
_TARGET: Final = re.compile(r"target (?P<task>\w+)\[(?P<part>\d+)\]")
_IDENTITY: Final = ("file_index", "entry", "run", "event")
_MAX_LINES: Final = 4


def outlier_lines(folder: Path, suspects: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
    """Return in which quantities the suspects are far from the rest of their batch, or not finite.

    Args:
        folder: Incident folder with ``batch.npz``; without one nothing is said.
        suspects: Identities ``(file_index, entry, run, event)``.
    """
    try:
        columns = read_arrays(folder / "batch.npz")
    except (FileNotFoundError, ValueError):
        return ()
    if any(name not in columns for name in _IDENTITY):
        return ()
    identity = np.stack([np.asarray(columns[name]).ravel() for name in _IDENTITY], axis=1)
    wanted = {tuple(row) for row in suspects}
    chosen = np.array([tuple(int(value) for value in row) in wanted for row in identity], dtype=bool)
    if not chosen.any() or chosen.all():
        return ()
    lines = [
        line for name, values in _quantities(columns).items() if (line := _apart(name, values[chosen], values[~chosen]))
    ]
    return tuple(lines[:_MAX_LINES])


def _quantities(columns: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Return one number an event for each target component, the weight and the largest readings, shape (B,) each."""
    found: dict[str, NDArray[np.float64]] = {}
    for name, values in columns.items():
        table = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        if name.startswith("targets_"):
            found |= {f"target {name[8:]}[{index}]": table[:, index] for index in range(table.shape[1])}
        elif name == "weight":
            found[name] = table[:, 0]
        elif name in ("npho", "time"):
            known = np.where(np.isfinite(table) & (np.abs(table) < UNKNOWN_ABOVE), np.abs(table), 0.0)
            found[f"largest |{name}|"] = known.max(axis=1)
            found[f"infinite {name} readings"] = np.isinf(table).sum(axis=1).astype(np.float64)
    return found


def _width(name: str, sound: NDArray[np.float64], middle: float) -> float:
    """Return the robust deviation of values; of few it is often tiny by chance, so theirs is taken wider."""
    robust = max(1.4826 * float(np.median(np.abs(sound - middle))), 1e-3 * abs(middle), 1e-30)
    if sound.size >= ENOUGH:
        return robust
    # of one or two: their size, for the light of sound events differs by a factor of ten, or all that a truth can be
    own = max(abs(middle), _range(name) / FAR) if sound.size < FEWEST else 0.0
    return max(robust * ENOUGH / sound.size, float(np.std(sound)) * ENOUGH / sound.size, own)


def _range(name: str) -> float:
    """Return how far values of a target component can lie apart; zero for what has no range."""
    found = _TARGET.fullmatch(name)
    if found is None or found["task"] not in RANGES:
        return 0.0
    task, part = RANGES[found["task"]], int(found["part"])
    return task.high[part] - task.low[part]


def _apart(name: str, suspects: NDArray[np.float64], others: NDArray[np.float64]) -> str:
    sound = others[np.isfinite(others) & (np.abs(others) < UNKNOWN_ABOVE)]
    if not sound.size:
        return ""
    middle = float(np.median(sound))
    width = _width(name, sound, middle)
    known = suspects[np.isfinite(suspects)]
    far = known[np.abs(known - middle) > FAR * width]
    far = far[np.abs(far) < UNKNOWN_ABOVE] if name.startswith("target") else far
    if np.isinf(suspects).any():
        return f"{name} {INFINITE}; the other events have {middle:.4g}"
    return f"{name} is {far[0]:.4g}; the other events have {middle:.4g} +- {width:.2g}" if far.size else ""

"""Whether the light of a file lies where its sensors and its true positions say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.checks.cells import EventReservoir
from xectool.checks.reading import read_small
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.detector.light_pattern import light_places, misplaced, truth_elsewhere
from xectool.detector.sensor_rows import displaced_rows
from xectool.rootio.reader import EventFile

Array = npt.NDArray[Any]
FEWEST_EVENTS: Final = 20


@dataclass(frozen=True)
class LightMisfit:
    """What does not fit in one file, in words: the order of its sensors, or else its truth; empty where both fit."""

    order: str = ""
    truth: str = ""


def light_misfit(file: EventFile, kept: EventReservoir, position_branch: str | None) -> LightMisfit:
    """Judge some events of a file.

    Args:
        file: The file.
        kept: Events of it.
        position_branch: Branch of the true position, where the file has one that can be read.
    """
    npho = kept.npho
    places = light_places(npho)
    lit = np.isfinite(places).all(axis=1)
    order = (misplaced(places) if lit.sum() >= FEWEST_EVENTS else "") or displaced_rows(npho)
    if order or position_branch is None:
        return LightMisfit(order)
    entries = np.array([kept.cell(row, 0, 0.0).entry for row in range(len(npho))])
    uvw_cm = _positions_cm(file, position_branch, entries)
    known = lit & (np.abs(uvw_cm) < UNKNOWN_ABOVE).all(axis=1)
    enough = known.sum() >= FEWEST_EVENTS
    return LightMisfit(truth=truth_elsewhere(places[known], uvw_cm[known]) if enough else "")


def _positions_cm(file: EventFile, branch: str, entries: Array) -> Array:
    """Return the true positions of some entries, shape (n, 3), NaN where the file is damaged."""
    found = np.full((len(entries), 3), np.nan)
    for start, rows in read_small(file, branch, 3, np.float64, lambda _: None):  # damage was told of before
        inside = (entries >= start) & (entries < start + len(rows))
        found[inside] = rows[entries[inside] - start]
    return found

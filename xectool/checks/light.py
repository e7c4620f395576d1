"""Whether the light of a file lies where its sensors and its true positions say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.checks.cells import EventReservoir
from xectool.checks.reading import read_small
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.detector.light_pattern import energy_elsewhere, light_places, misplaced, times_elsewhere, truth_elsewhere
from xectool.detector.sensor_rows import displaced_rows
from xectool.rootio.reader import EventFile

Array = npt.NDArray[Any]
FEWEST_EVENTS: Final = 20


@dataclass(frozen=True)
class LightMisfit:
    """What does not fit in one file, in words; empty where all fits.

    Attributes:
        order: The order of its sensors; nothing else is judged then.
        truth: The true position.
        energy: The true energy.
        times: The order of the times beside that of the photons.
    """

    order: str = ""
    truth: str = ""
    energy: str = ""
    times: str = ""


def light_misfit(
    file: EventFile, kept: EventReservoir, position_branch: str | None, energy_branch: str | None
) -> LightMisfit:
    """Judge some events of a file.

    Args:
        file: The file.
        kept: Events of it.
        position_branch: Branch of the true position, where the file has one that can be read.
        energy_branch: Branch of the true energy, likewise.
    """
    npho = kept.npho
    places = light_places(npho)
    lit = np.isfinite(places).all(axis=1)
    order = (misplaced(places) if lit.sum() >= FEWEST_EVENTS else "") or displaced_rows(npho)
    times = times_elsewhere(npho, kept.time) if len(npho) >= FEWEST_EVENTS else ""
    if order:
        return LightMisfit(order, times=times)
    entries = np.array([kept.cell(row, 0, 0.0).entry for row in range(len(npho))])
    truth, energy = "", ""
    if position_branch is not None:
        uvw_cm = _numbers(file, position_branch, entries, 3)
        known = lit & (np.abs(uvw_cm) < UNKNOWN_ABOVE).all(axis=1)
        truth = truth_elsewhere(places[known], uvw_cm[known]) if known.sum() >= FEWEST_EVENTS else ""
    if energy_branch is not None:
        light = np.where((npho >= 0) & (npho < UNKNOWN_ABOVE), npho, 0.0).sum(axis=1, dtype=np.float64)
        energy = energy_elsewhere(light, _numbers(file, energy_branch, entries, 1)[:, 0])
    return LightMisfit(truth=truth, energy=energy, times=times)


def _numbers(file: EventFile, branch: str, entries: Array, width: int) -> Array:
    """Return the truth of some entries, shape (n, width), NaN where the file is damaged."""
    found = np.full((len(entries), width), np.nan)
    for start, rows in read_small(file, branch, width, np.float64, lambda _: None):  # damage was told of before
        inside = (entries >= start) & (entries < start + len(rows))
        found[inside] = rows[entries[inside] - start]
    return found

"""Whether the light of a file lies where its sensors and its truth say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.checks.cells import EventReservoir
from xectool.checks.reading import read_small
from xectool.config.tasks import TASK_WIDTHS
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.detector.light_pattern import (
    TRUTH_OF_PLACES,
    energy_elsewhere,
    light_of_one,
    light_places,
    misplaced,
    times_elsewhere,
    truth_elsewhere,
)
from xectool.detector.photon_statistics import pedestal_left, photon_statistics, uncounted
from xectool.detector.sensor_rows import displaced_rows
from xectool.rootio.reader import EventFile

Array = npt.NDArray[Any]
FEWEST_EVENTS: Final = 20
ENERGY, ORDER, TIMES, COPIED, SCALE = "energy", "order", "times", "copied", "scale"
_COUNTED: Final = 48  # events whose fluctuation is looked at: a quarter of a millisecond each
JUDGED_TASKS: Final = (*TRUTH_OF_PLACES, ENERGY)


def light_misfits(file: EventFile, kept: EventReservoir, branches: Mapping[str, str]) -> dict[str, str]:
    """Judge some events of a file.

    Args:
        file: The file.
        kept: Events of it.
        branches: Branch of the truth by task, of those in `JUDGED_TASKS` that the file has and that can be read.

    Returns:
        What does not fit, in words: light that is `COPIED` from one event, beside which nothing else is judged, `ORDER`
        of its sensors, beside which no truth is, `TIMES` of other sensors than the photons, its `SCALE`, and the truth
        by task.
    """
    npho = kept.npho
    places = light_places(npho)
    if copied := light_of_one(places):
        return {COPIED: copied}
    lit = np.isfinite(places).all(axis=1)
    order = (misplaced(places) if lit.sum() >= FEWEST_EVENTS else "") or displaced_rows(npho)
    times = times_elsewhere(npho, kept.time) if len(npho) >= FEWEST_EVENTS else ""
    found = {ORDER: order, TIMES: times}
    if not order:
        found[SCALE] = _scale(npho)
        entries = np.array([kept.cell(row, 0, 0.0).entry for row in range(len(npho))])
        light = np.where((npho >= 0) & (npho < UNKNOWN_ABOVE), npho, 0.0).sum(axis=1, dtype=np.float64)
        for task, branch in branches.items():
            truth = _numbers(file, branch, entries, TASK_WIDTHS[task])
            known = lit & (np.abs(truth) < UNKNOWN_ABOVE).all(axis=1)
            if task == ENERGY:
                found[task] = energy_elsewhere(light, truth[:, 0])
            elif known.sum() >= FEWEST_EVENTS:
                found[task] = truth_elsewhere(places[known], truth[known], task)
    return {name: message for name, message in found.items() if message}


def _scale(npho: Array) -> str:
    """Return what is odd about the scale of light, (B, S), by its own fluctuation."""
    counts, darkest = zip(*map(photon_statistics, npho[:: -(-len(npho) // _COUNTED)]), strict=True)
    return pedestal_left(darkest) or uncounted(counts)


def _numbers(file: EventFile, branch: str, entries: Array, width: int) -> Array:
    """Return the truth of some entries, shape (n, width), NaN where the file is damaged."""
    found = np.full((len(entries), width), np.nan)
    for start, rows in read_small(file, branch, width, np.float64, lambda _: None):  # damage was told of before
        inside = (entries >= start) & (entries < start + len(rows))
        found[inside] = rows[entries[inside] - start]
    return found

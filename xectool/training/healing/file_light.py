"""Files whose events have another light than those of the others: another gain, another unit, or no calibration.

Single events differ by any factor; the middle of a file is what its gain and its beam make it.

Axes: B events, S sensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import torch

from xectool.data.batch import EventBatch
from xectool.data.extremes import PHOTONS
from xectool.detector.constants import UNKNOWN_ABOVE

FEWEST_EVENTS: Final = 8  # of a file, whose median says what is usual there
MOST_EVENTS: Final = 64
FACTOR: Final = 20.0  # calibration lines and beams lie within ten: 5.5 to 52.8 MeV


class LightByFile:
    """The photons of the first events of each file."""

    def __init__(self) -> None:
        self._logarithms: dict[int, list[float]] = {}
        self._usual: dict[int, float] = {}
        self._said = False

    def look(self, window: Sequence[EventBatch]) -> tuple[int, int, float] | None:
        """Take the events of a window; return the brightest and the faintest file and their ratio, once.

        Args:
            window: Batches of B events, photons of shape (B, S).
        """
        taken = [not self._said and self._take(batch) for batch in window]
        if not any(taken):
            return None
        bright = max(self._usual, key=self._usual.__getitem__)
        faint = min(self._usual, key=self._usual.__getitem__)
        ratio = math.exp(self._usual[bright] - self._usual[faint])
        self._said = ratio > FACTOR
        return (bright, faint, ratio) if self._said else None

    def _take(self, batch: EventBatch) -> bool:
        """Take the events of files of which few are known; return whether the middle of one is known better."""
        files = batch.file_index.tolist()
        wanted = {index for index in files if len(self._logarithms.get(index, ())) < MOST_EVENTS}
        if not wanted:
            return False
        for index, photons in zip(files, _light(batch), strict=True):
            if photons > 0 and index in wanted:
                self._logarithms.setdefault(index, []).append(math.log(photons))
        known = {index: values for index in wanted if len(values := self._logarithms.get(index, [])) >= FEWEST_EVENTS}
        self._usual |= {index: median(values) for index, values in known.items()}
        return bool(known)


def _light(batch: EventBatch) -> list[float]:
    """Return the photons of each event."""
    if batch.extremes is not None:
        return [float(photons) for photons in batch.extremes[:, PHOTONS].tolist()]
    light = torch.where(batch.npho.abs() <= UNKNOWN_ABOVE, batch.npho, 0.0).sum(dim=1, dtype=torch.float64)
    return [float(photons) for photons in light.tolist()]

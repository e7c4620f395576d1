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
from xectool.detector.constants import UNKNOWN_ABOVE

FEWEST_EVENTS: Final = 8  # of a file, whose median says what is usual there
MOST_EVENTS: Final = 64
FACTOR: Final = 20.0  # calibration lines and beams lie within ten: 5.5 to 52.8 MeV


class LightByFile:
    """The photons of the first events of each file."""

    def __init__(self) -> None:
        self._logarithms: dict[int, list[float]] = {}
        self._said = False

    def look(self, window: Sequence[EventBatch]) -> tuple[int, int, float] | None:
        """Take the events of a window; return the brightest and the faintest file and their ratio, once.

        Args:
            window: Batches of B events, photons of shape (B, S).
        """
        if self._said:
            return None
        for batch in window:
            self._take(batch)
        usual = {index: median(known) for index, known in self._logarithms.items() if len(known) >= FEWEST_EVENTS}
        if len(usual) < 2:
            return None
        bright, faint = max(usual, key=lambda index: usual[index]), min(usual, key=lambda index: usual[index])
        ratio = math.exp(usual[bright] - usual[faint])
        self._said = ratio > FACTOR
        return (bright, faint, ratio) if self._said else None

    def _take(self, batch: EventBatch) -> None:
        files = [int(index) for index in batch.file_index]
        if all(len(self._logarithms.get(index, ())) >= MOST_EVENTS for index in files):
            return
        light = torch.where(batch.npho.abs() <= UNKNOWN_ABOVE, batch.npho, 0.0).sum(dim=1, dtype=torch.float64)
        for index, photons in zip(files, light.tolist(), strict=True):
            known = self._logarithms.setdefault(index, [])
            if photons > 0 and len(known) < MOST_EVENTS:
                known.append(math.log(photons))

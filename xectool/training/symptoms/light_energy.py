"""Whether the true energy follows the light: of each file with many events, and of all others together.

Axes: B events.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch
from xectool.data.extremes import PHOTONS
from xectool.detector.light_pattern import ENOUGH_ENERGIES, energy_elsewhere, energy_likeness

Array = npt.NDArray[Any]
ENERGY: Final = "energy"
MOST_FILES: Final = 64  # that are looked at by themselves


@dataclass
class LightEnergies:
    """Light and true energy of the first events of each file, which are judged once, when there are enough.

    Attributes:
        other: Events that these should be like, judged before them; beside those, fewer tell.
        usual: Correlation of light and energy of the largest number of events judged so far, and that number.
    """

    other: LightEnergies | None = None
    usual: tuple[float, int] = (math.nan, 0)
    _pairs: dict[int, list[Array]] = field(default_factory=dict)
    _known: dict[int, int] = field(default_factory=dict)
    _told: bool = False

    def look(self, window: Sequence[EventBatch]) -> Iterator[tuple[str, int]]:
        """Take the events of a window; yield what does not fit, and the file it is of.

        Args:
            window: Batches of B events, with extremes.
        """
        for batch in window:
            truth = batch.targets.get(ENERGY)
            if truth is None or batch.extremes is None or self._told:
                return
            files = batch.file_index
            wanted = [index for index in np.unique(files).tolist() if self._wants(index)]
            if not wanted:
                continue
            pairs = np.stack([batch.extremes[:, PHOTONS], truth.numpy(force=True)[:, 0]], axis=1)
            for index in wanted:
                rows = pairs[files == index]
                self._pairs.setdefault(index, []).append(rows)
                self._known[index] = self._known.get(index, 0) + len(rows)
                if self._known[index] >= ENOUGH_ENERGIES and (message := self._misfit(self._pairs.pop(index))):
                    yield message, index

    def rest(self) -> str:
        """Judge the events of all files that had too few, as if they were of one; an epoch is over."""
        rows = [pairs for kept in self._pairs.values() for pairs in kept]
        self._pairs.clear()
        return self._misfit(rows) if rows and not self._told else ""

    def _wants(self, index: int) -> bool:
        known = self._known.get(index, 0)
        return known < ENOUGH_ENERGIES if known else len(self._known) < MOST_FILES

    def _misfit(self, rows: list[Array]) -> str:
        photons, energies = np.concatenate(rows).T
        message = energy_elsewhere(photons, energies, *([self.other.usual] if self.other else []))
        likeness, number = energy_likeness(photons, energies)
        if math.isfinite(likeness) and number > self.usual[1]:
            self.usual = (likeness, number)
        self._told = bool(message)
        return message

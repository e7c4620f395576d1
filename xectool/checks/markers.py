"""Markers of "no reading" of other kinds than 1e10 and NaN: found in a file, and hidden from what judges readings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xectool.checks.cells import Cell, Place
from xectool.checks.normalizing import NphoMap
from xectool.config.normalization import NormalizationConfig
from xectool.detector.constants import DEAD_VALUE, UNKNOWN_ABOVE
from xectool.detector.markers import markers_in

Array = npt.NDArray[Any]


@dataclass
class Marker:
    """A number that marks readings that are none.

    Attributes:
        first: The first such reading.
        count: How many there are.
        seen: Those of them that a network takes for readings.
    """

    first: Cell
    count: int = 0
    seen: int = 0


@dataclass
class FileMarkers:
    """The markers of one file.

    Attributes:
        settings: Constants of the network, which tell what it takes for a reading.
        npho: Those of the photons, by number.
        time: Those of the times, by number.
        total: Readings of either.
    """

    settings: NormalizationConfig
    npho: dict[float, Marker] = field(default_factory=dict)
    time: dict[float, Marker] = field(default_factory=dict)
    total: int = 0

    def hide(self, npho: Array, time: Array, place: Place) -> None:
        """Put 1e10 in place of all markers of a block, both channels of shape (B, S).

        Args:
            npho: Photons; changed.
            time: Times, s; changed.
            place: Where the block lies.
        """
        self.total += npho.size
        lowest = -np.inf if self.settings.below_domain == "zero" else NphoMap(self.settings).lowest
        self._hide("npho", npho, npho, lowest, place)
        self._hide("time", time, npho, self.settings.npho_threshold, place)

    def _hide(self, channel: str, values: Array, npho: Array, least: float, place: Place) -> None:
        """Hide the markers of one channel, whose readings a network takes from the least photons on."""
        known: dict[float, Marker] = getattr(self, channel)
        for number in dict.fromkeys((*known, *markers_in(values, channel))):
            here = values == np.float32(number)
            if not here.any():
                continue
            row, sensor = (int(axis) for axis in np.unravel_index(int(here.argmax()), here.shape))
            marker = known.setdefault(number, Marker(place.cell(row, sensor, number)))
            marker.count += int(np.count_nonzero(here))
            photons = npho[here]
            is_read = (photons >= np.float32(least)) & (photons <= np.float32(UNKNOWN_ABOVE))
            if channel == "npho" or abs(number) <= UNKNOWN_ABOVE:  # a time beyond it is unknown to the network, too
                marker.seen += int(np.count_nonzero(is_read))
            values[here] = DEAD_VALUE

"""Event weights that flatten the distribution of the light sum in the training events.

Axes: B events, S sensors (4760), N bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xectool.config.training import IntensityReweightingConfig
from xectool.data.events import EventSource
from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.errors import DataUnusable

FloatArray = npt.NDArray[np.float64]

MAX_FIT_EVENTS = 100_000
"""Events the bins are fitted on; more are sampled evenly over the files, since a histogram needs no more."""

_BLOCK_EVENTS = 512
# The outermost bins take everything beyond: a bin at the very maximum would hold one event of enormous weight.
_RANGE_PERCENT = (1.0, 99.0)


def light_sum(npho: npt.NDArray[np.floating]) -> FloatArray:
    """Return the photons of all sensors that have a reading, shape (B,), from raw npho, shape (B, S).

    The only definition, for fit and look-up alike: dead, missing and negative readings count nothing.
    """
    lit = (npho > 0) & (npho < UNKNOWN_ABOVE)  # NaN compares false
    total: FloatArray = np.where(lit, npho, 0.0).sum(axis=1, dtype=np.float64)
    return total


@dataclass(frozen=True)
class IntensityReweighter:
    """Weights of events by their light sum; their mean over the fitted events is 1.

    Attributes:
        edges: Edges of bins of equal width in photons, shape (N + 1,); the outer bins are open.
        bin_weights: Weight of each bin, shape (N,); 1 where no event was.
    """

    edges: FloatArray
    bin_weights: FloatArray

    @classmethod
    def fit(cls, source: EventSource, config: IntensityReweightingConfig) -> Self:
        """Fit on the served events of a data set, reading their photons in blocks.

        Raises:
            DataUnusable: No event has any light.
        """
        sums = [light_sum(block) for block in _npho_blocks(source)]
        found = np.concatenate(sums) if sums else np.zeros(0)
        if not (found > 0).any():
            raise DataUnusable(
                "no training event has any light to weigh by",
                where=f"branch {source.branches.npho}",
                fix="--set training.intensity_reweighting.enabled=false",
                code="XT-DATA-NO-LIGHT",
            )
        return cls.from_sums(found, config)

    @classmethod
    def from_sums(cls, sums: FloatArray, config: IntensityReweightingConfig) -> Self:
        """Fit on light sums, shape (B,), in photons.

        A bin's weight is the share of events it should have over the share it has. ``uniform`` gives every filled bin
        the same share, ``sqrt`` a share that falls with the root of its light. Bins have equal widths: bins of equal
        population, as the older system uses, make ``uniform`` a weight of one for all events.
        """
        low, high = np.percentile(sums, _RANGE_PERCENT)
        edges = np.linspace(low, high, config.nbins + 1) if high > low else np.array([low, low + 1.0])
        counts = np.bincount(_bin_index(sums, edges), minlength=len(edges) - 1)
        filled = counts > 0
        centre = np.maximum(0.5 * (edges[1:] + edges[:-1]), 1.0)
        wanted = np.where(filled, 1.0 if config.target == "uniform" else 1 / np.sqrt(centre), 0.0)
        ratio = (wanted / wanted.sum()) / np.maximum(counts / counts.sum(), 1e-300)
        return cls(edges, np.where(filled, ratio, 1.0))

    def weights(
        self, targets: Mapping[str, npt.NDArray[np.float32]], npho: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the weight of each event, shape (B,), from its photons, shape (B, S); truth does not matter."""
        return self.weights_of(npho)

    def weights_of(self, npho: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the weight of each event, shape (B,), from its raw npho, shape (B, S)."""
        return self.bin_weights[_bin_index(light_sum(npho), self.edges)].astype(np.float32)

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return the weights as plain arrays, as they are kept with a run."""
        return {"intensity/edges": self.edges, "intensity/weights": self.bin_weights}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the reweighter that ``to_arrays`` wrote."""
        return cls(np.asarray(arrays["intensity/edges"]), np.asarray(arrays["intensity/weights"]))


def _bin_index(sums: FloatArray, edges: FloatArray) -> npt.NDArray[np.intp]:
    return np.clip(np.searchsorted(edges, sums, side="right") - 1, 0, len(edges) - 2)


def _npho_blocks(source: EventSource) -> Iterator[npt.NDArray[np.float32]]:
    """Yield photons of the served events, or of evenly spread blocks of them, each of shape (n, S)."""
    every = max(1, -(-source.num_events // MAX_FIT_EVENTS))
    number = 0
    for index, served in enumerate(source.files):
        file = source.event_file(index) if served.num_selected else None
        for start in range(0, served.num_entries, _BLOCK_EVENTS):
            stop = min(start + _BLOCK_EVENTS, served.num_entries)
            number += 1
            if file is None or (number - 1) % every:
                continue
            block = np.empty((stop - start, NUM_SENSORS), np.float32)
            file.read_into(source.branches.npho, start, stop, block)
            chosen = served.selected
            yield block if chosen is None else block[chosen[(chosen >= start) & (chosen < stop)] - start]

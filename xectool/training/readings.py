"""Report photon numbers that no sensor can give; the network sees such a sensor as dead."""

from __future__ import annotations

import math

import torch

from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.models.normalize import NphoScheme

MAX_NAMED = 10  # readings named one by one; the rest is counted


class ReadingWatch:
    """Looks at the photon numbers of one epoch, in which every event occurs once.

    NaN, infinities and numbers below the domain of the scheme are reported; 1e10, the mark of a dead sensor, is not.

    Args:
        config: Gives the scheme, and whether anything is looked at (``data.log_invalid_npho``).
    """

    def __init__(self, config: RunConfig) -> None:
        norm = config.normalization
        self._lowest = NphoScheme(norm.npho_scheme, norm.npho_scale, norm.npho_scale2).lowest
        self._active = config.data.log_invalid_npho
        self._epoch: int | None = None
        self.num_invalid = 0

    def look(self, batch: EventBatch) -> list[str]:
        """Return a line for each invalid reading of a batch, as far as there is still room for names.

        Args:
            batch: On the CPU; of another epoch than the first one looked at, it is passed over.
        """
        self._epoch = batch.epoch if self._epoch is None else self._epoch
        if not self._active or batch.epoch != self._epoch:
            return []
        if not batch.num_events or self._all_valid(batch.npho):
            return []
        invalid = ~torch.isfinite(batch.npho) | (batch.npho < self._lowest)
        room = MAX_NAMED - self.num_invalid
        places = invalid.nonzero()
        self.num_invalid += len(places)
        return [self._line(batch, row, sensor) for row, sensor in places[: max(0, room)].tolist()]

    def summary(self) -> str:
        """Return one line on all invalid readings, or an empty string where there were none."""
        if not self.num_invalid:
            return ""
        return (
            f"{self.num_invalid} invalid photon numbers in epoch {self._epoch}; those sensors are treated as dead "
            "(data.log_invalid_npho: false to say nothing)"
        )

    def _all_valid(self, npho: torch.Tensor) -> bool:
        low, high = torch.aminmax(npho)  # both are NaN where one number is
        return float(low) >= self._lowest and float(high) < math.inf

    def _line(self, batch: EventBatch, row: int, sensor: int) -> str:
        place = (
            f"run {batch.run[row]} event {batch.event[row]}, entry {batch.entry[row]} of file {batch.file_index[row]}"
        )
        return f"invalid photon number {float(batch.npho[row, sensor]):g}: {place}, sensor {sensor}"

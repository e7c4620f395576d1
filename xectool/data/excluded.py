"""Events that are left out of every batch, by file and entry."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch

_ENTRY_BITS = 40  # a file of 10^12 entries would hold petabytes


@dataclass(frozen=True)
class ExcludedEvents:
    """A set of events.

    Attributes:
        keys: ``file_index * 2^40 + entry`` of each, ascending, shape (n,).
    """

    keys: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.keys)

    def with_events(self, file_index: npt.NDArray[np.integer], entry: npt.NDArray[np.integer]) -> ExcludedEvents:
        """Return the set with further events, both of shape (n,)."""
        return ExcludedEvents(np.union1d(self.keys, event_keys(file_index, entry)))

    def rows(self, batch: EventBatch) -> npt.NDArray[np.int64]:
        """Return the rows of a batch that are excluded, ascending."""
        found = np.isin(event_keys(batch.file_index, batch.entry), self.keys)
        return np.flatnonzero(found).astype(np.int64)

    def left_out_of(self, batch: EventBatch) -> EventBatch:
        """Return a batch without the excluded events; the batch itself where it holds none."""
        if not len(self.keys):
            return batch
        rows = self.rows(batch)
        return batch.take(np.setdiff1d(np.arange(batch.num_events), rows)) if len(rows) else batch


def event_keys(file_index: npt.NDArray[np.integer], entry: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return one number an event, different for different events, shape (n,)."""
    return (np.asarray(file_index, np.int64) << _ENTRY_BITS) | np.asarray(entry, np.int64)

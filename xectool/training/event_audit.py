"""Counts the events of an epoch as they are used: each once, none twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch
from xectool.data.plan import DataPlan
from xectool.training.distributed import Ranks


class EventAudit:
    """Marks each event of an epoch in a bitmap, one bit an entry of the files.

    The count does not trust the data plan: it looks at the identities that arrive in the training loop.

    Args:
        plan: The plan that is served; used for the sizes of the files, and for the part of an epoch that was used
            before this process began.
        rank: The rank served.

    Attributes:
        duplicates: Events of the epoch in progress that arrived more than once.
    """

    def __init__(self, plan: DataPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._first = np.concatenate([[0], np.cumsum([file.num_entries for file in plan.files])]).astype(np.int64)
        self._bits = np.zeros(int(self._first[-1]) // 8 + 1, np.uint8)
        self._epoch = 0
        self.duplicates = 0

    def add(self, window: Sequence[EventBatch]) -> None:
        """Mark the events of a step; an epoch begins with its first batch."""
        if window[0].epoch != self._epoch:
            self._begin(window[0].epoch, window[0].step)
        for batch in window:
            self._mark(batch.file_index, batch.entry)

    def missing(self, window: Sequence[EventBatch]) -> int:
        """Return how many events of the plan a step was not given: those that are quarantined."""
        planned = sum(len(self._plan.batch_positions(batch.step, self._rank)) for batch in window)
        return planned - sum(batch.num_events for batch in window)

    def duplicates_of(self, ranks: Ranks) -> int:
        """Return how many events of the epoch arrived more than once on any rank, or on two of them."""
        seen, total = np.zeros_like(self._bits), 0
        for bits, own in ranks.gather((self._bits, self.duplicates)):
            total += own + int(np.unpackbits(seen & bits).sum())
            seen |= bits
        return total

    def _begin(self, epoch: int, step: int) -> None:
        self._epoch, self.duplicates = epoch, 0
        self._bits[:] = 0
        for earlier in range(step):
            self._mark(*self._plan.batch_events(epoch, earlier, self._rank))
        self.duplicates = 0

    def _mark(self, file_index: npt.NDArray[np.int32], entry: npt.NDArray[np.int64]) -> None:
        place = self._first[file_index] + entry
        byte, bit = place >> 3, (1 << (place & 7)).astype(np.uint8)
        known = (self._bits[byte] & bit) != 0
        np.bitwise_or.at(self._bits, byte, bit)
        self.duplicates += len(place) - len(np.unique(place[~known]))

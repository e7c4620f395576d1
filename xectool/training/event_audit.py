"""Counts the events of an epoch as they are used: each once, none twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch
from xectool.data.plan import DataPlan
from xectool.training.distributed import Ranks

_MOST_WAITING: Final = 64  # batches marked together: a dozen array operations cost a step more than the events do


class EventAudit:
    """Marks each event of an epoch in a bitmap, one bit an entry of the files.

    The count does not trust the data plan: it looks at the identities that arrive in the training loop.

    Args:
        plan: The plan that is served; used for the sizes of the files, and for the part of an epoch that was used
            before this process began.
        rank: The rank served.
    """

    def __init__(self, plan: DataPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._first = np.concatenate([[0], np.cumsum([file.num_entries for file in plan.files])]).astype(np.int64)
        self._bits = np.zeros(int(self._first[-1]) // 8 + 1, np.uint8)
        self._epoch = 0
        self._duplicates = 0
        self._waiting: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]] = []

    @property
    def duplicates(self) -> int:
        """Events of the epoch in progress that arrived more than once."""
        self._mark_waiting()
        return self._duplicates

    def add(self, window: Sequence[EventBatch]) -> None:
        """Note the events of a step; an epoch begins with its first batch."""
        if window[0].epoch != self._epoch:
            self._begin(window[0].epoch, window[0].step)
        self._waiting += [(batch.file_index, batch.entry) for batch in window]
        if len(self._waiting) >= _MOST_WAITING:
            self._mark_waiting()

    def missing(self, window: Sequence[EventBatch]) -> int:
        """Return how many events of the plan a step was not given: those that are quarantined."""
        planned = sum(self._plan.batch_events_of_rank(batch.step, self._rank) for batch in window)
        return planned - sum(batch.num_events for batch in window)

    def duplicates_of(self, ranks: Ranks) -> int:
        """Return how many events of the epoch arrived more than once on any rank, or on two of them."""
        own_duplicates = self.duplicates
        seen, total = np.zeros_like(self._bits), 0
        for bits, own in ranks.gather((self._bits, own_duplicates)):
            total += own + int(np.unpackbits(seen & bits).sum())
            seen |= bits
        return total

    def _begin(self, epoch: int, step: int) -> None:
        self._epoch = epoch
        self._bits[:] = 0
        self._waiting = []
        for earlier in range(step):
            self._waiting.append(self._plan.batch_events(epoch, earlier, self._rank))
            if len(self._waiting) >= _MOST_WAITING:
                self._mark_waiting()
        self._mark_waiting()
        self._duplicates = 0

    def _mark_waiting(self) -> None:
        if not self._waiting:
            return
        place = np.concatenate([self._first[file_index] + entry for file_index, entry in self._waiting])
        self._waiting = []
        byte, bit = place >> 3, (1 << (place & 7)).astype(np.uint8)
        known = (self._bits[byte] & bit) != 0
        np.bitwise_or.at(self._bits, byte, bit)
        self._duplicates += len(place) - len(np.unique(place[~known]))

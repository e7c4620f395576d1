"""Counts the events of an epoch as they are used: each once, none twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from xectool.data.batch import EventBatch
from xectool.data.excluded import event_keys
from xectool.data.loader import EventLoader
from xectool.training.ranks.base import Ranks

_MOST_WAITING: Final = 64  # batches marked together: a dozen array operations cost a step more than the events do


class EventAudit:
    """Marks each event of an epoch in a bitmap, one bit an entry of the files.

    The count does not trust the data plan: it looks at the identities that arrive in the training loop.

    Args:
        loader: Its plan is used for the sizes of the files, for the part of an epoch that was used before this process
            began, and for what a step that is short of events should have had.
        keys_at: Returns the events that an optimizer step was not given, as `event_keys` tells them; by default those
            that the loader leaves out.
        window: Batches of an optimizer step.

    Attributes:
        left_out: Quarantined events that the last step was not given.
    """

    def __init__(
        self, loader: EventLoader, keys_at: Callable[[int], npt.NDArray[np.int64]] | None = None, window: int = 1
    ) -> None:
        self._loader, self._window = loader, window
        self._keys_at = keys_at or (lambda _: loader.excluded.keys)
        self._plan, self._rank = loader.plan, loader.rank
        sizes = [file.num_entries for file in self._plan.files]
        self._first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._bits = np.zeros(int(self._first[-1]) // 8 + 1, np.uint8)
        self._epoch = 0
        self._duplicates = 0
        self.left_out = 0
        self._left_out_of_epoch = 0
        self._waiting: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]] = []

    @property
    def duplicates(self) -> int:
        """Events of the epoch in progress that arrived more than once."""
        self._mark_waiting()
        return self._duplicates

    def add(self, window: Sequence[EventBatch], step: int = 0) -> None:
        """Note the events of an optimizer step; an epoch begins with its first batch."""
        if window[0].epoch != self._epoch:
            self._begin(window[0].epoch, window[0].step, step - 1)
        self.left_out = sum(self._excluded_from(batch) for batch in window)
        self._left_out_of_epoch += self.left_out
        self._waiting += [(batch.file_index, batch.entry) for batch in window]
        if len(self._waiting) >= _MOST_WAITING:
            self._mark_waiting()

    def left_out_of(self, epoch: int, ranks: Ranks, step: int = 0) -> int:
        """Return how many planned events of an epoch that is over were left out of it as quarantined, on any rank.

        Args:
            epoch: The epoch.
            ranks: All ranks of the training.
            step: Its last optimizer step.
        """
        if epoch != self._epoch:
            self._begin(epoch, self._plan.num_steps, step)  # all of its steps were taken before this process began
        return sum(ranks.gather(self._left_out_of_epoch))

    def duplicates_of(self, ranks: Ranks) -> int:
        """Return how many events of the epoch arrived more than once on any rank, or on two of them."""
        own_duplicates = self.duplicates
        seen, total = np.zeros_like(self._bits), 0
        for bits, own in ranks.gather((self._bits, own_duplicates)):
            total += own + int(np.unpackbits(seen & bits).sum())
            seen |= bits
        return total

    def _begin(self, epoch: int, num_batches: int, step: int) -> None:
        """Note the batches of an epoch that were used before; ``step`` is the optimizer step that took the last."""
        self._epoch = epoch
        self._bits[:] = 0
        self._waiting = []
        self._left_out_of_epoch = 0
        last = (num_batches - 1) // self._window
        for earlier in range(num_batches):
            planned = self._plan.batch_events(epoch, earlier, self._rank)
            gone = self._keys_at(step - last + earlier // self._window)  # not what was left out only later
            self._left_out_of_epoch += int(np.isin(event_keys(*planned), gone).sum())
            self._waiting.append(planned)
            if len(self._waiting) >= _MOST_WAITING:
                self._mark_waiting()
        self._mark_waiting()
        self._duplicates = 0

    def _excluded_from(self, batch: EventBatch) -> int:
        """Return how many events a batch is short of because they are in quarantine; what else is missing is lost."""
        excluded, planned_events = self._loader.excluded.keys, self._plan.batch_events_of_rank
        if not len(excluded) or batch.num_events == planned_events(batch.step, self._rank):
            return 0
        planned = event_keys(*self._plan.batch_events(batch.epoch, batch.step, self._rank))
        absent = np.setdiff1d(planned, event_keys(batch.file_index, batch.entry))
        return int(np.isin(absent, excluded).sum())

    def _mark_waiting(self) -> None:
        if not self._waiting:
            return
        place = np.concatenate([self._first[file_index] + entry for file_index, entry in self._waiting])
        self._waiting = []
        byte, bit = place >> 3, (1 << (place & 7)).astype(np.uint8)
        known = (self._bits[byte] & bit) != 0
        np.bitwise_or.at(self._bits, byte, bit)
        self._duplicates += len(place) - len(np.unique(place[~known]))

"""The events of an epoch for whoever looks at each of them once and keeps few: nothing is gathered into batches.

Axes: B events.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt
import torch

from xectool.data.batch import EventBatch
from xectool.data.batch_sources import with_identity
from xectool.data.loader import EventLoader, window_reader
from xectool.data.window import WindowArrays

IntArray = npt.NDArray[np.int64]


def in_reading_order(loader: EventLoader, epoch: int) -> Generator[tuple[EventBatch, IntArray], None, None]:
    """Yield the events that a loader serves in an epoch window by window, and the step that serves each, shape (B,).

    They have their weights and extremes, and lie in the memory of the reader, which serves further windows afterwards:
    what is kept must be copied, as `EventBatch.take` does.

    Raises:
        DataFileError: A file is damaged; names branch and entries.
        WorldError: A worker process died or does not answer.
    """
    plan, seen = loader.plan, 0
    reader = window_reader(loader.source, plan, loader.options, loader.slots, 1 + loader.options.windows_ahead)
    try:
        keys = plan.windows(epoch, loader.rank)
        reader.start(epoch, keys, measured=True)
        for key in keys:
            rows, steps = plan.served_rows(epoch, key, loader.rank)
            events = loader.weighted(_as_batch(reader.get(key), rows, epoch))
            seen += events.num_events
            out = loader.excluded.rows(events)
            if len(out):
                kept = np.setdiff1d(np.arange(events.num_events), out)
                events, steps = events.take(kept), steps[kept]
            yield events, steps
            reader.retire(key)
        loader.audit(seen)
    finally:
        reader.close()


def _as_batch(window: WindowArrays, rows: IntArray, epoch: int) -> EventBatch:
    together = rows[-1] - rows[0] + 1 == len(rows)
    chosen = slice(int(rows[0]), int(rows[-1]) + 1) if together else rows  # a slice copies nothing
    npho, time = torch.from_numpy(window.npho[chosen]), torch.from_numpy(window.time[chosen])
    targets = {task: torch.from_numpy(truth[chosen]) for task, truth in window.targets.items()}
    identity, numbers = window.identity[chosen], np.empty(0, np.int64)
    file_index = numbers.astype(np.int32)
    events = EventBatch(npho, time, targets, torch.ones(len(rows)), file_index, numbers, numbers, numbers, epoch, -1)
    return with_identity(events, identity, window.extremes[chosen])

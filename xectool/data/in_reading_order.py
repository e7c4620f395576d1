"""The events of an epoch for whoever looks at each of them once and keeps few: nothing is gathered into batches.

Axes: B events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from xectool.data.batch import EventBatch
from xectool.data.batch_sources import with_identity
from xectool.data.loader import EventLoader, window_reader
from xectool.data.window import WindowArrays


def in_reading_order(loader: EventLoader, epoch: int) -> Iterator[EventBatch]:
    """Yield the events that a loader serves in an epoch window by window, with their weights and extremes.

    They lie in the memory of the reader, which serves further windows afterwards: what is kept must be copied, as
    `EventBatch.take` does. Their step is -1; `with_step` tells it.

    Raises:
        DataFileError: A file is damaged; names branch and entries.
        WorldError: A worker process died or does not answer.
    """
    plan = loader.plan
    reader = window_reader(loader.source, plan, loader.options, loader.slots, 1 + loader.options.windows_ahead)
    try:
        keys = plan.windows(epoch, loader.rank)
        reader.start(epoch, keys, measured=True)
        for key in keys:
            rows = plan.served_rows(epoch, key, loader.rank)
            yield loader.excluded.left_out_of(loader.weighted(_as_batch(reader.get(key), rows, epoch)))
            reader.retire(key)
    finally:
        reader.close()


def with_step(loader: EventLoader, event: EventBatch) -> EventBatch:
    """Return a single event that is served in an epoch with the step that serves it."""
    position = loader.plan.position_of(event.epoch, int(event.file_index[0]), int(event.entry[0]))
    return replace(event, step=position // loader.plan.global_batch_size)


def _as_batch(window: WindowArrays, rows: slice | np.ndarray, epoch: int) -> EventBatch:
    identity, extremes = window.identity[rows], window.extremes[rows]
    npho, time = (torch.from_numpy(readings[rows]) for readings in (window.npho, window.time))
    targets = {task: torch.from_numpy(truth[rows]) for task, truth in window.targets.items()}
    numbers = np.empty(0, np.int64)
    file_index = numbers.astype(np.int32)
    events = EventBatch(npho, time, targets, torch.ones(len(npho)), file_index, numbers, numbers, numbers, epoch, -1)
    return with_identity(events, identity, extremes)

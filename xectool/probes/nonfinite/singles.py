"""Single events out of batches, and batches of single events.

Axes: B events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from xectool.data.batch import EventBatch

IntArray = npt.NDArray[np.int64]


def single(batch: EventBatch, row: int, steps: IntArray) -> EventBatch:
    """Return a copy of one event, of the step that serves it; ``steps`` has those of the batch, shape (B,)."""
    return replace(batch.take(np.array([row])), step=int(steps[row]))


def place_of(event: EventBatch) -> tuple[int, int]:
    """Return file index and entry of the first event of a batch."""
    return int(event.file_index[0]), int(event.entry[0])


def as_steps(events: Sequence[EventBatch], size: int) -> list[EventBatch]:
    """Return single events as batches of up to ``size``; the stream of random numbers is that of the first event."""
    return [join(events[start : start + size]) for start in range(0, len(events), size)]


def join(parts: Sequence[EventBatch]) -> EventBatch:
    """Return the events of several batches, not prepared, as one."""
    first = parts[0]
    return replace(
        first,
        npho=torch.cat([part.npho for part in parts]),
        time=torch.cat([part.time for part in parts]),
        targets={name: torch.cat([part.targets[name] for part in parts]) for name in first.targets},
        weight=torch.cat([part.weight for part in parts]),
        file_index=np.concatenate([part.file_index for part in parts]),
        entry=np.concatenate([part.entry for part in parts]),
        run=np.concatenate([part.run for part in parts]),
        event=np.concatenate([part.event for part in parts]),
        extremes=None,
    )

"""Masks that belong to an event: the same whatever batch, rank or order it is served in.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from xectool.models.event_random import EventRandom, event_keys

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch
    from xectool.models.sensor_input import SensorHider


def event_masks(hider: SensorHider, x: Tensor, valid: Tensor, batch: EventBatch, seed: int) -> Tensor:
    """Return the sensors to hide, bool (B, S).

    The random numbers of an event depend on the run's seed, the epoch, and the event's file and entry: another pass
    with the same epoch hides the same sensors, and a batch hides what its parts would.

    Args:
        hider: The model's own.
        x: Network units, shape (B, S, 2).
        valid: Which readings exist, bool (B, S, 2).
        batch: The identity of the events.
        seed: Of the run.
    """
    file_index, entry = (torch.as_tensor(n).to(x.device, torch.int64) for n in (batch.file_index, batch.entry))
    return hider.draw(x, valid, EventRandom(event_keys((seed, batch.epoch, file_index, entry))))

"""Masks that belong to an event: the same whatever batch, rank or order it is served in.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch
    from xectool.models.sensor_input import SensorHider


def event_masks(hider: SensorHider, x: Tensor, valid: Tensor, batch: EventBatch, seed: int) -> Tensor:
    """Return the sensors to hide, bool (B, S).

    Each event is drawn from a stream of its own, which depends on the run's seed, the epoch, and the event's file and
    entry: another pass with the same epoch hides the same sensors, and a batch hides what its parts would.

    Args:
        hider: The model's own.
        x: Network units, shape (B, S, 2).
        valid: Which readings exist, bool (B, S, 2).
        batch: The identity of the events.
        seed: Of the run.
    """
    mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    generator = torch.Generator(x.device)
    for row, place in enumerate(zip(batch.file_index.tolist(), batch.entry.tolist(), strict=True)):
        generator.manual_seed(_event_seed(seed, batch.epoch, *place))
        mask[row] = hider.draw(x[row : row + 1], valid[row : row + 1], generator)[0]
    return mask


def _event_seed(seed: int, epoch: int, file_index: int, entry: int) -> int:
    text = f"mask {seed} {epoch} {file_index} {entry}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

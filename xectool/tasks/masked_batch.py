"""A batch whose hidden sensors have been chosen.

Axes: B events, S sensors (4760), 2 channels (npho, time).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xectool.data.batch import EventBatch


@dataclass(frozen=True)
class MaskedBatch(EventBatch):
    """Events with the sensors that the network must reconstruct.

    Attributes:
        mask: True where a sensor is hidden, shape (B, S).
        x: Readings in network units, nothing hidden, shape (B, S, 2).
        valid: Which readings exist, shape (B, S, 2).
    """

    mask: Tensor
    x: Tensor
    valid: Tensor

    @classmethod
    def of(cls, batch: EventBatch, mask: Tensor, x: Tensor, valid: Tensor) -> MaskedBatch:
        """Return a batch with its mask, normalised readings and their validity."""
        known = {field.name: getattr(batch, field.name) for field in fields(EventBatch)}
        return cls(**known, mask=mask, x=x, valid=valid)

    def take(self, rows: npt.NDArray[np.int64]) -> MaskedBatch:
        """Return the events at ``rows``, shape (n,), each with its own mask, in that order."""
        known = {field.name: getattr(self, field.name) for field in fields(EventBatch)}
        index = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.mask.device)
        taken = EventBatch(**known).take(rows)
        return MaskedBatch.of(taken, self.mask[index], self.x[index], self.valid[index])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MaskedBatch:
        """Return the batch with its tensors on ``device``; the identity stays with the host."""
        options: dict[str, Any] = {"device": device, "non_blocking": non_blocking}
        moved = super().to(device, non_blocking)
        mask, x, valid = (values.to(**options) for values in (self.mask, self.x, self.valid))
        return MaskedBatch.of(moved, mask, x, valid)

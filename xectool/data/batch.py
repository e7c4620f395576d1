"""A batch of events with its identity.

Axes: B events, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from xectool.data.extremes import measure
from xectool.data.window import NUM_EXTREMES, WindowArrays


@dataclass(frozen=True)
class EventBatch:
    """Events of one step of one rank; it may be empty in the last step of an epoch.

    Attributes:
        npho: Photons of each sensor as in the file, shape (B, S), float32.
        time: Time of each sensor in s as in the file, shape (B, S), float32.
        targets: Truth of each task in physical units, shape (B, D), float32; unknown values as in the file (1e10).
        weight: Weight of each event in the loss, shape (B,), float32.
        file_index: Index of the file of each event, shape (B,).
        entry: Entry in that file, shape (B,).
        run: Run number, -1 where the file has none, shape (B,).
        event: Event number, the entry where the file has none, shape (B,).
        epoch: Epoch the batch belongs to.
        step: Step inside the epoch, from 0.
        extremes: Columns of `xectool.data.extremes` for each event, shape (B, 6); None where nobody asked for them.
    """

    npho: torch.Tensor
    time: torch.Tensor
    targets: Mapping[str, torch.Tensor]
    weight: torch.Tensor
    file_index: npt.NDArray[np.int32]
    entry: npt.NDArray[np.int64]
    run: npt.NDArray[np.int64]
    event: npt.NDArray[np.int64]
    epoch: int
    step: int
    extremes: npt.NDArray[np.float64] | None = field(default=None, kw_only=True)

    @property
    def num_events(self) -> int:
        """Count of events, B."""
        return int(self.npho.shape[0])

    def take(self, rows: npt.NDArray[np.int64]) -> EventBatch:
        """Return the events at ``rows``, shape (n,), in that order; memory stays page-locked where it was."""
        index = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.npho.device)
        return replace(
            self,
            npho=_taken(self.npho, index),
            time=_taken(self.time, index),
            targets={task: _taken(target, index) for task, target in self.targets.items()},
            weight=_taken(self.weight, index),
            file_index=self.file_index[rows],
            entry=self.entry[rows],
            run=self.run[rows],
            event=self.event[rows],
            extremes=None if self.extremes is None else self.extremes[rows],
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> EventBatch:
        """Return the batch with its tensors on ``device``; the identity stays with the host."""
        options: dict[str, Any] = {"device": device, "non_blocking": non_blocking}
        return replace(
            self,
            npho=self.npho.to(**options),
            time=self.time.to(**options),
            targets={task: target.to(**options) for task, target in self.targets.items()},
            weight=self.weight.to(**options),
        )


def _taken(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    shape = (len(index), *values.shape[1:])
    out = torch.empty(shape, dtype=values.dtype, device=values.device, pin_memory=values.is_pinned())
    return torch.index_select(values, 0, index, out=out)


def measured(batch: EventBatch) -> EventBatch:
    """Return a batch on the CPU with the extremes of its events; itself where it has them."""
    if batch.extremes is not None:
        return batch
    targets = {task: target.numpy() for task, target in batch.targets.items()}
    identity, extremes = np.empty((batch.num_events, 4), np.int64), np.empty((batch.num_events, NUM_EXTREMES))
    measure(WindowArrays(batch.npho.numpy(), batch.time.numpy(), targets, identity, extremes))
    return replace(batch, extremes=extremes)

"""Memory of batches, used again as soon as nothing refers to it: touching fresh pages costs more than filling them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from xectool.data.batch import EventBatch
from xectool.data.window import WindowArrays, buffer_bytes

# A buffer that only this module refers to: once from the list, once as the argument of the question.
_UNUSED: Final = 2


class BatchMemory:
    """Gives batches to be filled; for one thread.

    Whoever keeps a tensor of a batch, or a part of one, keeps its memory: tensors refer to the array they lie in.

    Args:
        widths: Numbers of each task whose truth is read.
        pin: Whether tensors lie in page-locked memory, which torch keeps for later by itself.
    """

    def __init__(self, widths: Mapping[str, int], pin: bool) -> None:
        self._widths, self._pin = widths, pin
        self._buffers: list[npt.NDArray[np.uint8]] = []

    def empty(self, num_events: int, epoch: int, step: int) -> EventBatch:
        """Return a batch of so many events with weights 1, to be filled; its identity is empty."""
        arrays = WindowArrays.in_buffer(self._buffer(num_events), num_events, self._widths)
        numbers = np.empty(0, np.int64)
        return EventBatch(
            npho=self._tensor(arrays.npho),
            time=self._tensor(arrays.time),
            targets={task: self._tensor(target) for task, target in arrays.targets.items()},
            weight=torch.ones(num_events, pin_memory=self._pin),
            file_index=numbers.astype(np.int32),
            entry=numbers,
            run=numbers,
            event=numbers,
            epoch=epoch,
            step=step,
        )

    def release(self) -> None:
        """Give back what no batch uses."""
        self._buffers = []

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.empty(array.shape, pin_memory=True) if self._pin else torch.from_numpy(array)

    def _buffer(self, num_events: int) -> npt.NDArray[np.uint8]:
        needed = buffer_bytes(num_events, self._widths)
        if self._pin:
            return np.empty(needed, np.uint8)  # never touched, so it takes no memory
        for at in range(len(self._buffers)):
            if sys.getrefcount(self._buffers[at]) == _UNUSED and len(self._buffers[at]) >= needed:
                return self._buffers[at]
        self._buffers.append(np.empty(needed, np.uint8))
        return self._buffers[-1]

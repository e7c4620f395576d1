"""The events of one window in memory, and how a batch is gathered from it.

Axes: N events of the window, B events of the batch, S sensors (4760), D numbers of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from xectool.detector.constants import NUM_SENSORS


@dataclass(frozen=True)
class WindowArrays:
    """Raw events as tensors, so that a worker process can hand them over through shared memory.

    Attributes:
        npho: Photons, shape (N, S), float32.
        time: Times in s, shape (N, S), float32.
        targets: Truth of each task, shape (N, D), float32.
        identity: File index, entry, run and event number, shape (N, 4), int64.
    """

    npho: torch.Tensor
    time: torch.Tensor
    targets: Mapping[str, torch.Tensor]
    identity: torch.Tensor

    @staticmethod
    def empty(num_events: int, widths: Mapping[str, int], pin_memory: bool = False) -> WindowArrays:
        """Return arrays for ``num_events`` events; memory is only taken as they are filled."""
        return WindowArrays(
            npho=torch.empty((num_events, NUM_SENSORS), pin_memory=pin_memory),
            time=torch.empty((num_events, NUM_SENSORS), pin_memory=pin_memory),
            targets={task: torch.empty((num_events, width), pin_memory=pin_memory) for task, width in widths.items()},
            identity=torch.empty((num_events, 4), dtype=torch.int64),
        )

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors, tasks in order of their names."""
        return [self.npho, self.time, *(self.targets[task] for task in sorted(self.targets)), self.identity]

    def gather_into(self, batch: WindowArrays, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy events ``rows`` of the window to ``places`` of the batch, both of shape (n,)."""
        step = int(places[1] - places[0]) if len(places) > 1 else 1
        spaced = bool((places[1:] - places[:-1] == step).all())
        for source, target in zip(self.tensors(), batch.tensors(), strict=True):
            if spaced:
                # Straight into the strided rows: one pass less over the memory than index_copy_.
                view = target[int(places[0]) : int(places[-1]) + 1 : step]
                torch.index_select(source, 0, rows, out=view)
            else:
                target.index_copy_(0, places, source.index_select(0, rows))


def event_bytes(widths: Mapping[str, int]) -> int:
    """Return the bytes one event takes in a window or batch.

    >>> event_bytes({"energy": 1})
    38116
    """
    return 2 * NUM_SENSORS * 4 + 4 * sum(widths.values()) + 4 * 8

"""The batches of a sweep, the same for every rate."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain, islice

from xectool.data.batch import EventBatch
from xectool.data.loader import EventLoader

MEMORY_SHARE = 0.25  # of what the process may still take; beyond it batches are read again for each rate
EPOCHS_APART = 1000  # the order of an epoch is drawn from its number, so another epoch is another order

Window = list[EventBatch]


class SharedWindows:
    """What the first steps of a run are taken on: accumulation windows as the training loop cuts them.

    They are kept in memory where they fit, so that a rate costs no reading, and served anew by the plan where not; the
    plan gives the same batches each time.

    Args:
        loader: Training events of the run.
        size: Batches of a window, ``training.grad_accum_steps``.
        steps: Number of windows.
        number: Which seed they are for; 0 takes the very batches a run begins with.
        budget_bytes: Memory for keeping them.
    """

    def __init__(self, loader: EventLoader, size: int, steps: int, number: int, budget_bytes: float) -> None:
        self._loader, self._size, self._steps = loader, size, steps
        self._epoch = 1 + number * EPOCHS_APART
        # Without a shuffle all epochs are alike: another seed then begins further on in the file.
        self._first = 0 if loader.plan.shuffle else number * steps * size % loader.plan.num_steps
        self._budget = budget_bytes
        self._kept: list[Window] | None = None

    def __iter__(self) -> Iterator[Window]:
        if self._kept is None:
            return self._read()
        return iter(self._kept)

    @property
    def kept(self) -> bool:
        """Whether the windows lie in memory."""
        return self._kept is not None

    def first(self) -> Window:
        """Return the first window; from then on all of them are in memory, where they fit."""
        windows = self._read()
        window = next(windows)
        if self._steps * sum(_num_bytes(batch) for batch in window) <= self._budget:
            self._kept = [window, *windows]
            return window
        windows.close()
        return window

    def _read(self) -> Generator[Window]:
        served = 0
        for batches in self._epochs():
            while served < self._steps and (window := list(islice(batches, self._size))):
                served += 1
                yield window
            if served == self._steps:
                return

    def _epochs(self) -> Iterator[Iterator[EventBatch]]:
        epoch, first = self._epoch, self._first
        while True:
            yield chain(self._loader.epoch(epoch, first))
            epoch, first = epoch + 1, 0


def _num_bytes(batch: EventBatch) -> int:
    tensors = (batch.npho, batch.time, batch.weight, *batch.targets.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

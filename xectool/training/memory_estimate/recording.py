"""What a step allocated and freed, in order: peaks, what they are made of, and the same for another batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

CATEGORIES: Final = ("parameters", "buffers", "ema", "optimizer", "gradients", "inputs", "other")
"""What a tensor is for; ``other`` are activations and temporaries."""
SAVED: Final = "forward end"
"""Name of the moment at which the forward pass ends and everything for the backward pass is kept."""
ALIVE: Final = np.iinfo(np.int64).max
GPU_BLOCK_BYTES: Final = 512
"""Granularity of PyTorch's CUDA allocator."""


@dataclass(frozen=True)
class Recording:
    """Blocks of memory of one step, one row each, in the order of their allocation.

    Attributes:
        size: Bytes.
        born: When it was allocated, on a clock that counts allocations and frees.
        died: When it was freed, `ALIVE` where it never was.
        category: Index into `CATEGORIES`.
        phase: Index into ``phases``: where it was allocated.
        module: Index into ``modules``: who allocated it.
        phases: Names, each with the time at which it began, in order; a name comes as often as it was entered.
        modules: Dotted names; the empty one is the code around the network.
        batch_size: Events of one batch.
        notes: What was assumed.
        checkpoint_bytes: Size of a checkpoint of the run.
        staged: When kernels took memory that they freed at their end, and bytes, shape (N, 2).
    """

    size: IntArray
    born: IntArray
    died: IntArray
    category: IntArray
    phase: IntArray
    module: IntArray
    phases: tuple[tuple[str, int], ...]
    modules: tuple[str, ...]
    batch_size: int
    notes: tuple[str, ...] = ()
    checkpoint_bytes: int = 0
    staged: IntArray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recording:
        """Return the recording that `to_json` described."""
        columns = {name: np.asarray(content[name], dtype=np.int64) for name in _COLUMNS}
        return cls(
            **columns,
            phases=tuple((str(name), int(at)) for name, at in content["phases"]),
            modules=tuple(content["modules"]),
            batch_size=int(content["batch_size"]),
            notes=tuple(content["notes"]),
            checkpoint_bytes=int(content["checkpoint_bytes"]),
            staged=np.asarray(content["staged"], dtype=np.int64).reshape(-1, 2),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        columns = {name: getattr(self, name).tolist() for name in _COLUMNS}
        rest = {"phases": self.phases, "modules": self.modules, "batch_size": self.batch_size, "notes": self.notes}
        return {**columns, **rest, "checkpoint_bytes": self.checkpoint_bytes, "staged": self.staged.tolist()}

    def live(self, block_bytes: int = 1) -> IntArray:
        """Return the bytes alive after each tick of the clock, with what a kernel stages at it.

        Args:
            block_bytes: Granularity of the allocator; sizes are rounded up to it.
        """
        size = -(-self.size // block_bytes) * block_bytes
        change = np.zeros(self.ticks + 1, dtype=np.int64)
        np.add.at(change, self.born, size)
        freed = self.died < ALIVE
        np.subtract.at(change, self.died[freed], size[freed])
        total: IntArray = np.cumsum(change)
        np.add.at(total, self.staged[:, 0], self.staged[:, 1])
        return total

    @property
    def ticks(self) -> int:
        """Last tick of the clock."""
        last = max((at for _, at in self.phases), default=0)
        for column in (self.born, self.died[self.died < ALIVE], self.staged[:, 0]):
            last = max(last, int(column.max(initial=0)))
        return last

    def peak(self, block_bytes: int = 1) -> int:
        """Return the most bytes ever alive."""
        return int(self.live(block_bytes).max(initial=0))

    def peak_at(self) -> int:
        """Return the tick of the peak."""
        return int(self.live().argmax())

    def phase_peaks(self) -> dict[str, int]:
        """Return the most bytes alive in each phase, in the order in which they were first entered."""
        live, found = self.live(), dict[str, int]()
        ends = [at for _, at in self.phases[1:]] + [len(live)]
        for (name, start), end in zip(self.phases, ends, strict=True):
            if name != SAVED:
                found[name] = max(found.get(name, 0), int(live[start : max(end, start + 1)].max(initial=0)))
        return found

    def phase_of(self, tick: int) -> str:
        """Return the phase at a tick."""
        names = [name for name, at in self.phases if at <= tick and name != SAVED]
        return names[-1] if names else ""

    def split(self, tick: int) -> dict[str, int]:
        """Return the bytes alive at a tick by category."""
        alive = self._alive(tick)
        sums = np.bincount(self.category[alive], weights=self.size[alive], minlength=len(CATEGORIES))
        return {name: int(value) for name, value in zip(CATEGORIES, sums, strict=True)}

    def total(self, category: str) -> int:
        """Return the most bytes of one category ever alive."""
        chosen = self.category == CATEGORIES.index(category)
        return replace(self._only(chosen), staged=self.staged[:0]).peak() if chosen.any() else 0

    def saved(self) -> int:
        """Return the bytes kept for the backward pass: what is alive at the end of the fullest forward pass."""
        return max((self.split(at)["other"] for name, at in self.phases if name == SAVED), default=0)

    def saved_by_module(self) -> dict[str, int]:
        """Return the bytes each module keeps for the backward pass, largest first."""
        ends = [at for name, at in self.phases if name == SAVED]
        if not ends:
            return {}
        tick = max(ends, key=lambda at: self.split(at)["other"])
        alive = self._alive(tick) & (self.category == CATEGORIES.index("other"))
        sums = np.bincount(self.module[alive], weights=self.size[alive], minlength=len(self.modules))
        found = {name: int(value) for name, value in zip(self.modules, sums, strict=True) if value}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def largest(self) -> int:
        """Return the size of the largest single tensor that is no parameter, gradient, average or optimizer state."""
        chosen = np.isin(self.category, [CATEGORIES.index("other"), CATEGORIES.index("inputs")])
        return int(self.size[chosen].max(initial=0))

    def without(self, category: str) -> Recording:
        """Return the recording as it would be without one category."""
        return self._only(self.category != CATEGORIES.index(category))

    def with_more_inputs(self, windows: int) -> Recording:
        """Return the recording with the inputs of further batches of the window alive from the start.

        A window of many batches repeats the second one; only its inputs, all moved before the first forward pass, add
        up.
        """
        chosen = self.category == CATEGORIES.index("inputs")
        if windows <= 0 or not chosen.any():
            return self
        grown = self.size.copy()
        grown[chosen] = self.size[chosen] * (windows + 2) // 2
        return replace(self, size=grown)

    def _alive(self, tick: int) -> npt.NDArray[np.bool_]:
        return (self.born <= tick) & (self.died > tick)

    def _only(self, chosen: npt.NDArray[np.bool_]) -> Recording:
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})


_COLUMNS: Final = ("size", "born", "died", "category", "phase", "module")


@dataclass(frozen=True)
class BatchLine:
    """Two recordings of the same program with different batches: sizes of all blocks as straight lines.

    Every size is ``fixed + slope x batch``, so the peak of any batch is that of the lines at it, wherever in the step
    it then lies.

    Attributes:
        low: The smaller batch.
        high: The larger batch.
    """

    low: Recording
    high: Recording

    @property
    def same_program(self) -> bool:
        """Whether both allocate and free in the same order."""
        return len(self.low.size) == len(self.high.size) and np.array_equal(self.low.born, self.high.born)

    def at(self, batch_size: int) -> Recording:
        """Return the recording of another batch; what kernels stage has an end and is no line: the more of both."""
        span = self.high.batch_size - self.low.batch_size
        slope = (self.high.size - self.low.size) / span
        size = np.rint(self.low.size + slope * (batch_size - self.low.batch_size)).astype(np.int64)
        staged = np.concatenate((self.low.staged, self.high.staged))
        staged = staged[np.lexsort((-staged[:, 1], staged[:, 0]))]
        first = np.diff(staged[:, 0], prepend=-1) > 0
        return replace(self.high, size=np.maximum(size, 0), batch_size=batch_size, staged=staged[first])

"""What the loop needs to know about the other ranks of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run, seen from one of them; a single process is the group of one.

    Attributes:
        rank: Index of this process, from 0.
        world_size: Number of processes.
    """

    rank: int = 0
    world_size: int = 1

    def sum(self, values: Tensor) -> Tensor:
        """Return the element-wise sum of ``values`` over all ranks."""
        return values

    def gather(self, value: Value) -> list[Value]:
        """Return the plain values of all ranks, in their order."""
        return [value]

    def any(self, flag: bool) -> bool:
        """Return whether ``flag`` holds on some rank."""
        return flag

    def all(self, flag: bool) -> bool:
        """Return whether ``flag`` holds on every rank."""
        return flag

"""What the loop needs to know about the other ranks of a run; a single process is the group of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from xectool.runlog.status_page import StatusPage

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run, seen from one of them.

    Every method is called by all ranks in the same order, whatever each of them found; `RankGroup` is the group of
    several processes.

    Attributes:
        rank: Index of this process, from 0.
        world_size: Number of processes.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes what there is once a run: checkpoints, plots, tracking."""
        return self.rank == 0

    @property
    def gradient_wait_s(self) -> float:
        """Seconds the last backward pass waited for gradients of other ranks; on a GPU it does not wait on the host."""
        return 0.0

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

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it holds on some rank."""
        return list(flags)

    def share(self, value: Value) -> Value:
        """Return the plain value of the first rank."""
        return value

    def on_first(self, work: Callable[[], Value]) -> Value | None:
        """Do something on the first rank while the others wait outside of any collective; they are given None.

        Raises:
            XecError: What the work raised on the first rank, on every rank.
            WorldError: The first rank took longer than ``distributed.rank0_timeout_s``.
        """
        return work()

    def parallel(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass adds up the gradients of all ranks; the weights are those of the first.

        Args:
            module: Called only through what is returned.
        """
        return module

    @contextmanager
    def alone(self, module: nn.Module) -> Iterator[None]:
        """Let a forward and backward pass of what `parallel` returned keep its gradients to itself."""
        yield

    def note_into(self, page: StatusPage) -> None:
        """Say in a status page from now on which collective this rank is in."""

    def note_last_work(self) -> None:
        """Say that this rank saves what it has before it fails: the others wait for it as they leave."""

    def leave(self, failed: bool) -> None:
        """Say that this rank has nothing more to do; it waits for the first one, so that no rank ends the job early."""

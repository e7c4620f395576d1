"""Who reads what: the events of each rank, and of each of its workers, in one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xectool.data.plan import DataPlan, SourceFile


@dataclass(frozen=True)
class WorkerShare:
    """What one worker reads in an epoch; worker 0 of 0 is the main process."""

    rank: int
    worker: int
    windows: int
    events: int
    files: int


@dataclass(frozen=True)
class Sharing:
    """The plan of an epoch.

    Attributes:
        num_events: Events that are served.
        steps: Steps of a rank.
        world_size: Ranks.
        num_workers: Reader processes of a rank.
        rank_events: Events each rank is served.
        shares: What each worker reads.
        max_window_events: Most events a window may hold.
    """

    num_events: int
    steps: int
    world_size: int
    num_workers: int
    rank_events: tuple[int, ...]
    shares: tuple[WorkerShare, ...]
    max_window_events: int

    @property
    def idle_ranks(self) -> list[int]:
        """Ranks that are served no event."""
        return [rank for rank, events in enumerate(self.rank_events) if not events]

    @property
    def idle_workers(self) -> list[WorkerShare]:
        """Workers that read nothing."""
        return [share for share in self.shares if not share.events]

    @property
    def imbalance(self) -> float:
        """Share by which the busiest worker that reads anything reads more than the mean of its like."""
        events = [share.events for share in self.shares if share.events]
        return max(events) / (sum(events) / len(events)) - 1 if events else 0.0


def plan_sharing(files: Sequence[SourceFile], plan: DataPlan, num_workers: int) -> Sharing:
    """Return who reads what in the first epoch; windows go to the workers of a rank in turn.

    Args:
        files: The files.
        plan: The plan of the run.
        num_workers: Reader processes of a rank; 0 reads in the main process.
    """
    shares = []
    workers = max(1, num_workers)
    for rank in range(plan.world_size):
        windows = plan.windows(0, rank)
        for worker in range(workers):
            pieces = [piece for key in windows[worker::workers] for piece in plan.pieces(0, key)]
            shares.append(
                WorkerShare(
                    rank, worker, len(windows[worker::workers]), sum(piece.num_events for piece in pieces),
                    len({piece.file_index for piece in pieces}),
                )
            )  # fmt: skip
    ranks = tuple(plan.events_of_rank(rank) for rank in range(plan.world_size))
    return Sharing(
        plan.num_events, plan.num_steps, plan.world_size, num_workers, ranks, tuple(shares), plan.max_window_events
    )

"""Running sums of one training epoch; saved with a mid-epoch checkpoint so that its metrics come out the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from xectool.tasks.base import TrainingTask
from xectool.training.step import StepResult


@dataclass
class EpochStats:
    """What the finished steps of an epoch add up to.

    Attributes:
        sums: Loss sums per term.
        counts: Denominators per term.
        steps: Steps taken.
        skipped: Steps skipped because they were not finite.
        clipped: Steps whose gradient was clipped.
        grad_norm_max: Largest gradient norm before clipping, of the steps taken.
        events: Events served.
        data_wait_s: Seconds the loop waited for data.
        seconds: Seconds in steps, waiting included.
    """

    sums: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0
    clipped: int = 0
    grad_norm_max: float = 0.0
    events: int = 0
    data_wait_s: float = 0.0
    seconds: float = 0.0

    def add(self, result: StepResult, data_wait_s: float, seconds: float) -> None:
        """Add one step; the losses of a skipped step never enter a mean."""
        self.events += result.num_events
        self.data_wait_s += data_wait_s
        self.seconds += seconds
        if not result.finite:
            self.skipped += 1
            return
        self.steps += 1
        self.clipped += result.clip_coef < 1.0
        self.grad_norm_max = max(self.grad_norm_max, result.grad_norm)
        self.sums = _added(self.sums, result.sums)
        self.counts = _added(self.counts, result.counts)

    def metrics(self, task: TrainingTask) -> dict[str, float]:
        """Return the epoch's training metrics under the names of the tracker."""
        found = {
            "train/grad_norm_max": self.grad_norm_max,
            "train/clipped_fraction": self.clipped / self.steps if self.steps else 0.0,
            "train/skipped_steps": float(self.skipped),
            "perf/events_per_s": self.events / self.seconds if self.seconds else 0.0,
            "perf/data_wait_fraction": self.data_wait_s / self.seconds if self.seconds else 0.0,
        }
        if self.sums:
            found["train/loss"] = task.combine(_tensor(self.sums), _tensor(self.counts))
            found |= {
                f"train/{term}/loss": total / count
                for term, total, count in zip(task.terms, self.sums, self.counts, strict=True)
                if count
            }
        return found

    def state_dict(self) -> dict[str, object]:
        """Return the sums as plain values."""
        return asdict(self)


def _added(totals: list[float], values: Tensor) -> list[float]:
    new = [float(value) for value in values]
    return [a + b for a, b in zip(totals, new, strict=True)] if totals else new


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

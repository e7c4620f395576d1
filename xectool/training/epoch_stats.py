"""Running sums of one training epoch; saved with a mid-epoch checkpoint so that its metrics come out the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from xectool.tasks.base import TrainingTask
from xectool.training.step import StepResult

MAX_OVERFLOW_SHARE = 0.05  # of the steps; a scale that has settled overflows about once in 2000


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
        overflows: Those of them where only the range of float16 was exceeded.
        data_wait_s: Seconds the loop waited for data.
        seconds: Seconds in steps, waiting included.
        phases: Seconds by phase of a step.
    """

    sums: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0
    overflows: int = 0
    clipped: int = 0
    grad_norm_max: float = 0.0
    events: int = 0
    data_wait_s: float = 0.0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, result: StepResult, data_wait_s: float, seconds: float) -> None:
        """Add one step; the losses of a skipped step never enter a mean."""
        self.events += result.num_events
        self.data_wait_s += data_wait_s
        self.seconds += seconds
        for phase, spent_s in result.seconds.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + spent_s
        self.overflows += result.overflow
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

    def remarks(self, profile: bool) -> list[str]:
        """Return what the user should read at the end of the epoch.

        Args:
            profile: Whether to say where the time went (``training.profile``).
        """
        lines = []
        steps = self.steps + self.skipped
        if self.overflows > MAX_OVERFLOW_SHARE * steps:
            lines.append(
                f"{self.overflows} of {steps} steps exceeded the range of float16 (65504) and were skipped; "
                "training.amp: bf16 has no such limit"
            )
        if profile and self.seconds:
            phases = {"data wait": self.data_wait_s, **self.phases}
            phases["other"] = max(0.0, self.seconds - sum(phases.values()))
            shares = ", ".join(f"{name} {100 * spent_s / self.seconds:.1f} %" for name, spent_s in phases.items())
            lines.append(f"{1e3 * self.seconds / max(steps, 1):.1f} ms a step: {shares}")
        return lines

    def state_dict(self) -> dict[str, object]:
        """Return the sums as plain values."""
        return asdict(self)


def _added(totals: list[float], values: Tensor) -> list[float]:
    new = [float(value) for value in values]
    return [a + b for a, b in zip(totals, new, strict=True)] if totals else new


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

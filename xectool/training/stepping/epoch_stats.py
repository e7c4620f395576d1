"""Running sums of one training epoch; saved with a mid-epoch checkpoint so that its metrics come out the same."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from xectool.errors import counted
from xectool.tasks.base import TrainingTask
from xectool.training.stepping.step import StepResult

BINS_PER_OCTAVE = 16  # of the histogram of gradient norms; a quantile is right to half a bin, 2.2 %
MAX_OVERFLOW_SHARE = 0.05  # of the steps; a scale that has settled overflows about once in 2000


@dataclass
class EpochStats:
    """What the finished steps of an epoch add up to.

    Attributes:
        sums: Loss sums per term.
        counts: Denominators per term.
        tallies: What the task counts beside its loss.
        steps: Steps taken.
        skipped: Steps skipped because they were not finite.
        clipped: Steps whose gradient was clipped.
        grad_norm_max: Largest gradient norm before clipping, of the steps taken.
        events: Events served, on all ranks.
        overflows: Those of them where only the range of float16 was exceeded.
        data_wait_s: Seconds the loop waited for data.
        seconds: Seconds in steps, waiting included.
        phases: Seconds by phase of a step.
        grad_norm_bins: Steps taken by the logarithm of their gradient norm.
    """

    sums: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    tallies: list[float] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0
    overflows: int = 0
    clipped: int = 0
    grad_norm_max: float = 0.0
    events: int = 0
    data_wait_s: float = 0.0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    grad_norm_bins: dict[str, int] = field(default_factory=dict)

    def add(self, result: StepResult, data_wait_s: float, seconds: float) -> None:
        """Add one step; the losses of a skipped step never enter a mean."""
        self.events += result.total_events
        self.data_wait_s += data_wait_s
        self.seconds += seconds
        for phase, spent_s in result.seconds.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + spent_s
        self.overflows += result.overflow
        if not result.taken:
            self.skipped += 1
            return
        self.steps += 1
        self.clipped += result.clip_coef < 1.0
        self.grad_norm_max = max(self.grad_norm_max, result.grad_norm)
        bin_name = str(_norm_bin(result.grad_norm))
        self.grad_norm_bins[bin_name] = self.grad_norm_bins.get(bin_name, 0) + 1
        self.sums = _added(self.sums, result.sums)
        self.counts = _added(self.counts, result.counts)
        self.tallies = _added(self.tallies, result.tallies)

    def grad_norm_quantile(self, share: float) -> float:
        """Return the gradient norm that ``share`` of the steps taken do not exceed; NaN before the first step."""
        wanted, seen = share * self.steps, 0
        for number in sorted(int(name) for name in self.grad_norm_bins):
            seen += self.grad_norm_bins[str(number)]
            if seen >= wanted:
                return float(2.0 ** ((number + 0.5) / BINS_PER_OCTAVE)) if number > _ZERO_BIN else 0.0
        return math.nan

    @property
    def events_per_s(self) -> float | None:
        """Rate of the finished steps, waiting included; None before the first."""
        return self.events / self.seconds if self.seconds else None

    def metrics(self, task: TrainingTask) -> dict[str, float]:
        """Return the epoch's training metrics under the names of the tracker."""
        found = {
            "train/grad_norm_max": self.grad_norm_max,
            "train/clipped_fraction": self.clipped / self.steps if self.steps else 0.0,
            "train/skipped_steps": float(self.skipped),
            "perf/events_per_s": self.events_per_s or 0.0,
            "perf/data_wait_fraction": self.data_wait_s / self.seconds if self.seconds else 0.0,
        }
        if self.sums:
            found["train/loss"] = task.combine(_tensor(self.sums), _tensor(self.counts))
            found |= {f"train/{name}": value for name, value in task.term_losses(self.sums, self.counts).items()}
        return found | {f"train/{name}": value for name, value in task.tally_metrics(self.tallies).items()}

    def remarks(self, profile: bool) -> list[str]:
        """Return what the user should read at the end of the epoch.

        Args:
            profile: Whether to say where the time went (``training.profile``).
        """
        lines = []
        steps = self.steps + self.skipped
        if self.overflows > MAX_OVERFLOW_SHARE * steps:
            lines.append(
                f"{self.overflows} of {counted(steps, 'step')} exceeded the range of float16 (65504) and were skipped; "
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


_ZERO_BIN = -(1 << 20)


def _norm_bin(norm: float) -> int:
    return math.floor(BINS_PER_OCTAVE * math.log2(norm)) if norm > 0 else _ZERO_BIN


def _added(totals: list[float], values: Tensor) -> list[float]:
    new: list[float] = values.tolist()
    return [a + b for a, b in zip(totals, new, strict=True)] if totals else new


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

"""Learning rate as a pure function of the place in the epochs, so that a resume cannot disturb it.

Every schedule but ``plateau`` has no state: the rate of a step follows from the configuration, the number of
steps in an epoch and where the schedule began. The place is epoch and step in it, not a count of steps taken: a run
that goes on with another batch size then still ends at the end of its schedule. Past its planned end a schedule stays
at its last value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xectool.config.training import TrainingConfig

ONECYCLE_START_DIVISOR = 25.0  # torch.optim.lr_scheduler.OneCycleLR, div_factor
ONECYCLE_END_DIVISOR = 1e4  # torch.optim.lr_scheduler.OneCycleLR, final_div_factor


@dataclass
class PlateauState:
    """What the plateau schedule has seen: best validation loss, bad epochs in a row, reductions made."""

    best: float = math.inf
    num_bad: int = 0
    reductions: int = 0


class LearningRate:
    """The learning rate of each optimizer step.

    Args:
        config: The training section.
        steps_per_epoch: Optimizer steps in one epoch.
        start_step: Place at which the schedule begins; more than 0 after ``checkpoint.refresh_lr``.

    Attributes:
        scale: Factor of every rate, below 1 after the run went back to an earlier state.
    """

    def __init__(self, config: TrainingConfig, steps_per_epoch: int, start_step: int = 0) -> None:
        self.config = config
        self.steps_per_epoch = max(1, steps_per_epoch)
        self.plateau = PlateauState()
        self.scale = 1.0
        self._begin(start_step)

    def __call__(self, step: int) -> float:
        """Return the rate of the step at place ``step``, counted from 0; see `place`."""
        return self.scale * self._planned(step)

    def _planned(self, step: int) -> float:
        local = max(0, step - self.start_step)
        name = self.config.lr_scheduler
        if name == "onecycle":
            return self._onecycle(local)
        if local < self.warmup_steps:
            return self.config.lr * (local + 1) / self.warmup_steps
        after, span = local - self.warmup_steps, max(1, self.total_steps - self.warmup_steps)
        if name == "cosine":
            return _cosine(self.config.lr, self.config.lr_min, min(1.0, after / span))
        if name == "cosine_restarts":
            return self._restarts(after)
        if name == "plateau":
            return max(self.config.lr * self.config.lr_factor**self.plateau.reductions, self.config.lr_min)
        return self.config.lr

    def place(self, epoch: int, batch: int) -> int:
        """Return the place of the step that follows on ``batch`` used micro-batches of ``epoch``, counted from 1."""
        return (epoch - 1) * self.steps_per_epoch + batch // self.config.grad_accum_steps

    def rose_within(self, step: int, places: int) -> bool:
        """Return whether the plan has a lower rate at one of the places before ``step``, or began anew among them."""
        first = max(0, step - places)
        planned = self._planned(step)
        return self.start_step > first or any(self._planned(place) < planned for place in range(first, step))

    def observe(self, validation_loss: float) -> None:
        """Tell the plateau schedule the validation loss of an epoch; a non-finite loss says nothing about a plateau."""
        if self.config.lr_scheduler != "plateau" or not math.isfinite(validation_loss):
            return
        state = self.plateau
        if validation_loss < state.best:
            state.best, state.num_bad = validation_loss, 0
            return
        state.num_bad += 1
        if state.num_bad > self.config.lr_patience:
            state.reductions, state.num_bad = state.reductions + 1, 0

    def restart(self, step: int) -> None:
        """Begin the schedule anew at ``step``, over the steps that remain; without a warm-up."""
        self.plateau = PlateauState()
        self._begin(step)

    def state_dict(self) -> dict[str, float | int]:
        """Return what a resume needs."""
        return {
            "start_step": self.start_step,
            "scale": self.scale,
            "steps_per_epoch": self.steps_per_epoch,
            "plateau_best": self.plateau.best,
            "plateau_num_bad": self.plateau.num_bad,
            "plateau_reductions": self.plateau.reductions,
        }

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Continue from a saved state."""
        stretch = self.steps_per_epoch / state.get("steps_per_epoch", self.steps_per_epoch)
        self._begin(round(state["start_step"] * stretch))
        self.scale = float(state.get("scale", 1.0))
        self.plateau = PlateauState(
            float(state["plateau_best"]), int(state["plateau_num_bad"]), int(state["plateau_reductions"])
        )

    def _begin(self, start_step: int) -> None:
        self.start_step = start_step
        # A refreshed schedule continues trained weights, so it does not warm up again.
        self.warmup_steps = 0 if start_step else self.config.warmup_epochs * self.steps_per_epoch
        self.total_steps = max(1, self.config.epochs * self.steps_per_epoch - start_step)

    def _onecycle(self, local: int) -> float:
        top = self.config.max_lr if self.config.max_lr is not None else self.config.lr
        rise = max(1.0, self.config.pct_start * self.total_steps)
        if local < rise:
            return _cosine(top / ONECYCLE_START_DIVISOR, top, local / rise)
        progress = (local - rise) / max(1.0, self.total_steps - rise)
        return _cosine(top, top / ONECYCLE_START_DIVISOR / ONECYCLE_END_DIVISOR, min(1.0, progress))

    def _restarts(self, after: int) -> float:
        period = self.config.lr_restart_period * self.steps_per_epoch
        while after >= period:
            after -= period
            period *= self.config.lr_restart_mult
        return _cosine(self.config.lr, self.config.lr_min, after / period)


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))

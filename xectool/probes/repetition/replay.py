"""A recorded step once more, bit for bit: from the nearest state on disk forward through the data plan."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xectool.data.batch import EventBatch
from xectool.errors import UsageError
from xectool.probes.instruments.bench import Bench
from xectool.probes.repetition.history import RunHistory, SavedState
from xectool.probes.repetition.left_out import LeftOut
from xectool.runlog.records import StepRecord
from xectool.training.process.device import apply_determinism, plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress, restore
from xectool.training.stepping.step import StepResult


@dataclass(frozen=True)
class Moment:
    """Everything a run is between two steps, kept in memory."""

    step: int
    epoch: int
    batch: int
    model: dict[str, Any]
    task: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]


class Replay:
    """Runs the steps of a run again.

    The learning rate of each step is the recorded one, whatever changed it. Updates that a guard held back are held
    back again, events are left out from the step on at which the run left them out, rewinds are repeated, and a limit
    of the gradient norm that somebody asked for live holds from its step on.

    Args:
        history: The run.
        step: The step that is wanted; the replay starts from the nearest state before it.
        device: Device that goes before the configuration's.
        serves_left_out: Whether the wanted step, and no other, is served the events that the run left out of it.

    Attributes:
        left_out_until: Events left out because of later steps than this are served.
        left_out: Events of the wanted step that the run left out of it, as its quarantine lists them.
    """

    def __init__(
        self, history: RunHistory, step: int, device: str | None = None, *, serves_left_out: bool = False
    ) -> None:
        self.history = history
        self.state: SavedState = history.state_before(step)
        config = history.config_at(step)
        if self.state.path is None and config.checkpoint.init_from:
            raise UsageError(
                f"the run started from other weights and keeps no checkpoint before step {step}",
                where=str(history.run_dir),
                fix="--step with a later step; `xectool runs` shows how many there are",
            )
        execution = plan_execution(config.training, device)
        apply_determinism(config.training.deterministic)
        self.parts: RunParts = build_parts(open_data(config), execution, Ranks())
        saved = self.state.checkpoint
        progress = Progress() if saved is None else restore(self.parts, saved)
        self.step, self.epoch, self.batch = progress.step, progress.epoch, progress.batch
        self.left_out_until = step
        self._clip = config.training.grad_clip if progress.grad_clip is None else progress.grad_clip
        self._records = history.steps(self.step + 1, step)
        earlier = saved.meta.get("quarantine", {}).get("events", ()) if saved is not None else ()
        self._left_out = LeftOut(self.parts.train_loader, (*history.left_out(), *earlier))
        of_step = self._left_out.of_step(history.require_step(step))
        self.left_out = tuple(of_step.values())
        self._served_at = {step: tuple(of_step)} if serves_left_out else {}
        self._wanted = {rewind.to_step for rewind in history.rewinds}
        self._moments: dict[int, Moment] = {}
        self._keep_if_wanted()

    @property
    def cost(self) -> int:
        """Steps between the nearest state and the wanted one."""
        return len(self._records) - 1

    def close(self) -> None:
        """Stop the reading threads."""
        self.parts.train_loader.close()

    def run_until(self, step: int, lr_factor: float = 1.0) -> StepResult | None:
        """Run the steps up to ``step``, that included, and return what the last one did; None where none was run.

        Args:
            step: Last step.
            lr_factor: Factor of every recorded rate.
        """
        result = None
        while self.step < step:
            for window in self._windows():
                result = self._take(window, lr_factor)
                if self.step >= step:
                    break
        return result

    def next_window(self) -> list[EventBatch]:
        """Return the batches of the step that comes next."""
        self._leave_out(self.step + 1)
        return next(self._windows())

    def moment(self) -> Moment:
        """Return a copy of where the run stands."""
        parts = self.parts
        live = (parts.model.state_dict(), parts.task.state_dict())
        own = (parts.stepper.optimizer.state_dict(), parts.stepper.scaler.state_dict())
        return Moment(self.step, self.epoch, self.batch, *copy.deepcopy(live), *copy.deepcopy(own))

    def go_to(self, moment: Moment, place: bool = True) -> None:
        """Go back to a moment; without ``place`` only its weights and moments come back, the steps count on."""
        parts = self.parts
        parts.model.load_state_dict(moment.model)
        parts.task.load_state_dict(moment.task)
        parts.stepper.optimizer.load_state_dict(copy.deepcopy(moment.optimizer))
        if moment.scaler:
            parts.stepper.scaler.load_state_dict(moment.scaler)
        if place:
            self.step, self.epoch, self.batch = moment.step, moment.epoch, moment.batch

    def bench(self) -> Bench:
        """Return the run as it stands, for experiments; it shares its weights."""
        parts, training = self.parts, self.parts.config.training
        record = self._records.get(self.step + 1)
        lr = record.lr if record is not None else training.lr
        own = (parts.model, parts.task, parts.stepper.optimizer, replace(parts.execution, compile_mode=None))
        return Bench(parts.config, *own, lr, parts.ranks.rank, training.channel_dropout_rate)

    def _windows(self) -> Iterator[list[EventBatch]]:
        """Yield the windows of the rest of the epoch, or of the next one."""
        loader, size = self.parts.train_loader, self.parts.config.training.grad_accum_steps
        if self.batch >= loader.plan.num_steps:
            self.epoch, self.batch = self.epoch + 1, 0
        self._leave_out(self.step + 1)
        window: list[EventBatch] = []
        for batch in loader.epoch(self.epoch, self.batch):
            window.append(batch)
            if len(window) == size or batch.step == loader.plan.num_steps - 1:
                yield window
                window = []
                self._leave_out(self.step + 1)

    def _take(self, window: Sequence[EventBatch], lr_factor: float) -> StepResult:
        parts, record = self.parts, self._records.get(self.step + 1)
        lr = parts.schedule(parts.schedule.place(self.epoch, self.batch))
        if record is not None and math.isfinite(record.lr):
            lr = record.lr
        parts.model.train()
        parts.task.train()
        held = record is not None and record.skipped  # a guard held a finite update back
        parts.stepper.grad_clip = self.history.clip_after(self.step, self._clip)
        result = parts.stepper.run(window, lr * lr_factor, lambda loss: held)
        scaler = parts.stepper.scaler
        if record is not None and scaler.is_enabled() and scaler.get_scale() != record.amp_scale:
            scaler.update(record.amp_scale)  # a step that was tried twice moved the scale twice
        self.step += 1
        self.batch += len(window)
        self._keep_if_wanted()
        self._rewind_if_recorded()
        return result

    def _keep_if_wanted(self) -> None:
        if self.step in self._wanted:
            self._moments[self.step] = self.moment()

    def _rewind_if_recorded(self) -> None:
        for rewind in self.history.rewinds:
            if rewind.from_step != self.step or self.step + 1 not in self._records:
                continue
            kept = self._moments.get(rewind.to_step)
            if kept is not None:
                self.go_to(kept, place=False)
                continue
            saved = self.history.ring_state(rewind.to_step)
            if saved is None:
                raise UsageError(
                    f"after step {rewind.from_step} the run went back to step {rewind.to_step}, a state that is gone",
                    where=str(self.history.run_dir),
                    fix=f"--step {rewind.from_step} or earlier",
                )
            training = saved.training
            scaler = dict(training.get("scaler", {}))
            state = Moment(rewind.to_step, 0, 0, saved.model, training["task"], training["optimizer"], scaler)
            self.go_to(state, place=False)

    def _leave_out(self, step: int) -> None:
        """Exclude the events that the run left out at this step or before."""
        self._left_out.before(min(step, self.left_out_until), self._served_at.get(step, ()))


def same_number(one: float, other: float) -> bool:
    """Return whether two numbers are bit for bit the same, NaN included."""
    return one == other or (math.isnan(one) and math.isnan(other))


def is_reproduced(result: StepResult, record: StepRecord) -> bool:
    """Return whether a repeated step gave the recorded loss and gradient norm, bit for bit."""
    return same_number(result.loss, record.loss) and same_number(result.grad_norm, record.grad_norm)

"""Take a step, and where it goes wrong: find out why, leave out what is bad, go back to where all was well.

One step may be tried several times before it counts. Decisions are the same on all ranks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from xectool.checkpoint import store
from xectool.config.rates import gentler_options
from xectool.data.batch import EventBatch
from xectool.errors import CheckpointError, RunDiverged, event_named
from xectool.training.events.quarantine import PoisonedEvent
from xectool.training.guards.report import Reporter
from xectool.training.healing.cases import Case, CaseBook
from xectool.training.healing.plausible import PlausibleEvents, without
from xectool.training.record.incidents import IDENTITY_COLUMNS, identities
from xectool.training.saving.ring import GoodState, weights_of
from xectool.training.saving.saver import Saver
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import StepResult
from xectool.training.symptoms.nonfinite import weights_are_finite
from xectool.training.symptoms.spike import LEVEL, LEVELS, Judgement
from xectool.training.triage import Reference, Triage, Trial, triage_window
from xectool.training.triage.window import has_grown, other_weights, without_rows

MAX_TRIES: Final = 4
HISTORY: Final = 50  # steps an incident looks back
LEVEL_EVERY: Final = 5  # steps between looks at the level of the loss

Window = list[EventBatch]


class Healer:
    """Takes the steps of a run.

    Args:
        parts: What is trained.
        saver: Knows the good states and the run directory.
        reporter: Hears of everything.
    """

    def __init__(self, parts: RunParts, saver: Saver, reporter: Reporter) -> None:
        self.parts = parts
        self.saver = saver
        self.reporter = reporter
        self.config = parts.config.guards
        self.spikes = parts.spikes
        self.book = CaseBook(parts, saver, reporter)
        self.plausible = PlausibleEvents(parts, reporter)
        self._losses: deque[float] = deque(maxlen=HISTORY)
        self._norms: deque[float] = deque(maxlen=HISTORY)
        self._judgement = Judgement.CALM
        self._cleared = self._last_try = self._went_back = False
        self._level_from = 0  # step of the next look
        self._action = self.config.on_spike if self.config.active("G06") else "off"

    def begin(self, progress: Progress) -> None:
        """Ask for what looks at every event need; keep the state a run starts from, if it may have to go back to it."""
        if self.plausible.active or self.parts.config.data.log_invalid_npho:
            self.parts.train_loader.measured_epoch = progress.epoch
        if self._action == "rewind" and not len(self.saver.states):
            self.saver.states.keep_if_due(self.parts, progress.step)

    def take(self, progress: Progress, window: Window, lr: float) -> tuple[StepResult, Window]:
        """Take the step after ``progress``; return what it did and the events that were in it.

        Raises:
            RunDiverged: More events are bad, or more returns are needed, than allowed.
            DataUnusable: As `PlausibleEvents.report`.
        """
        self._cleared = self._went_back = False
        window = self._plausible(window)
        for tries in range(1, MAX_TRIES + 1):
            self._judgement, self._last_try = Judgement.CALM, tries == MAX_TRIES
            result = self.parts.stepper.run(window, lr, self._veto)
            again = self._treat(progress, window, lr, result)
            if again is None:
                break
            window = again
        self._remember(progress, result)
        if self._action == "rewind" and not self._went_back and progress.step % LEVEL_EVERY == 0:
            self._look_at_level(progress, window)
        return result, window

    def _plausible(self, window: Window) -> Window:
        """Return a window without the events that no event can be, as far as they are left out."""
        found, left_out = self.plausible.look(window), []
        if self.parts.ranks.any(bool(found) or self.plausible.reach.met):
            left_out = self.plausible.report(window, found)
            if self.parts.ranks.any(bool(left_out)):
                self._leave_out(left_out)
        return without(window, found) if left_out else window

    def return_to_finite_weights(self, progress: Progress, bad: Sequence[str]) -> bool:
        """Go back to a state with finite weights; return whether that is wanted and there is one.

        Raises:
            RunDiverged: The run has gone back too often.
        """
        state = next(self._states(), None) if self._action == "rewind" else None
        if state is None:
            return False
        self._rewind(progress, state, f"{len(bad)} tensors of the model are not finite, first {bad[0]}", [])
        return True

    def _veto(self, loss: float) -> bool:
        if self._action == "off" or self._cleared or not math.isfinite(loss):
            return False
        self._judgement = self.spikes.judge(loss)
        return self._judgement is not Judgement.CALM and self._action in ("skip", "rewind")

    def _treat(self, progress: Progress, window: Window, lr: float, result: StepResult) -> Window | None:
        """Return the events to try the step again with, or None where what was done stands."""
        ranks = self.parts.ranks
        if not result.finite:
            return None if result.overflow else self._treat_nonfinite(progress, window, lr, result)
        if ranks.any(self._judgement is Judgement.SPIKE):
            self._judgement = Judgement.SPIKE
            return self._treat_spike(progress, window, lr, result)
        if ranks.any(self._judgement is Judgement.SUSPECT):
            return self._treat_suspect(progress, window, lr, result)
        return None

    def _treat_nonfinite(self, progress: Progress, window: Window, lr: float, result: StepResult) -> Window | None:
        case = self._case("nonfinite", progress, window, lr, result)
        found = case.found
        redone = self.config.on_nonfinite != "stop" and self._may_quarantine(case)
        self.book.nonfinite(case, redone and not self._last_try)
        if redone:
            return self._without_suspects(case)
        helped = not found.weights_finite or found.finite_with_saved_weights
        if self._action == "rewind" and self.parts.ranks.any(bool(helped)):
            self._go_back(progress, window, result.fault, lambda trial: trial.is_finite(window))
        return None

    def _treat_spike(self, progress: Progress, window: Window, lr: float, result: StepResult) -> Window | None:
        if self._action == "record" and self.spikes.steps_high:
            return None  # the same spike goes on
        case = self._case("spike", progress, window, lr, result)
        self.book.spike(case, self._action)
        if self._action != "rewind":
            return None
        if self._may_quarantine(case):
            return self._without_suspects(case)
        limit = self.spikes.limit
        self._go_back(progress, window, "loss spike", lambda trial: trial.mean_loss(window) <= limit)
        return None

    def _treat_suspect(self, progress: Progress, window: Window, lr: float, result: StepResult) -> Window | None:
        """Before the median is trusted, only events that stand out from their own batch make a spike."""
        case = self._case("spike", progress, window, lr, result)
        if not self.parts.ranks.any(bool(case.suspects)):
            self._cleared, self._judgement = True, Judgement.CALM
            return window if result.held else None
        self._judgement = Judgement.SPIKE
        self.book.spike(case, self._action)
        return self._without_suspects(case) if self._action == "rewind" and self._may_quarantine(case) else None

    def _case(self, kind: str, progress: Progress, window: Window, lr: float, result: StepResult) -> Case:
        newest = next(iter(self.saver.states.newest_first()), None)
        trusted = self._judgement is not Judgement.SUSPECT
        reference = Reference(
            typical=self.spikes.typical,
            limit=self.spikes.limit,
            trusted=trusted,
            weights=weights_of(newest, self.parts.execution.device) if newest is not None and trusted else None,
            grew=has_grown(self._norms, result.grad_norm),
        )
        found = triage_window(Trial.of(self.parts), window, kind, reference)
        suspects = self._suspects(window, found)
        past = (tuple(self._losses), tuple(self._norms))
        return Case(kind, progress, window, lr, result, found, suspects, reference.typical, *past)

    def _suspects(self, window: Window, found: Triage) -> list[PoisonedEvent]:
        rows, files = identities(window), self.parts.train_loader.source.files
        return [
            PoisonedEvent(files[index].name, index, entry, run, event, found.cause, self.reporter.step)
            for index, entry, run, event in (rows[row] for row in found.suspects)
        ]

    def _may_quarantine(self, case: Case) -> bool:
        return self.config.quarantine and self.parts.ranks.any(bool(case.suspects))

    def _without_suspects(self, case: Case) -> Window | None:
        """Put the suspects of all ranks in quarantine and return the rest of this rank's events for another try."""
        self._leave_out(case.suspects)
        return None if self._last_try else without_rows(case.window, case.found.suspects)

    def _leave_out(self, suspects: Sequence[PoisonedEvent]) -> None:
        """Put the events that all ranks name in quarantine."""
        everywhere = [event for rank in self.parts.ranks.gather(list(suspects)) for event in rank]
        quarantine, run_dir = self.parts.quarantine, self.saver.run_dir
        new = quarantine.add(everywhere)
        refused = quarantine.try_write(run_dir)
        reason = (new or everywhere)[0].reason  # of the rank that named the event, which need not be this one
        named = "; ".join(f"entry {e.entry} of {e.file} ({event_named(e.run, e.event)})" for e in new[:3])
        self.reporter.event(
            "quarantine",
            f"left out from now on, {reason}: {named}{' and more' if len(new) > 3 else ''}"
            + (f"; {refused}, the checkpoint holds the list" if refused else ""),
            columns=list(IDENTITY_COLUMNS),
            events=[event.identity for event in new],
            files=sorted({event.file for event in new}),
            reason=reason,
            total=len(quarantine),
            budget=quarantine.budget,
            refused=refused,
        )
        quarantine.require_budget(run_dir)

    def _look_at_level(self, progress: Progress, window: Window) -> None:
        """Go back where the loss has risen for good, and weights of before are better with the same events.

        Weights that have lost what they had learned often show no spike, only the loss of a constant. Other data raise
        that of earlier weights, too; what a planned rise of the rate does is left alone. No level ends a run.
        """
        rise, place = self.spikes.rise, self.parts.schedule.place(progress.epoch, progress.batch)
        over = progress.rewinds >= self.config.max_rewinds or self.reporter.step < self._level_from
        if over or not self.parts.ranks.any(rise > 0) or self.parts.schedule.rose_within(place, LEVELS * LEVEL):
            return
        self._level_from = self.reporter.step + LEVEL
        limit = Trial.of(self.parts).mean_loss(window) - rise / 2
        reason = f"the loss has been {rise:.3g} higher for {LEVEL} steps"
        at = self._go_back(progress, [], reason, lambda trial: trial.mean_loss(window) <= limit)
        self.spikes.forget_last(0 if at is None else self.reporter.step - at)

    def _go_back(
        self, progress: Progress, left_out: Window, reason: str, is_sound: Callable[[Trial], bool]
    ) -> int | None:
        """Go back to the newest state that is sound, and return its step; without one the step is only left out."""
        trial = Trial.of(self.parts)
        for state in self._states():
            with other_weights(self.parts.model, weights_of(state, self.parts.execution.device)):
                sound = self.parts.ranks.all(is_sound(trial))
            if sound:
                self._rewind(progress, state, reason, identities(left_out))
                return state.step
        return None

    def _states(self) -> Iterator[GoodState]:
        """Yield the states to go back to: those in memory, the newest first, then those on the disk."""
        yield from self.saver.states.newest_first()
        for name in (store.LAST_NAME, store.BEST_NAME):
            try:
                checkpoint = store.load(self.saver.run_dir / name)
            except CheckpointError:
                continue
            yield GoodState(checkpoint.step, checkpoint)

    def _rewind(self, progress: Progress, state: GoodState, reason: str, excluded: list[list[int]]) -> None:
        if progress.rewinds >= self.config.max_rewinds:
            raise RunDiverged(
                f"training stopped: {reason}, after going back {progress.rewinds} times",
                where=f"step {self.reporter.step}; checkpoint_last.pt holds a sound state",
                fix=f"{gentler_options(self.parts.config)}   # or allow more: --set guards.max_rewinds=10",
                code="XT-SPIKE-LR",
            )
        progress.rewinds += 1
        state.reinstate(self.parts)
        self.saver.states.drop_after(state.step)
        schedule = self.parts.schedule
        before = schedule(schedule.place(progress.epoch, progress.batch))
        schedule.scale = min(schedule.scale * self.config.rewind_lr_factor, state.lr_scale)
        after = schedule(schedule.place(progress.epoch, progress.batch))
        self.spikes.forget_spike()
        self._went_back = True
        self.reporter.event(
            "rewind",
            f"step {self.reporter.step}: {reason}; back to the weights of step {state.step}, learning rate "
            f"{before:.3g} -> {after:.3g}",
            from_step=self.reporter.step,
            to_step=state.step,
            reason=reason,
            columns=list(IDENTITY_COLUMNS),
            excluded=excluded,
            times=progress.rewinds,
            lr_scale=schedule.scale,
        )
        self.reporter.event("lr_change", lr_before=before, lr_after=after, reason="rewind")

    def _remember(self, progress: Progress, result: StepResult) -> None:
        if result.overflow:
            return
        self._norms.append(result.grad_norm)
        self._losses.append(result.loss)
        if self._action == "off" or not result.finite or self._went_back:
            return  # the loss of weights that were taken back says nothing of what follows
        if after := self.spikes.accept(result.loss, self._judgement):
            self.reporter.event("spike_recovered", f"the loss is normal again after {after} steps", after_steps=after)
        calm = result.taken and self._judgement is Judgement.CALM and not self.spikes.steps_high
        states, step = self.saver.states, self.reporter.step
        if self._action == "rewind" and calm and states.is_due(step) and weights_are_finite(self.parts.model):
            states.keep_if_due(self.parts, step)

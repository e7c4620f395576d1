"""The only training loop: epochs of optimizer steps, validation, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from xectool.data.batch import EventBatch
from xectool.errors import OutOfMemory, RunDiverged
from xectool.tasks.base import WorstEvent
from xectool.training.control import LiveControl
from xectool.training.guards.base import StepFacts
from xectool.training.guards.process import SaveRequest
from xectool.training.guards.report import Reporter
from xectool.training.guards.set import GuardSet
from xectool.training.healing.healer import Healer
from xectool.training.predicting.epochs import is_due, kept, predictions_name
from xectool.training.process.memory import memory_metrics
from xectool.training.process.progress import Observer
from xectool.training.process.signals import StopRequest
from xectool.training.record.readings import InvalidReading, ReadingWatch
from xectool.training.record.recorder import FlightRecorder, StepTiming
from xectool.training.saving.saver import Saver
from xectool.training.stepping.epoch_stats import EpochStats
from xectool.training.stepping.evaluate import evaluate, merged, run_model
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.time_left import TimeLeft
from xectool.training.symptoms.nonfinite import nonfinite_weights, weights_are_finite
from xectool.training.tracking import TrackerHandle
from xectool.training.triage.validated import finiteness

NUM_WORST_EVENTS = 5


@dataclass(frozen=True)
class FitResult:
    """How a training ended.

    Attributes:
        status: ``finished``, ``early_stopped``, ``max_steps`` or ``interrupted``.
        progress: Where it stands.
        metrics: Metrics of the last finished epoch.
        worst: Events of the last validation with the largest loss.
    """

    status: str
    progress: Progress
    metrics: dict[str, float] = field(default_factory=dict)
    worst: tuple[WorstEvent, ...] = ()


class StoppedInValidation(Exception):
    """A signal came during a validation pass; the epoch is not finished and its validation is repeated on resume."""


class Trainer:
    """Runs the loop.

    Args:
        parts: What is trained, on what.
        saver: Writes its checkpoints, and knows the run's own record.
        observer: Whoever watches.
        tracker: Asked after each epoch whether it is keeping up.
        max_steps: Stop after this many optimizer steps of the run, or None.
    """

    def __init__(
        self, parts: RunParts, saver: Saver, observer: Observer, tracker: TrackerHandle, max_steps: int | None = None
    ) -> None:
        self.parts = parts
        self.saver = saver
        self.writer = saver.writer
        self.flight = FlightRecorder(parts, saver.writer)
        self.observer = observer
        self.tracker = tracker
        self.max_steps, self.time_left = max_steps, TimeLeft(parts, max_steps)
        self.stop, self.save_request = StopRequest(), SaveRequest()
        self.readings = ReadingWatch(parts.config, parts.train_loader.source)
        self.validated_readings = ReadingWatch(parts.config, parts.val_loader.source)
        self.reporter = Reporter(saver.writer, observer)
        self.healer = Healer(parts, saver, self.reporter)
        self.guards = GuardSet(parts, self.reporter)
        self.control = LiveControl(parts, saver, self.reporter, self.stop, self._try_save)
        self.worst: tuple[WorstEvent, ...] = ()

    def fit(self, progress: Progress) -> FitResult:
        """Train from ``progress`` to the end of the configured epochs.

        Raises:
            RunDiverged: A guard gave up; the last checkpoint is sound.
            DiskError: A checkpoint could not be written; the previous one is intact.
        """
        self.reporter.step, self.reporter.epoch = progress.step, progress.epoch
        with self.stop, self.save_request, self.control, self.flight:
            self.healer.begin(progress)
            self.guards.begin(progress)
            self.control.begin(progress)
            try:
                status = self._train(progress)
            except StoppedInValidation:
                status = "interrupted"
                self._save(progress)
        return FitResult(status, progress, progress.history[-1] if progress.history else {}, self.worst)

    def _train(self, progress: Progress) -> str:
        """Run epochs; return why the last one was the last."""
        while progress.epoch <= self.parts.config.training.epochs:
            if self._stale(progress):
                return "early_stopped"
            ended = self._train_epoch(progress)
            if ended:
                self._save(progress)
                return ended
            self._finish_epoch(progress)
        return "interrupted" if self.stop.requested else "finished"

    def _train_epoch(self, progress: Progress) -> str:
        """Run the rest of an epoch; return why it ended before its last batch, or an empty string."""
        training, loader = self.parts.config.training, self.parts.train_loader
        self.parts.model.train()
        self.parts.task.train()
        self.observer.phase(f"train {progress.epoch}/{training.epochs}", loader.plan.num_steps, progress.batch)
        began = time.perf_counter()
        batches = loader.epoch(progress.epoch, progress.batch, progress.position)
        for window, wait_s in self.flight.windows(batches, training.grad_accum_steps):
            if self._must_stop(progress):
                return "interrupted"
            if self.max_steps is not None and progress.step >= self.max_steps:
                return "max_steps"
            self._step(progress, window, wait_s, began)
            began = time.perf_counter()
            if progress.batch < loader.plan.num_steps:
                self._save_if_wanted(progress)
        return ""

    def _step(self, progress: Progress, window: list[EventBatch], wait_s: float, began: float) -> None:
        self.flight.begin(progress, window)
        schedule = self.parts.schedule
        lr = schedule(schedule.place(progress.epoch, progress.batch))
        self.reporter.step, self.reporter.epoch = progress.step + 1, progress.epoch
        self._look_at_readings(window)
        try:
            self.guards.before_step(progress, window)
            result, window = self.healer.take(progress, window, lr)
            step = StepFacts(window, result, wait_s, time.perf_counter() - began)
            progress.step += 1
            progress.batch += len(window)
            progress.position = progress.batch * self.parts.train_loader.plan.global_batch_size
            progress.stats.add(result, wait_s, step.step_s)
            self.flight.step(progress, window, result, StepTiming(result.lr, wait_s, step.step_s))
            self.guards.after_step(progress, step)
            self._look_at_weights(progress)
            if not result.overflow:
                self.parts.guard.observe(result.finite, result.fault)
        except (RunDiverged, OutOfMemory):
            self._save_alone(progress)  # what was before the fault
            raise
        self._show(progress, step)
        self._ask_tracker(progress)

    def _show(self, progress: Progress, step: StepFacts) -> None:
        stats, seconds = progress.stats, max(progress.stats.seconds, 1e-9)
        shown = {"loss": step.result.loss, "lr": step.result.lr, "grad_norm": step.result.grad_norm}
        rates = {"events_per_s": stats.events / seconds, "data_wait": stats.data_wait_s / seconds}
        left = self.time_left.after(progress, len(step.window), step.step_s)
        self.observer.advanced(len(step.window), shown | rates | left)

    def _look_at_weights(self, progress: Progress, always: bool = False) -> None:
        """Go back to finite weights, where that is wanted, or raise `RunDiverged`."""
        guards = self.parts.config.guards
        due = guards.active("G04") and progress.step % guards.weights_every == 0
        if not (always or due) or weights_are_finite(self.parts.model):
            return
        bad = nonfinite_weights(self.parts.model) or ["a parameter too large for float32"]
        if not self.healer.return_to_finite_weights(progress, bad):
            raise self.saver.refuse_weights(bad, progress.step)

    def _save(self, progress: Progress) -> None:
        self._look_at_weights(progress, always=True)
        with self.flight.during("checkpoint"):
            self.saver.save(progress)

    def _save_alone(self, progress: Progress) -> None:
        """Save without the other ranks, which may not know of what ends this one."""
        if self.parts.ranks.world_size == 1:
            self._save(progress)
        elif self.parts.ranks.is_first and weights_are_finite(self.parts.model):
            self.parts.ranks.note_last_work()
            self.saver.write(progress)

    def _must_stop(self, progress: Progress) -> bool:
        """Do what was asked for since the last look, and return whether some rank was asked to stop."""
        stop, asked = self.parts.ranks.any_of([self.stop.requested, self.control.waiting])
        if asked:
            self.control.apply(progress)
        if stop:
            self.reporter.event("signal", self.stop.asked_by, name=self.stop.name)
        return stop

    def _save_if_wanted(self, progress: Progress) -> None:
        """Save because it is time by the clock of the first rank, or because a signal asked some rank for it."""
        ranks = self.parts.ranks
        asked, due = ranks.any_of([self.save_request.take(), ranks.is_first and self.saver.is_due(progress)])
        if asked:
            self.reporter.event("signal", f"SIGUSR2: checkpoint of step {progress.step}", name="SIGUSR2")
        if asked or due:
            refused = self._try_save(progress)
            if refused:
                self.observer.message(refused)

    def _try_save(self, progress: Progress) -> str:
        """Save, where a disk that refuses costs no training; return why it did, or an empty string."""
        self._look_at_weights(progress, always=True)
        with self.flight.during("checkpoint"):
            return self.saver.try_save(progress)

    def _look_at_readings(self, window: list[EventBatch]) -> None:
        for found in (found for batch in window for found in self.readings.look(batch)):
            self._tell_of_reading("train", found)

    def _tell_of_reading(self, sample: str, found: InvalidReading) -> None:
        code, of = None if found.is_no_number else "", "" if sample == "train" else "validation"
        self.reporter.event("invalid_npho", found.line, code=code, of=of, sample=sample, events=[found.event])

    def _finish_epoch(self, progress: Progress) -> None:
        config, epoch, stats = self.parts.config, progress.epoch, progress.stats
        for line in (*stats.remarks(config.training.profile), self.readings.summary()):
            if line:
                self.observer.message(f"epoch {epoch}: {line}")
        metrics = stats.metrics(self.parts.task) | self.parts.task.scalars()
        metrics["lr"] = self.parts.schedule(self.parts.schedule.place(epoch + 1, 0) - 1)
        metrics |= {"perf/epoch_time_sec": stats.seconds, **memory_metrics(self.parts.execution.device)}
        if epoch % config.validation.interval == 0 or epoch == config.training.epochs:
            with self.flight.during("validation"):
                metrics |= self._validate(progress)
            self.guards.after_validation(progress, metrics)
            self._judge(progress, metrics["val/loss"])
            self.parts.schedule.observe(metrics["val/loss"])
        self.guards.after_epoch(progress, metrics)
        progress.history.append({"epoch": float(epoch), **metrics})
        self.flight.epoch(progress, metrics)
        self.observer.epoch_done(epoch, metrics)
        self.readings.num_invalid = 0
        progress.epoch, progress.batch, progress.position, progress.stats = epoch + 1, 0, 0, EpochStats()
        self._save(progress)
        self.saver.publish(progress)

    def _ask_tracker(self, progress: Progress) -> None:
        warning = self.tracker.poll()
        if warning:
            status = "paused" if "paused" in warning else "ended"
            holder, place = self.tracker.holder(), {"step": progress.step, "epoch": progress.epoch}
            self.writer.event("tracker", warning, **place, status=status, holder=holder)
            self.observer.message(warning)

    def _validate(self, progress: Progress) -> dict[str, float]:
        loader, config = self.parts.val_loader, self.parts.config
        self.observer.phase(f"validate {progress.epoch}/{config.training.epochs}", loader.plan.num_steps)
        accumulator = self.parts.task.accumulator()
        model = self.parts.average.best_model if config.validation.use_ema else self.parts.model
        self.parts.task.eval()
        looked = self.validated_readings.passing(loader.epoch(0), partial(self._tell_of_reading, "val"))
        predicted = run_model(model, self.parts.task, self._until_stopped(progress, looked), self.parts.execution)
        if is_due(config, progress.epoch) and self.parts.ranks.is_first:
            predicted = kept(predicted, self.parts.task, self.saver.run_dir / predictions_name(progress.epoch))
        rate = evaluate(self.guards.watch(predicted), accumulator, self._validated_batch)
        accumulator, rate = merged(self.parts.task, self.parts.ranks, accumulator, rate)
        self.worst = tuple(accumulator.worst(NUM_WORST_EVENTS))
        metrics = {**accumulator.compute(), "perf/val_events_per_s": rate}
        facts = finiteness(self.parts, model, metrics["val/loss"]) | {"events": (events := loader.plan.num_events)}
        self.reporter.event("validation", seconds=events / max(rate, 1e-9), **facts)
        return metrics

    def _validated_batch(self) -> None:
        self.flight.phase("validation")
        self.observer.advanced(1, {})

    def _until_stopped(self, progress: Progress, batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
        """Yield the batches of a validation, as many on every rank, as long as no rank was asked to stop."""
        for batch in self.healer.plausible.passing(batches):
            if self._must_stop(progress):
                raise StoppedInValidation
            yield batch

    def _judge(self, progress: Progress, loss: float) -> None:
        """Take note of a validation loss; a non-finite one never becomes the best."""
        if math.isfinite(loss) and loss < progress.best_loss:
            progress.best_loss, progress.best_epoch, progress.epochs_since_best = loss, progress.epoch, 0
            return
        progress.epochs_since_best += 1
        if not math.isfinite(loss):
            self.observer.message(f"validation loss of epoch {progress.epoch} is {loss}; it is not taken as best")

    def _stale(self, progress: Progress) -> bool:
        patience = self.parts.config.training.early_stop_patience
        return patience is not None and progress.epochs_since_best >= patience

"""Turn what a step did into the lines of the run's record."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from xectool.config.adam import ADAM_REACH
from xectool.data.batch import EventBatch
from xectool.data.loader import LoaderOptions
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.status_page import Word
from xectool.runlog.writer import RunWriter
from xectool.training.optimization.parameter_blocks import weight_norm
from xectool.training.record.event_audit import EventAudit
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import StepResult
from xectool.training.symptoms.weight_likeness import WeightLikeness
from xectool.training.symptoms.weight_reach import Move, WeightReach

WEIGHT_NORM_STEPS: Final = 50  # one pass over the weights costs as much as one over the gradients

MAX_NAMED: Final = 16  # matrices, of those that are lost
MAX_MOVES: Final = 3  # of weights by something else that are told; what moves them at every step is meant
# Phases of a step whose time is recorded.
_TIMED: Final = ("transfer", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class StepTiming:
    """Rate and wall seconds of one step.

    Attributes:
        lr: Learning rate of the step.
        data_wait_s: Seconds the loop waited for the window.
        step_s: Seconds of the whole step, waiting included.
    """

    lr: float
    data_wait_s: float
    step_s: float


class FlightRecorder:
    """Writes what the loop does into the run's record, and what it is doing into the status page.

    Used as a context: at its end it says what is still to be said.

    Args:
        parts: What is trained.
        writer: The run's record.
    """

    def __init__(self, parts: RunParts, writer: RunWriter) -> None:
        self.parts = parts
        self.writer = writer
        self.page = writer.status
        self.audit = EventAudit(parts.train_loader, parts.quarantine.keys_at, parts.config.training.grad_accum_steps)
        self._likeness = WeightLikeness(parts.model)
        self._reach = WeightReach(parts.model, parts.config.training.weight_decay)
        self._moves = 0
        self._checkpoint_s = 0.0
        self._log_s = 0.0
        parts.stepper.on_phase = self.page.phase

    def __enter__(self) -> FlightRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *trace: object) -> None:
        # What the last steps did to the weights. A device that has failed cannot be asked, which must not hide why.
        with nullcontext() if kind is None else suppress(RuntimeError):
            self._tell_moves(self._reach.look())

    def phase(self, name: str) -> None:
        """Say what the training thread does from now on."""
        self.page.phase(name)

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Say what the training thread does inside the block; the time of a checkpoint goes to the next step."""
        began = time.perf_counter()
        self.page.phase(name)
        try:
            yield
        finally:
            if name == "checkpoint":
                self._checkpoint_s += time.perf_counter() - began

    def windows(self, batches: Iterator[EventBatch], size: int) -> Iterator[tuple[list[EventBatch], float]]:
        """Yield accumulation windows, the last one as short as it comes, with the seconds waited for each."""
        while True:
            began = time.perf_counter()
            self.page.phase("data_wait")
            window = list(islice(batches, size))
            if not window:
                return
            yield window, time.perf_counter() - began

    def begin(self, progress: Progress, window: Sequence[EventBatch]) -> None:
        """Write down which batch comes next, before anything is done with it."""
        began = time.perf_counter()
        page, first = self.page, next((batch for batch in window if len(batch.entry)), window[0])
        page[Word.EPOCH] = progress.epoch
        page[Word.BATCH_SEED] = self.parts.config.training.seed
        page[Word.BATCH_EPOCH] = first.epoch
        page[Word.BATCH_START], page[Word.BATCH_STOP] = progress.batch, progress.batch + len(window)
        page[Word.NUM_EVENTS] = sum(len(batch.entry) for batch in window)
        if len(first.entry):
            # Lists: four array operations on a batch cost more with cold caches than a loop over its numbers.
            files = first.file_index.tolist()
            entries = [entry for file, entry in zip(files, first.entry.tolist(), strict=True) if file == files[0]]
            page[Word.FILE_INDEX] = files[0]
            page[Word.ENTRY_MIN], page[Word.ENTRY_MAX] = min(entries), max(entries)
        self._log_s += time.perf_counter() - began

    def step(
        self, progress: Progress, window: Sequence[EventBatch], result: StepResult, timing: StepTiming
    ) -> StepRecord:
        """Record a step that ``progress`` already counts."""
        began = time.perf_counter()
        self.page.phase("log")
        self.audit.add(window, progress.step)
        record = self._step_record(progress, window, result, timing)
        self.writer.step(record)
        self._likeness.took(timing.lr)
        if self._moves < MAX_MOVES:
            self._tell_moves(self._reach.took(progress.step, timing.lr))
        if progress.step % WEIGHT_NORM_STEPS == 0:
            self._compare_weights(progress)
        self.page[Word.STEP] = progress.step
        self._checkpoint_s, self._log_s = 0.0, time.perf_counter() - began
        self.page[Word.OWN_NS] += int(1e9 * record.log_s)
        self.page[Word.STEPS_NS] += int(1e9 * timing.step_s)
        return record

    def epoch(self, progress: Progress, metrics: dict[str, float]) -> EpochRecord:
        """Record the epoch that ``progress`` has just finished, and the audit of its events."""
        plan, stats = self.parts.train_loader.plan, progress.stats
        ranks = self.parts.ranks
        expected = sum(plan.events_of_rank(rank) for rank in range(ranks.world_size))
        left_out = self.audit.left_out_of(progress.epoch, ranks, progress.step)
        duplicates = self.audit.duplicates_of(ranks)
        record = EpochRecord(
            epoch=progress.epoch,
            step=progress.step,
            time=time.time(),
            mono=time.monotonic(),
            metrics=metrics,
            lr=metrics["lr"],
            seconds=stats.seconds,
            events_seen=stats.events,
            events_expected=expected,
            duplicates=duplicates,
            grad_norm_median=stats.grad_norm_quantile(0.5),
            grad_norm_p95=stats.grad_norm_quantile(0.95),
            grad_norm_max=stats.grad_norm_max,
            clipped_fraction=stats.clipped / stats.steps if stats.steps else math.nan,
        )
        self._compare_weights(progress)
        self._tell_moves(self._reach.look())
        self.writer.epoch(record)
        self.writer.event(
            "audit",
            step=progress.step,
            epoch=progress.epoch,
            expected=expected,
            seen=stats.events,
            duplicates=duplicates,
            quarantined=left_out,
        )
        return record

    def _compare_weights(self, progress: Progress) -> None:
        since = self._likeness.last_step
        if lost := self._likeness.look(progress.step):
            self.writer.event(
                "weights_lost",
                f"{len(lost)} matrices are not what steps made of them since step {since}: {lost[0]} is the first",
                step=progress.step,
                epoch=progress.epoch,
                since=since,
                matrices=lost[:MAX_NAMED],
            )

    def _tell_moves(self, moves: Sequence[Move]) -> None:
        for move in moves[: MAX_MOVES - self._moves]:
            self._moves += 1
            others = f" and {len(move.matrices) - 1} more of the matrices compared" if len(move.matrices) > 1 else ""
            self.writer.event(
                "weights_moved",
                f"step {move.step} moved {move.matrices[0]}{others} by more than {ADAM_REACH:g} learning rates, which "
                "no gradients can",
                step=move.step,
                epoch=self.page[Word.EPOCH],
                matrices=move.matrices[:MAX_NAMED],
                often=self._moves == MAX_MOVES,
            )

    def _step_record(
        self, progress: Progress, window: Sequence[EventBatch], result: StepResult, timing: StepTiming
    ) -> StepRecord:
        parts, page = self.parts, self.page
        file_index, entry = _first_event(window)
        return StepRecord(
            epoch=progress.epoch,
            step=progress.step,
            time=time.time(),
            mono=time.monotonic(),
            loss=result.loss,
            losses=self._mean_losses(result),
            lr=timing.lr,
            grad_norm=result.grad_norm,
            clip_coef=result.clip_coef,
            data_wait_s=timing.data_wait_s,
            **{f"{phase}_s": result.seconds.get(phase, 0.0) for phase in _TIMED},
            step_s=timing.step_s,
            num_events=result.num_events,
            seed=parts.config.training.seed,
            batch_start=progress.batch - len(window),
            batch_stop=progress.batch,
            file_index=file_index,
            entry=entry,
            nonfinite=not result.finite,
            skipped=not result.taken,
            amp_scale=float(parts.stepper.scaler.get_scale()),
            rank=parts.ranks.rank,
            block_norms=result.block_norms,
            weight_norm=self._weight_norm(progress, result),
            rss_bytes=page[Word.RSS_BYTES],
            own_rss_bytes=page[Word.OWN_RSS_BYTES],
            device_bytes=page[Word.DEVICE_BYTES],
            device_reserved_bytes=page[Word.DEVICE_RESERVED_BYTES],
            dropped=self.audit.left_out,
            rng=result.rng,
            checkpoint_s=self._checkpoint_s,
            log_s=self._log_s,
            queue_depth=parts.train_loader.queue_depth,
            gradient_wait_s=parts.ranks.gradient_wait_s if result.total_events else 0.0,
        )

    def _weight_norm(self, progress: Progress, result: StepResult) -> float:
        due = progress.step % WEIGHT_NORM_STEPS == 0 or not result.finite  # weights may be why
        return weight_norm(self.parts.stepper.parameters()) if due else math.nan

    def _mean_losses(self, result: StepResult) -> dict[str, float]:
        counted = zip(self.parts.task.terms, result.sums.tolist(), result.counts.tolist(), strict=True)
        return {term: total / max(count, 1.0) for term, total, count in counted}


def watch_readers(parts: RunParts, writer: RunWriter) -> None:
    """Have the reading threads of both loaders note what they read; to be called before the first of them reads."""
    loaders = (parts.train_loader, parts.val_loader)
    slots = writer.worker_slots([_reading_threads(loader.options) for loader in loaders])
    for loader, part in zip(loaders, slots, strict=True):
        loader.slots = part


def _reading_threads(options: LoaderOptions) -> int:
    return options.num_threads * max(1, options.num_workers)


def _first_event(window: Sequence[EventBatch]) -> tuple[int, int]:
    """Return file and entry of the first event, -1 where there is none."""
    # The identity answers for its batch: a shape of torch and a number of numpy cost twice as much, cold.
    found = next((batch for batch in window if len(batch.entry)), None)
    return (-1, -1) if found is None else (int(found.file_index.item(0)), int(found.entry.item(0)))

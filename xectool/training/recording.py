"""Turn what a step did into the lines of the run's record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from xectool.data.batch import EventBatch
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter
from xectool.training.parts import RunParts
from xectool.training.state import Progress
from xectool.training.step import StepResult

IDENTITY_COLUMNS = ("file_index", "entry", "run", "event")


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


def step_record(
    parts: RunParts, progress: Progress, window: Sequence[EventBatch], result: StepResult, timing: StepTiming
) -> StepRecord:
    """Return the record of a step that ``progress`` already counts."""
    first = next((batch for batch in window if batch.num_events), window[0])
    means = result.sums / result.counts.clamp_min(1)
    return StepRecord(
        epoch=progress.epoch,
        step=progress.step,
        time=time.time(),
        mono=time.monotonic(),
        loss=result.loss,
        losses=dict(zip(parts.task.terms, means.tolist(), strict=True)),
        lr=timing.lr,
        grad_norm=result.grad_norm,
        clip_coef=result.clip_coef,
        data_wait_s=timing.data_wait_s,
        transfer_s=result.seconds.get("transfer", 0.0),
        forward_s=result.seconds.get("forward", 0.0),
        backward_s=result.seconds.get("backward", 0.0),
        optimizer_s=result.seconds.get("optimizer", 0.0),
        step_s=timing.step_s,
        num_events=result.num_events,
        seed=parts.config.training.seed,
        batch_start=progress.batch - len(window),
        batch_stop=progress.batch,
        file_index=int(first.file_index[0]) if first.num_events else -1,
        entry=int(first.entry[0]) if first.num_events else -1,
        nonfinite=not result.finite,
        skipped=not result.finite,
        amp_scale=float(parts.stepper.scaler.get_scale()),
        rank=parts.ranks.rank,
    )


def epoch_record(parts: RunParts, progress: Progress, metrics: dict[str, float]) -> EpochRecord:
    """Return the record of the epoch that ``progress`` has just finished."""
    return EpochRecord(
        epoch=progress.epoch,
        step=progress.step,
        time=time.time(),
        mono=time.monotonic(),
        metrics=metrics,
        lr=metrics["lr"],
        seconds=progress.stats.seconds,
        events_seen=progress.stats.events,
        events_expected=parts.train_loader.plan.num_events,
    )


def record_skip(writer: RunWriter, progress: Progress, window: Sequence[EventBatch], result: StepResult) -> str:
    """Record which events a skipped step held and return the line for the user."""
    events = [
        [int(value) for value in row]
        for batch in window
        for row in zip(batch.file_index, batch.entry, batch.run, batch.event, strict=True)
    ]
    message = f"step {progress.step} skipped: {result.fault}; the weights are untouched"
    if events:
        first = ", ".join(f"{name} {value}" for name, value in zip(IDENTITY_COLUMNS, events[0], strict=True))
        message += f"; {len(events)} events, first: {first}"
    writer.event(
        "nonfinite_skip",
        message,
        step=progress.step,
        epoch=progress.epoch,
        columns=list(IDENTITY_COLUMNS),
        events=events,
    )
    return message

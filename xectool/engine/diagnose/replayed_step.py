"""What ``diagnose replay`` answers of a step, and the words for its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xectool.data.batch import EventBatch
from xectool.errors import counted, event_named
from xectool.findings import Finding
from xectool.probes.instruments.module_stats import ModuleStats
from xectool.probes.repetition.counterfactuals import Counterfactual
from xectool.probes.repetition.replay import Replay

MOST_NAMED = 3  # events that are named in the answer


@dataclass(frozen=True)
class ReplayResult:
    """A recorded step, run again.

    Attributes:
        step: The step.
        epoch: Its epoch.
        reproduced: Whether loss and gradient norm are bit for bit those of the record.
        loss: Loss now.
        recorded_loss: Loss in the record.
        grad_norm: Gradient norm now.
        recorded_grad_norm: Gradient norm in the record.
        finite: Whether the step is finite.
        healthy: Whether it is finite and no spike against the steps before.
        left_out: Events of the step that the run leaves out: ``file, entry, run, event, reason, step`` (since when).
        with_left_out: Whether they were served again; then loss and norm are not those of the record.
        differences: What is not as it was when the run recorded it.
        state: Checkpoint the replay started from; empty for the weights of the seed.
        replayed_steps: Steps run from there.
        events: Events of the step.
        modules: Numbers of every module.
        first_nonfinite: First module whose output is not finite, or None.
        suspects: Events under suspicion, ``file, entry, run, event``.
        counterfactuals: What each change does; empty unless asked for.
        cures: The changes that cure it.
        verdict: One sentence.
        why: What it rests on.
        next: Line to go on with.
        findings: The same for scripts.
    """

    step: int
    epoch: int
    reproduced: bool
    loss: float
    recorded_loss: float
    grad_norm: float
    recorded_grad_norm: float
    finite: bool
    healthy: bool
    left_out: tuple[dict[str, Any], ...]
    with_left_out: bool
    differences: tuple[str, ...]
    state: str
    replayed_steps: int
    events: int
    modules: tuple[ModuleStats, ...]
    first_nonfinite: str | None
    suspects: tuple[dict[str, Any], ...] = ()
    counterfactuals: tuple[Counterfactual, ...] = ()
    cures: tuple[str, ...] = ()
    verdict: str = ""
    why: tuple[str, ...] = ()
    next: str = ""
    findings: tuple[Finding, ...] = field(default=())

    @property
    def good(self) -> bool:
        """Whether the step is healthy, and the recorded one where it was to be that."""
        return self.healthy and (self.reproduced or self.with_left_out)

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def told_of(events: Sequence[dict[str, Any]]) -> str:
    """Return one event by its name, several by their number."""
    return _name(events[0]) if len(events) == 1 else counted(len(events), "event")


def named(how: str, events: Sequence[dict[str, Any]]) -> list[str]:
    """Return events as lines of evidence; of those that were left out with cause and step."""
    since = [f", {event['reason']}, since step {event['step']}" if "reason" in event else "" for event in events]
    lines = [f"{how}: {_name(event)}{more}" for event, more in zip(events, since, strict=True)]
    return [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED} more"] if len(lines) > MOST_NAMED else lines


def identities(window: Iterable[EventBatch], rows: Sequence[int], again: Replay) -> tuple[dict[str, Any], ...]:
    """Return ``file, entry, run, event`` of rows of a window."""
    files = again.parts.train_loader.source.files
    every = [
        {"file": files[file].name, "entry": int(entry), "run": int(run), "event": int(event)}
        for batch in window
        for file, entry, run, event in zip(batch.file_index, batch.entry, batch.run, batch.event, strict=True)
    ]
    return tuple(every[row] for row in rows)


def _name(event: dict[str, Any]) -> str:
    return f"{event['file']} entry {event['entry']} ({event_named(event['run'], event['event'])})"

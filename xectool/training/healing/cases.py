"""A step that went wrong, as the record and an incident folder tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from xectool.data.batch import EventBatch
from xectool.errors import counted
from xectool.training.events.quarantine import PoisonedEvent
from xectool.training.guards.report import Reporter
from xectool.training.record.incidents import IDENTITY_COLUMNS, IncidentFolders, identities
from xectool.training.saving.saver import Saver
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import StepResult
from xectool.training.triage import Triage


@dataclass(frozen=True)
class Case:
    """One try of a step that went wrong.

    Attributes:
        kind: ``nonfinite`` or ``spike``.
        progress: Where the run stood before the step.
        window: The events of the try.
        lr: Learning rate.
        result: What the try did.
        found: The look at it.
        suspects: Events of this rank that are at fault.
        typical: Loss that was normal.
        losses: Losses of the steps before, the oldest first.
        grad_norms: Their gradient norms.
    """

    kind: str
    progress: Progress
    window: Sequence[EventBatch]
    lr: float
    result: StepResult
    found: Triage
    suspects: Sequence[PoisonedEvent]
    typical: float
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()

    @property
    def stage(self) -> str:
        """Where it went wrong: ``weights``, ``input``, ``loss`` or ``gradient``."""
        if not self.found.weights_finite:
            return "weights"
        if "loss" not in self.result.fault:
            return "gradient"
        return "input" if self.suspects and self.found.input["nonfinite"] else "loss"


class CaseBook:
    """Writes cases down: an incident folder, and events in the record.

    Args:
        parts: What is trained.
        saver: Knows the run directory and the last checkpoint.
        reporter: Hears of everything.
    """

    def __init__(self, parts: RunParts, saver: Saver, reporter: Reporter) -> None:
        self.parts = parts
        self.saver = saver
        self.reporter = reporter
        self.folders = IncidentFolders(saver.run_dir, parts.config.guards.max_incidents, saver.writer.attempt)

    def nonfinite(self, case: Case, redone: bool) -> None:
        """Record a step whose loss or gradient is not finite; ``redone`` says that it is tried again."""
        incident, events, result = self._folder(case), identities(case.window), case.result
        outcome = (
            f"is taken again without {len(case.suspects)} of {counted(len(events), 'event')}" if redone else "skipped"
        )
        message = f"step {self.reporter.step} {outcome}: {result.fault}; the weights are untouched"
        if events and not redone:
            named = ", ".join(f"{name} {value}" for name, value in zip(IDENTITY_COLUMNS, events[0], strict=True))
            message += f"; {counted(len(events), 'event')}, first: {named}"
        finite = torch.isfinite(result.sums).tolist()
        self.reporter.event(
            "nonfinite_skip",
            message,
            columns=list(IDENTITY_COLUMNS),
            events=events,
            incident=incident,
            stage=case.stage,
            terms=[term for term, ok in zip(self.parts.task.terms, finite, strict=True) if not ok],
            parameters=self._parameters(case),
            suspects=[event.identity for event in case.suspects],
            redone=redone,
        )
        self._triage(incident, case)

    def spike(self, case: Case, action: str) -> None:
        """Record a spike and what is done about it."""
        incident, result = self._folder(case), case.result
        self.reporter.event(
            "spike",
            f"step {self.reporter.step}: loss {result.loss:.4g} where {case.typical:.4g} was normal ({action})",
            loss=result.loss,
            median=case.typical,
            factor=result.loss / case.typical if case.typical else float("inf"),
            grad_norm=result.grad_norm,
            incident=incident,
            action=action,
            suspects=[event.identity for event in case.suspects],
            by_mask=case.found.by_mask,
        )
        self._triage(incident, case)

    def _triage(self, incident: str, case: Case) -> None:
        self.reporter.event("triage", incident=incident, cause=case.found.cause, confidence=case.found.confidence)

    def _parameters(self, case: Case) -> list[str]:
        return list(case.found.module.parameters) if case.found.module else []

    def _folder(self, case: Case) -> str:
        progress, result, config = case.progress, case.result, self.parts.config
        means = result.sums / result.counts.clamp_min(1)
        used = {event.file_index for event in case.suspects} | {row[0] for row in identities(case.window)}
        files = {index: self.parts.train_loader.source.files[index].name for index in sorted(used)}
        return self.folders.write(
            {
                "kind": case.kind,
                "step": self.reporter.step,
                "epoch": progress.epoch,
                "batch_start": progress.batch,
                "batch_stop": progress.batch + len(case.window),
                "batch_events": [batch.num_events for batch in case.window],
                "seed": config.training.seed,
                "rank": self.parts.ranks.rank,
                "lr": case.lr,
                "grad_norm": result.grad_norm,
                "loss": result.loss,
                "losses": dict(zip(self.parts.task.terms, means.tolist(), strict=True)),
                "fault": result.fault,
                "amp": config.training.amp,
                "checkpoint": {"path": self.saver.last.name, "step": self.saver.saved_step},
                "columns": list(IDENTITY_COLUMNS),
                "events": identities(case.window),
                "files": files,
                "suspects": [event.identity for event in case.suspects],
                "triage": case.found.as_dict(),
                "weights_finite": case.found.weights_finite,
                "weight_norm": case.found.weight_norm,
                "loss_history": list(case.losses),
                "grad_norm_history": list(case.grad_norms),
                "parameters": self._parameters(case),
                "cause": case.found.cause,
                "confidence": case.found.confidence,
            },
            case.window,
        )

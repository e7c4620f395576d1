"""``diagnose run`` and ``diagnose loss``: what the record of a run says about its causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, Diagnosis
from xectool.diagnosis.evidence.evidence import Evidence, gather
from xectool.diagnosis.excluded import all_left_out
from xectool.diagnosis.ranking import diagnose, leading_note, verdict
from xectool.diagnosis.reports.loss import LossReport, loss_causes, loss_report
from xectool.diagnosis.rules.divergence import RAN_AWAY
from xectool.findings import Finding


class Health:
    """Abstract: causes that were found in a run, with whatever else was asked for."""

    causes: tuple[Cause, ...]

    @property
    def bad(self) -> bool:
        """Whether a fault was found."""
        return bool(self.causes)

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


@dataclass(frozen=True)
class RunHealth(Health):
    """What all recorded evidence of a run shows.

    Attributes:
        run_dir: The run.
        state: ``running``, ``finished``, ``failed``, ``interrupted``, ``killed``, ``ended`` or ``unknown``.
        steps: Optimizer steps that count.
        verdict: One line.
        causes: Faults, most likely first, consequences after their roots.
        notes: What is worth knowing and no fault.
        rules_run: Rules that looked.
        rules_skipped: Rules that could not, with what they would have needed.
        next: Line to run next: of the first cause, the one that goes on with what was interrupted, or that of the note
            which the verdict of a sound run speaks of; empty for none.
        exclude: Setting that leaves out all events that are to blame, of all causes; empty for none.
        diverged: By how much the validation loss has run away, though it is finite; None where it has not.
        findings: Causes and notes for scripts.
    """

    run_dir: str
    state: str
    steps: int
    verdict: str
    causes: tuple[Cause, ...]
    notes: tuple[Cause, ...]
    rules_run: tuple[str, ...]
    rules_skipped: Mapping[str, str]
    next: str = ""
    exclude: str = ""
    diverged: str | None = None
    findings: tuple[Finding, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class LossHealth(LossReport, Health):
    """What is wrong with the loss of a run, since when, and how to go on.

    Attributes:
        run_dir: The run.
        verdict: One line.
        causes: Faults of the loss, most likely first.
        findings: The causes for scripts.
    """

    run_dir: str
    verdict: str
    causes: tuple[Cause, ...]
    findings: tuple[Finding, ...] = field(default=(), repr=False)


def run(run_dir: Path | str) -> RunHealth:
    """Diagnose a run from its record: live, finished, killed or resumed.

    Args:
        run_dir: Directory of the run.

    Raises:
        UsageError: The directory holds no run record, or one of a newer format.
    """
    evidence, found = _diagnosed(run_dir)
    return RunHealth(
        run_dir=str(evidence.run_dir),
        state=evidence.status.state,
        steps=evidence.steps.seen,
        verdict=found.verdict,
        causes=found.causes,
        notes=found.notes,
        rules_run=found.rules_run,
        rules_skipped=found.rules_skipped,
        next=_next(evidence, found),
        exclude=all_left_out(evidence, found.causes),
        diverged=next((cause.problem for cause in found.causes if cause.symptom == RAN_AWAY), None),
        findings=tuple(cause.finding(str(evidence.run_dir)) for cause in (*found.causes, *found.notes)),
    )


def loss(run_dir: Path | str) -> LossHealth:
    """Say what is wrong with the loss of a run, since when, and with which settings to go on.

    Args:
        run_dir: Directory of the run.

    Raises:
        UsageError: The directory holds no run record, or one of a newer format.
    """
    evidence, found = _diagnosed(run_dir)
    causes = loss_causes(found)
    report = loss_report(evidence, causes)
    text = verdict(causes, evidence) if causes else _course(evidence)
    return LossHealth(
        run_dir=str(evidence.run_dir),
        verdict=text,
        causes=causes,
        findings=tuple(cause.finding(str(evidence.run_dir)) for cause in causes),
        **vars(report),
    )


def _next(evidence: Evidence, found: Diagnosis) -> str:
    if found.causes:
        return found.causes[0].fix
    if evidence.status.state == "interrupted":
        return fixes.resume(evidence)
    note = leading_note(found.notes)
    return note.fix if note else ""


def _diagnosed(run_dir: Path | str) -> tuple[Evidence, Diagnosis]:
    evidence = gather(Path(run_dir).expanduser())
    return evidence, diagnose(evidence)


def _course(evidence: Evidence) -> str:
    steps = evidence.steps
    rows = steps.good_rows
    if not rows.size:
        return "no step was recorded"
    first, last = steps["loss"][rows[0]], steps["loss"][rows[-1]]
    return (
        f"the loss is sound: {first:.4g} at step {steps['step'][rows[0]]:.0f}, {last:.4g} at the last of {steps.seen}"
    )

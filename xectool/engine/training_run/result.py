"""What a training left behind, as the user is shown it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from xectool.config.truth_mends import is_told_of
from xectool.diagnosis.cause import Cause
from xectool.diagnosis.rules.data import NO_TRUTH
from xectool.diagnosis.rules.truth import VALIDATED
from xectool.engine.metric_tables import headlines
from xectool.findings import Finding


@dataclass(frozen=True)
class TrainResult:
    """What a training left behind.

    Attributes:
        run_dir: The run directory.
        status: ``finished``, ``early_stopped``, ``max_steps``, ``interrupted`` or ``dry_run``.
        epochs: Finished epochs.
        steps: Optimizer steps of the run.
        best_epoch: Epoch of the lowest validation loss; 0 without validation.
        metrics: Figures of the best weights on the validation events, conventional estimators included.
        checkpoint_best: Path, or None.
        checkpoint_last: Path, or None.
        nonfinite_batches: Steps skipped because a value was not finite.
        events_per_s: Training throughput of the last finished epoch, or of the first one as far as it went; None
            without a step.
        artifacts: Files written beside the checkpoints.
        diverged: By how much the validation loss has run away, though it is finite; None where it has not.
        findings: Warnings of configuration, data and tracking.
        last_lines: What stands on the screen still, where the training had one; no result key.
    """

    run_dir: str
    status: str
    epochs: int = 0
    steps: int = 0
    best_epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint_best: str | None = None
    checkpoint_last: str | None = None
    nonfinite_batches: int = 0
    events_per_s: float | None = None
    artifacts: tuple[str, ...] = ()
    diverged: str | None = None
    findings: tuple[Finding, ...] = ()
    last_lines: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name not in ("findings", "last_lines")}

    def headlines(self) -> tuple[tuple[str, str, str], list[tuple[str, object, object]]]:
        """Return columns and rows: metric with its unit, network, and the best estimate without one."""
        return headlines(self.metrics)


def is_told(cause: Cause, findings: Iterable[Finding], train_files: Container[str]) -> bool:
    """Return whether a cause is a truth that was told, with the line that mends it, before step 1."""
    if cause.symptom == NO_TRUTH:
        told = {item.problem.partition(" in ")[0] for item in findings}
        return all(part.partition(" in ")[0] in told for part in cause.problem.split("; "))
    tasks = [part.partition(":")[0] for part in cause.problem.split("; ")]
    is_unit = cause.code == "XT-TARGET-SCALE" and cause.symptom in ("target unit", "two units", VALIDATED)
    return is_unit and all(is_told_of(task, findings, train_files, cause.problem) for task in tasks)

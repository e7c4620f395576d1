"""What a training left behind, as the user is shown it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from xectool.findings import Finding
from xectool.tasks.metric_units import with_unit

# What the final table shows: the network's metric, and that of the conventional estimator on the same events.
HEADLINES = {
    "val/loss": "",
    "energy_res_68pct": "baseline_energy",
    "uvw_dist_68pct": "baseline_uvwFI",
    "angle_resolution_68pct": "baseline_angle",
    "timing_res_68pct": "baseline_timing",
    "mae_npho": "baseline_neighbour_mae_npho",
    "rmse_npho": "baseline_neighbour_rmse_npho",
    "mae_time": "",
}


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
        events_per_s: Training throughput of the last finished epoch.
        artifacts: Files written beside the checkpoints.
        findings: Warnings of configuration, data and tracking.
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
    events_per_s: float = 0.0
    artifacts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}

    def headline_rows(self) -> list[tuple[str, object, object]]:
        """Return metric with its unit, network and conventional estimator, a row a task."""
        return [
            (with_unit(metric), self.metrics[metric], self.metrics.get(baseline, ""))
            for metric, baseline in HEADLINES.items()
            if metric in self.metrics
        ]

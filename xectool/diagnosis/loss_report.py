"""The loss of a run in numbers: since when it is bad, spikes, baselines, gradient norms by epoch, and how to go on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, Diagnosis
from xectool.diagnosis.evidence import Evidence
from xectool.diagnosis.gradient_bands import GradientSummary, summarise
from xectool.diagnosis.nan_case import nan_cases
from xectool.diagnosis.plateau import TermLevel, term_levels
from xectool.diagnosis.spike_case import spike_cases

MAX_SPIKES: Final = 50
MAX_EPOCHS: Final = 200
LR_FACTOR: Final = 5.0  # F042: the rate by a factor 3 to 10
LOSS_CODES: Final = (
    "XT-NAN", "XT-SPIKE", "XT-NO-LEARNING", "XT-COLLAPSED", "XT-UNTRAINED", "XT-RESTART", "XT-AMP", "XT-INPUT-SCALE",
    "XT-GRAD", "XT-ZERO",
)  # fmt: skip


@dataclass(frozen=True)
class SpikeRow:
    """One jump of the loss."""

    step: int
    epoch: int
    loss: float
    median: float
    grad_norm: float
    lr: float
    steps: int
    recovered: bool


@dataclass(frozen=True)
class EpochGradients:
    """Gradient norms of one epoch, before clipping."""

    epoch: int
    summary: GradientSummary


@dataclass(frozen=True)
class LossReport:
    """What the record says about the loss.

    Attributes:
        since_step: First step that is bad, 0 without any.
        since_epoch: Its epoch.
        first_terms: Loss terms that left first.
        baselines: Loss terms beside their trivial value.
        spikes: The jumps.
        gradients: Gradient norms by epoch, latest epochs.
        recovery_config: Whole configuration to go on with; None where nothing is wrong.
        recovery_changes: Its differences from the run's.
        recovery_command: Command that uses it.
    """

    since_step: int
    since_epoch: int
    first_terms: tuple[str, ...]
    baselines: tuple[TermLevel, ...]
    spikes: tuple[SpikeRow, ...]
    gradients: tuple[EpochGradients, ...]
    recovery_config: Mapping[str, Any] | None
    recovery_changes: Mapping[str, Any]
    recovery_command: str


def loss_causes(diagnosis: Diagnosis) -> tuple[Cause, ...]:
    """Return the causes that are about the loss."""
    return tuple(cause for cause in diagnosis.causes if cause.code.startswith(LOSS_CODES))


def loss_report(evidence: Evidence, causes: tuple[Cause, ...]) -> LossReport:
    """Return what the record says about the loss.

    Args:
        evidence: The run.
        causes: What was found about it, most likely first.
    """
    first = nan_cases(evidence)[:1]
    steps = [cause.step for cause in causes if cause.step]
    since = min(steps, default=0)
    row = evidence.row_of(since) if since else -1
    changes = _changes(evidence, causes)
    return LossReport(
        since_step=since,
        since_epoch=int(evidence.steps["epoch"][row]) if row >= 0 else 0,
        first_terms=first[0].bad_terms if first else (),
        baselines=tuple(term_levels(evidence)),
        spikes=tuple(_spike_rows(evidence)),
        gradients=epoch_gradients(evidence),
        recovery_config=_merged(evidence.config, changes) if changes and evidence.config else None,
        recovery_changes=changes,
        recovery_command=_command(evidence, changes, since),
    )


def epoch_gradients(evidence: Evidence) -> tuple[EpochGradients, ...]:
    """Return the gradient norms of the latest epochs."""
    steps, clip = evidence.steps, float(evidence.setting("training.grad_clip", 1.0) or 0.0)
    epochs = np.unique(steps["epoch"])[-MAX_EPOCHS:]
    return tuple(
        EpochGradients(
            int(epoch),
            summarise(steps["grad_norm"][steps["epoch"] == epoch], steps["clip_coef"][steps["epoch"] == epoch], clip),
        )
        for epoch in epochs
    )


def _spike_rows(evidence: Evidence) -> list[SpikeRow]:
    steps = evidence.steps
    return [
        SpikeRow(
            step=case.step,
            epoch=int(steps["epoch"][case.row]),
            loss=case.peak,
            median=case.level,
            grad_norm=float(steps["grad_norm"][case.row]),
            lr=float(steps["lr"][case.row]),
            steps=case.width,
            recovered=case.recovered,
        )
        for case in spike_cases(evidence)[:MAX_SPIKES]
    ]


def _changes(evidence: Evidence, causes: tuple[Cause, ...]) -> dict[str, Any]:
    """Return the settings of F042, by what was found: rate and clip for what the rate did, precision, constants."""
    codes = {cause.code for cause in causes if not cause.follows}
    lr = evidence.setting("training.lr")
    found: dict[str, Any] = {}
    if not codes:
        return found
    if codes & {"XT-NAN-LR", "XT-SPIKE-LR", "XT-SPIKE-EVENT", "XT-NAN-RESUME", "XT-NAN-WEIGHTS"} and lr:
        found["training.lr"] = float(f"{fixes.plausible_lr(evidence, float(lr) / LR_FACTOR):.4g}")
        found["training.grad_clip"] = fixes.lower_clip(evidence)
    if "XT-SPIKE-RESTART" in codes:
        found["training.lr_scheduler"] = "cosine"
    if "XT-AMP-OVERFLOW" in codes:
        found["training.amp"] = "bf16"
    if "XT-INPUT-SCALE" in codes:
        found |= {
            "normalization.npho_scheme": "log1p",
            "normalization.npho_scale": 1000.0,
            "normalization.npho_scale2": 4.08,
            "normalization.time_scale": 1.14e-7,
            "normalization.time_shift": -0.46,
        }
    if "XT-NO-LEARNING" in codes and lr and float(lr) < 1e-6:
        found["training.lr"] = fixes.default_lr(evidence)
    found["mlflow.run_name"] = f"{evidence.run_dir.resolve().name[:100]}-recovered"
    return found


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(config))
    for key, value in changes.items():
        *sections, name = key.split(".")
        place = merged
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return merged


def _command(evidence: Evidence, changes: Mapping[str, Any], since: int) -> str:
    settings = [f"{key}={value}" for key, value in changes.items() if key != "mlflow.run_name"]
    if not changes:
        return ""
    if any(key.startswith("normalization") for key in changes):
        return fixes.train_again(evidence, *settings, name="recovered")
    return fixes.continue_from_best(evidence, *settings, step=since)

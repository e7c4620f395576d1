"""The loss of a run in numbers: since when it is bad, spikes, baselines, gradient norms by epoch, and how to go on."""

from __future__ import annotations

import copy
import itertools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xectool.config.document import parse_value
from xectool.diagnosis.cases.nan import nan_cases, settled_overflows
from xectool.diagnosis.cases.plateau import TermLevel, term_levels
from xectool.diagnosis.cases.spike import spike_cases
from xectool.diagnosis.cause import Cause, Diagnosis
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.gradient_bands import GradientSummary, summarise
from xectool.errors import in_shell

MAX_SPIKES: Final = 50
MAX_EPOCHS: Final = 200
LOSS_CODES: Final = (
    "XT-NAN", "XT-SPIKE", "XT-DIVERGED", "XT-NO-LEARNING", "XT-CONFIG-LR", "XT-COLLAPSED", "XT-UNTRAINED", "XT-RESTART",
    "XT-AMP", "XT-INPUT-SCALE", "XT-GRAD", "XT-ZERO", "XT-QUARANTINE",
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
        recovery_config: Whole configuration to go on with; None where nothing is wrong, or no setting is at fault.
        recovery_changes: Its differences from the run's.
        recovery_command: Command that uses it, or finds what is at fault; empty where nothing is wrong.
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
    changes = _changes(causes)
    return LossReport(
        since_step=since,
        since_epoch=int(evidence.steps["epoch"][row]) if row >= 0 else 0,
        first_terms=first[0].bad_terms if first else (),
        baselines=tuple(term_levels(evidence)),
        spikes=tuple(_spike_rows(evidence)),
        gradients=epoch_gradients(evidence, may_be_raised="training.grad_clip" not in changes),
        recovery_config=_merged(evidence.config, changes) if changes and evidence.config else None,
        recovery_changes=changes,
        recovery_command=_command(causes),
    )


def epoch_gradients(evidence: Evidence, *, may_be_raised: bool = True) -> tuple[EpochGradients, ...]:
    """Return the gradient norms of the latest epochs; no advice to raise the clip where the recovery sets it."""
    rows = ~settled_overflows(evidence)
    norms, coefficients, places = (evidence.steps[name][rows] for name in ("grad_norm", "clip_coef", "epoch"))
    clip = float(evidence.setting("training.grad_clip", 1.0) or 0.0)
    return tuple(
        EpochGradients(int(epoch), summarise(norms[rows], coefficients[rows], clip, may_be_raised=may_be_raised))
        for epoch in np.unique(places)[-MAX_EPOCHS:]
        for rows in [places == epoch]
    )


def _spike_rows(evidence: Evidence) -> list[SpikeRow]:
    steps = evidence.steps
    return [
        SpikeRow(
            step=case.step,
            epoch=int(steps["epoch"][case.row]),
            loss=case.peak,
            median=case.usual,
            grad_norm=float(steps["grad_norm"][case.row]),
            lr=float(steps["lr"][case.row]),
            steps=case.width,
            recovered=case.recovered,
        )
        for case in spike_cases(evidence)[:MAX_SPIKES]
    ]


def _changes(causes: tuple[Cause, ...]) -> dict[str, Any]:
    """Return the settings of F042, those that the lines of the roots set, and the name of the run to go on with."""
    found = {key: parse_value(text, key) for key, text in _joined(causes).items()}
    names = _after(_roots(causes)[0].fix, "--run-name") if found else []
    return found | {"mlflow.run_name": names[0]} if names else found


def _command(causes: tuple[Cause, ...]) -> str:
    """Return the line of the first root, as ``diagnose run`` gives it, with what the other roots set."""
    if not causes:
        return ""
    line = _roots(causes)[0].fix
    own = settings_of(line)
    more = [f"--set {in_shell(f'{key}={text}')}" for key, text in _joined(causes).items() if key not in own]
    return " ".join([line, *more]) if line.startswith("xectool train ") else line


def _joined(causes: tuple[Cause, ...]) -> dict[str, str]:
    """Return the settings in the lines of all roots; of one key that of the likeliest."""
    found: dict[str, str] = {}
    for cause in _roots(causes):
        found |= {key: text for key, text in settings_of(cause.fix).items() if key not in found}
    return found


def _roots(causes: tuple[Cause, ...]) -> list[Cause]:
    return [cause for cause in causes if not cause.follows] or list(causes[:1])


def settings_of(line: str) -> dict[str, str]:
    """Return the settings of a line to paste."""
    return dict(text.split("=", 1) for text in _after(line, "--set") if "=" in text)


def _after(line: str, option: str) -> list[str]:
    return [value for word, value in itertools.pairwise(shlex.split(line, comments=True)) if word == option]


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(config))
    for key, value in changes.items():
        *sections, name = key.split(".")
        place = merged
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        place[name] = value
    return merged

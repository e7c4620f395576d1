"""What to know about a recommended rate, and what to do where a ramp gives none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from xectool.findings import Finding, Severity
from xectool.training.lr_sweep.choice import Choice
from xectool.training.lr_sweep.rows import OPTIMAL, STABLE, RateRow
from xectool.training.lr_sweep.sweep import Sweep

HIGHEST_RATE = 10.0  # bound of training.lr
WARMUP_EPOCHS = 2
WIDE_BAND = 3.5  # one step of the default grid


def unsure(sweep: Sweep, path: str) -> Finding:
    """Return that the two readings of a ramp disagree, and the grid that tells."""
    decades = np.log10(sweep.rates[-1] / sweep.rates[0])
    grid = ",".join(f"{lr:.1g}" for lr in np.geomspace(sweep.rates[0], sweep.rates[-1], round(2 * decades) + 1))
    return Finding(
        "XT-LR-UNSURE",
        Severity.ERROR,
        "the two readings of the ramp, valley and a tenth of the minimum, disagree by more than a factor of four",
        where="--range",
        evidence=(f"{len(sweep.curves)} seeds of {len(sweep.rates)} steps each",),
        fix=f"xectool lr-sweep {path} --lrs {grid}",
    )


def remarks(rows: Sequence[RateRow], choice: Choice, sweep: Sweep, steps: int, path: str) -> tuple[Finding, ...]:
    """Return what to know about a recommended rate."""
    found: list[Finding] = []

    def note(problem: str, fix: str, severity: Severity = Severity.INFO) -> None:
        found.append(Finding("XT-LR-UNSURE", severity, problem, where="--lrs", fix=fix))

    if sweep.inputs.level != "ok":
        found.append(
            Finding(
                "XT-INPUT-SCALE",
                Severity.WARNING,
                f"first batch: {sweep.inputs.channel}: {sweep.inputs.reason}",
                where="normalization",
                evidence=sweep.inputs.lines(),
                fix="xectool explain normalization",
            )
        )
    if choice.band[1] > WIDE_BAND * choice.band[0]:
        text = (
            f"single seeds recommend {choice.band[0]:g} to {choice.band[1]:g}: the rate is not known better than that"
        )
        note(text, f"xectool lr-sweep {path} --seeds 4 --steps {2 * steps}", Severity.WARNING)
    good = [row for row in rows if row.verdict in (STABLE, OPTIMAL)]
    best = max(good, key=lambda row: row.loss_decrease, default=None)
    if best is not None and best is max(rows, key=lambda row: row.lr) and not len(found):
        note(f"the highest rate, {best.lr:g}, is the best: a higher one may be better", _higher(best.lr, path))
    tied = [row for row in good if best is not None and row is not best and _tie(row, best)]
    if tied and best is not None:
        lower = min(tied, key=lambda row: row.lr)
        text = (
            f"{lower.lr:g} and {best.lr:g} do as well within errors; the lower one with a warm-up is the safer choice"
        )
        note(text, f"--set training.lr={lower.lr:g} --set training.warmup_epochs={WARMUP_EPOCHS}")
    return tuple(found)


def _tie(row: RateRow, best: RateRow) -> bool:
    error = math.hypot(row.loss_decrease_error, best.loss_decrease_error)
    return row.lr < best.lr and best.loss_decrease - row.loss_decrease <= error


def _higher(lr: float, path: str) -> str:
    return f"xectool lr-sweep {path} --lrs {lr:g},{min(3 * lr, HIGHEST_RATE):g},{min(10 * lr, HIGHEST_RATE):g}"

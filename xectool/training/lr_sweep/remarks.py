"""What to know about a recommended rate, and what to do where a ramp gives none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xectool.config.rates import settings_of
from xectool.config.training import TrainingConfig
from xectool.errors import counted
from xectool.findings import Finding, Severity
from xectool.training.lr_sweep.choice import Choice
from xectool.training.lr_sweep.ramp import FEWEST, mean_losses, read_ramp
from xectool.training.lr_sweep.rows import OPTIMAL, STABLE, RateRow
from xectool.training.lr_sweep.sweep import Sweep

HIGHEST_RATE = 10.0  # bound of training.lr
WARMUP_EPOCHS = 2
WIDE_BAND = 3.5  # one step of the default grid


def unsure(sweep: Sweep, config: str) -> Finding:
    """Return why the readings of a ramp name no rate, and the sweep that tells."""
    rates, reading = sweep.rates, read_ramp(sweep.rates, mean_losses(sweep.curves))
    decades = np.log10(rates[-1] / rates[0])
    fix = "--lrs " + ",".join(f"{lr:.1g}" for lr in np.geomspace(rates[0], rates[-1], round(2 * decades) + 1))
    evidence = [f"{counted(len(sweep.curves), 'seed')} of {counted(len(rates), 'step')} each"]
    if reading is None:
        problem = f"fewer than {FEWEST} steps of the ramp can be read before the loss leaves its best far behind"
        fix = f"--range {max(rates[0] / 1e3, 1e-12):.0e}:{rates[0]:.0e}"
    elif reading.open_end and rates[-1] < HIGHEST_RATE:
        problem = (
            f"the loss is lowest at the highest rate of the ramp, {rates[-1]:g}: where it ends to fall is not seen"
        )
        fix = f"--range {rates[0]:g}:{min(100 * rates[-1], HIGHEST_RATE):g}"
    else:
        problem = (
            "the two readings of the ramp, valley and a tenth of the minimum, disagree by more than a factor of four"
        )
        valley = "none" if reading.valley is None else f"{reading.valley:.2g}"
        evidence.append(f"valley {valley}, a tenth of the minimum {reading.tenth:.2g}")
    fix = f"xectool lr-sweep {config} {fix}"
    return Finding("XT-LR-UNSURE", Severity.ERROR, problem, where="--range", evidence=tuple(evidence), fix=fix)


def none_holds(sweep: Sweep, config: str) -> Finding:
    """Return that no rate which held in the grid holds for longer, and the grid that looks lower."""
    lowest = min(row.lr for row in sweep.final_rows)
    steps = len(sweep.final_curves[0].losses)
    return Finding(
        "XT-LR-UNSURE",
        Severity.ERROR,
        f"no rate down to {lowest:g} that held for {len(sweep.curves[0].losses)} steps holds for {steps}",
        where="--final-steps",
        evidence=tuple(f"{row.lr:g}: loss {row.loss_start:.3g} to {row.loss_end:.3g}" for row in sweep.final_rows),
        fix=f"xectool lr-sweep {config} --lrs {lowest / 100:.1g},{lowest / 30:.1g},{lowest / 10:.1g} --steps {steps}",
    )


def _cut_ramp(sweep: Sweep, config: str, steps: int, seeds: int) -> Finding:
    done, reached = len(sweep.curves), len(sweep.rates)
    far = (
        f"{done} of {counted(seeds, 'seed')} done"
        if reached == steps
        else f"the first seed got to {sweep.rates[-1]:.2g}"
    )
    problem = f"interrupted in the ramp: {far}, which alone tells of no rate"
    if done == seeds:
        problem = f"interrupted in the last step of the ramp: {far}; nothing was written"
    fix = f"xectool lr-sweep {config}{sweep.asked} --steps {steps} --seeds {seeds}"
    severity = Severity.WARNING if done == seeds else Severity.ERROR
    return Finding("XT-LR-UNSURE", severity, problem, where="--range", fix=fix)


def cut_short(sweep: Sweep, config: str, steps: int, seeds: int, final_steps: int) -> Finding:
    """Return that grid, ramp or final was interrupted, and the sweep that has them whole."""
    if sweep.is_ramp:
        return _cut_ramp(sweep, config, steps, seeds)
    done, severity, where = len({curve.seed for curve in sweep.curves}), Severity.WARNING, "--final-steps"
    alone = f"{counted(steps, 'step')} a rate alone decide, of which the best rate is often too high for a long run"
    if sweep.choice is not None and sweep.interrupted:
        problem = f"interrupted before the final and the rates above {max(row.lr for row in sweep.rows):g}: {alone}"
    elif sweep.choice is not None:
        problem = f"interrupted in the final: {alone}"
    else:
        severity, where = Severity.ERROR, "--seeds"
        problem = f"interrupted in the grid: {done} of {counted(seeds, 'seed')} done, which alone tell of no rate"
    fix = f"xectool lr-sweep {config}{sweep.asked} --steps {steps} --final-steps {final_steps} --seeds {seeds}"
    return Finding("XT-LR-UNSURE", severity, problem, where=where, fix=fix)


def remarks(
    rows: Sequence[RateRow], choice: Choice, sweep: Sweep, steps: int, config: str, training: TrainingConfig
) -> tuple[Finding, ...]:
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
    low, high = choice.whole_band
    equal = _as_good(choice, rows, sweep)
    is_wide, is_lower = high > WIDE_BAND * low, bool(equal) and choice.good[0] < choice.lr
    if is_wide:
        more = f"--seeds {max(4, 2 * len({curve.seed for curve in sweep.curves}))}"
        more += "" if sweep.final_rows else f" --steps {2 * steps}"
        more += f"   # or, if the loss jumps at {choice.lr:g}: {_gentle(training, choice.good[0])}" if is_lower else ""
        note(_wide(choice, equal), f"xectool lr-sweep {config}{sweep.asked} {more}", Severity.WARNING)
    highest = max((*rows, *sweep.final_rows), key=lambda row: row.lr)
    good = [row for row in rows if row.verdict in (STABLE, OPTIMAL)]
    best = choice.best  # that of the final, where there is one; a ramp has none
    if np.isnan(best):
        best = max(good, key=lambda row: row.loss_decrease).lr if good else best
    if highest.lr == best and highest.verdict in (STABLE, OPTIMAL) and not found:
        note(f"the highest rate, {best:g}, is the best: a higher one may be better", _higher(best, config))
    if equal and not is_wide:
        lower = f"{_gentle(training, choice.good[0])}   # only if the loss jumps at {choice.lr:g}"
        note(f"{equal}{_safer(choice)}", lower if is_lower else _line(training, choice.lr))
    return tuple(found)


def _wide(choice: Choice, equal: str) -> str:
    """Return how little is known of a rate: the band of single seeds, and what does as well where that is not all."""
    low, high = choice.whole_band
    told = [equal] if equal else []
    if not equal or (low, high) != (choice.good[0], choice.good[-1]):
        told.insert(0, f"{low:g} to {high:g} are not told apart by these seeds")
    return f"{'; '.join(told)}: the rate is not known better than that{_safer(choice) if equal else ''}"


def _safer(choice: Choice) -> str:
    lower = "; a lower one, with a warm-up, is safer" if choice.good[0] < choice.lr else ""
    return f"; {choice.lr:g} is recommended{lower}"


def _as_good(choice: Choice, rows: Sequence[RateRow], sweep: Sweep) -> str:
    """Return which rates do as well as the best, where it is not alone: one by one, where one between them does not."""
    if len(choice.good) < 2:
        return ""
    lower, higher = choice.good[0], choice.good[-1]
    edge = ", the highest that was tried," if higher == max(row.lr for row in (*rows, *sweep.final_rows)) else ""
    gap = any(lower < row.lr < higher and row.lr not in choice.good for row in rows)
    which = ", ".join(f"{lr:g}" for lr in choice.good) if gap else f"{lower:g} to {higher:g}"
    return f"{which}{edge} do as well within two errors"


def _gentle(training: TrainingConfig, lr: float) -> str:
    line = _line(training, lr)
    rises = training.lr_scheduler == "onecycle" or training.warmup_epochs >= WARMUP_EPOCHS
    return line if rises or training.epochs <= WARMUP_EPOCHS else f"{line} --set training.warmup_epochs={WARMUP_EPOCHS}"


def _line(training: TrainingConfig, lr: float) -> str:
    return " ".join(f"--set {key}={value:g}" for key, value in settings_of(training, lr).items())


def _higher(lr: float, config: str) -> str:
    return f"xectool lr-sweep {config} --lrs {lr:g},{min(3 * lr, HIGHEST_RATE):g},{min(10 * lr, HIGHEST_RATE):g}"

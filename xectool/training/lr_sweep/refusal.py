"""Why a sweep names no rate, the likelier cause first: data and scale of the inputs come before the rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xectool.findings import Finding, Severity
from xectool.training.guards.inputs import InputScale
from xectool.training.lr_sweep.curves import Curve
from xectool.training.lr_sweep.ramp import falls
from xectool.training.lr_sweep.rows import EXPLODES, RateRow
from xectool.training.lr_sweep.windows import Window
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

LEARNT_SHARE = 0.98  # F045: of the loss of the best constant
DEAD_NORM = 1e-12
FEW_STEPS = 40  # the default of a grid
WIDE_RAMP = 1e-6, 1e-1


@dataclass(frozen=True)
class InputFacts:
    """Scale of the first batch, as the guard of every run judges it.

    Attributes:
        level: ``ok``, ``warning`` or ``error``.
        channel: The one that is out of scale.
        reason: In one phrase.
        channels: Numbers of each channel.
    """

    level: str
    channel: str
    reason: str
    channels: dict[str, dict[str, float]]

    @property
    def empty(self) -> bool:
        """Whether no channel has a single number to learn from."""
        return bool(self.channels) and not any(math.isfinite(facts["absmax"]) for facts in self.channels.values())

    def lines(self) -> tuple[str, ...]:
        """Return one line a channel: network units, then as in the file."""
        return tuple(
            f"{name}: |z| up to {facts['absmax']:.4g}, mean {facts['mean']:.3g}, spread {facts['std']:.3g}; in the "
            f"file {facts['raw_min']:.4g} to {facts['raw_max']:.4g}, mean {facts['raw_mean']:.4g}"
            for name, facts in self.channels.items()
        )


def input_facts(parts: RunParts, window: Window) -> InputFacts:
    """Return what the guard of the first batch says; it does not stop anything here."""
    notice = next(iter(InputScale(parts).before_step(Progress(), window)), None)
    found: dict[str, Any] = notice.data if notice is not None else {}
    return InputFacts(
        found.get("level", "ok"), found.get("channel", ""), found.get("reason", ""), found.get("channels", {})
    )


def unscaled(facts: InputFacts, config: str) -> Finding:
    """Return the finding that inputs are not on the scale of the network, or none is there: no rate means anything."""
    top = facts.channels.get(facts.channel, {}).get("absmax", math.nan)
    if not math.isfinite(top):
        return Finding(
            "XT-NAN-DATA",
            Severity.ERROR,
            f"the first batch has no numbers to learn from: {facts.channel}: {facts.reason}; a sweep says nothing",
            where="data.train_path",
            evidence=facts.lines(),
            fix=f"xectool diagnose nan-batch {config}",
        )
    return Finding(
        "XT-INPUT-SCALE",
        Severity.ERROR,
        f"input features are not normalised: {facts.channel}: {facts.reason}; |z|max = {top:.5g}; a sweep says nothing",
        where="normalization, data.train_path",
        evidence=facts.lines(),
        fix="xectool explain normalization",
    )


def refusals(
    rows: Sequence[RateRow],
    curves: Sequence[Curve],
    inputs: InputFacts,
    baseline: float,
    config: str,
    asked: str = "",
) -> tuple[Finding, ...]:
    """Return why no rate can be recommended, most likely cause first; empty where one can.

    Args:
        rows: The table.
        curves: What it was made of.
        inputs: Scale of the inputs.
        baseline: Objective of the best constant prediction; NaN where that means nothing.
        config: Path of the configuration, for the lines to paste.
        asked: Option that asks for the same rates, with a space before it; empty for the rates of the default.
    """
    found = _reason(rows, curves, baseline, (config, asked))
    if found is None:
        return ()
    if inputs.level == "ok" or found.code == "XT-NAN-DATA":
        return (found,)
    likelier = unscaled(inputs, config)
    # Where there is nothing to learn from, more steps or other rates are no cure.
    return (likelier,) if likelier.code == "XT-NAN-DATA" else (likelier, found)


def data_steps(curves: Sequence[Curve]) -> dict[int, list[int]]:
    """Return by seed the steps, from 1, that are not finite at every rate: the batch is at fault, not the rate."""
    found: dict[int, list[int]] = {}
    for seed in sorted({curve.seed for curve in curves}):
        bad = np.logical_and.reduce([curve.bad_batches for curve in curves if curve.seed == seed])
        if bad.any():
            found[seed] = [int(step) + 1 for step in np.flatnonzero(bad)]
    return found


def bad_batches(curves: Sequence[Curve], config: str) -> tuple[Finding, ...]:
    """Return a warning where some batches are not finite whatever the rate."""
    steps = data_steps(curves)
    if not steps:
        return ()
    named = "; ".join(f"seed {seed}: {', '.join(map(str, places[:8]))}" for seed, places in steps.items())
    return (
        Finding(
            "XT-NAN-DATA",
            Severity.WARNING,
            f"{sum(map(len, steps.values()))} steps are not finite at any rate, so the data are at fault, not the rate",
            where="data.train_path",
            evidence=(f"steps of {named}",),
            fix=f"xectool diagnose nan-batch {config}",
        ),
    )


def _reason(
    rows: Sequence[RateRow], curves: Sequence[Curve], baseline: float, typed: tuple[str, str]
) -> Finding | None:
    config, again = typed[0], "".join(typed)
    lowest = min(curve.lr for curve in curves)
    if all(curve.bad_batches.mean() >= 0.5 for curve in curves if curve.lr == lowest):
        return _all_nonfinite(rows, curves, config)
    norms = np.concatenate([curve.grad_norms[np.isfinite(curve.grad_norms)] for curve in curves])
    if not len(norms) or norms.max() <= DEAD_NORM:
        return _dead(config)
    if all(row.verdict == EXPLODES for row in rows):
        return _all_explode(rows, config)
    sound, is_ramp = [row for row in rows if row.verdict != EXPLODES], _is_ramp(rows, curves)
    falling = any(row.loss_decreasing and row.loss_decrease >= _least(row) for row in sound)
    if not (falling or (is_ramp and falls(curves))):
        return _all_too_low(rows, config) if _too_low(rows) else _no_decrease(rows, curves, config, again)
    best = min((row.loss_end for row in sound if math.isfinite(row.loss_end)), default=math.nan)
    if math.isfinite(baseline) and baseline > 0 and best >= LEARNT_SHARE * baseline:
        return _only_constant(best, baseline, len(curves[0].losses), again)
    return None


def _is_ramp(rows: Sequence[RateRow], curves: Sequence[Curve]) -> bool:
    return len({curve.lr for curve in curves}) < len(rows)


def _least(row: RateRow) -> float:
    return 0.01 * abs(row.loss_start)


def _all_nonfinite(rows: Sequence[RateRow], curves: Sequence[Curve], config: str) -> Finding:
    bad = sum(int((~curve.finite).sum()) for curve in curves)
    total = sum(len(curve.finite) for curve in curves)
    return Finding(
        "XT-NAN-DATA",
        Severity.ERROR,
        f"{bad} of {total} steps are not finite, at the lowest rate ({rows[0].lr:g}) as well: no rate is at fault",
        where="data.train_path, or the weights the sweep starts from",
        evidence=("a lower rate would not help: the first step is not finite before any update",)
        if not any(curve.finite[0] for curve in curves)
        else (),
        fix=f"xectool diagnose nan-batch {config}",
    )


def _dead(config: str) -> Finding:
    return Finding(
        "XT-NO-LEARNING",
        Severity.ERROR,
        "the loss is dead: its gradient is zero at every rate, so nothing that is trained changes it",
        where="tasks, model.freeze_encoder, checkpoint.init_from",
        evidence=("the truth of all events may be unknown, a weight of the loss zero, or every parameter frozen",),
        fix=f"xectool diagnose gradients {config}",
    )


def _all_explode(rows: Sequence[RateRow], config: str) -> Finding:
    lowest = rows[0].lr
    return Finding(
        "XT-CONFIG-LR",
        Severity.ERROR,
        f"the loss explodes at every rate, {lowest:g} as well",
        where="--lrs",
        evidence=tuple(f"lr {row.lr:g}: gradient norm up to {row.grad_norm_max:.4g}" for row in rows[:5]),
        fix=f"xectool lr-sweep {config} --range {max(lowest / 1e4, 1e-12):.0e}:{lowest:.0e}",
    )


def _too_low(rows: Sequence[RateRow]) -> bool:
    """Return whether the loss falls more with every higher rate: no other cause makes that."""
    falls = [row.loss_decrease for row in rows]
    return rows[-1].lr < WIDE_RAMP[1] and rows[-1].loss_decreasing and falls == sorted(set(falls)) and len(falls) > 1


def _all_too_low(rows: Sequence[RateRow], config: str) -> Finding:
    highest, most = rows[-1].lr, rows[-1].loss_decrease / abs(rows[-1].loss_start)
    return Finding(
        "XT-CONFIG-LR",
        Severity.ERROR,
        f"all {len(rows)} rates are too low: the loss falls more at each higher one, {most:.1g} of it at {highest:g}",
        where="--lrs",
        evidence=tuple(f"lr {row.lr:g}: {row.loss_decrease:+.3g} +- {row.loss_decrease_error:.2g}" for row in rows[:6]),
        fix=f"xectool lr-sweep {config} --range {max(highest, WIDE_RAMP[0]):.0e}:{WIDE_RAMP[1]:g}",
    )


def _no_decrease(rows: Sequence[RateRow], curves: Sequence[Curve], config: str, again: str) -> Finding:
    steps, is_ramp = len(curves[0].losses), _is_ramp(rows, curves)
    rose = not any(row.loss_decrease >= 0 for row in rows)
    if rows[-1].lr < WIDE_RAMP[0]:  # no number of steps helps
        following = f"xectool lr-sweep {config} --range {WIDE_RAMP[0]:g}:{WIDE_RAMP[1]:g}"
    elif steps < FEW_STEPS:
        following = f"xectool lr-sweep {again} --steps {5 * steps}"
    elif is_ramp:
        following = f"xectool diagnose gradients {config}"
    else:
        following = f"xectool lr-sweep {config} --range 1e-6:1e-1"
    return Finding(
        "XT-NO-LEARNING",
        Severity.ERROR,
        f"the loss falls at none of the {len(rows)} {'intervals' if is_ramp else 'rates'} from {rows[0].lr:g} to "
        f"{rows[-1].lr:g} in {steps} steps",
        where="--lrs",
        evidence=(
            *(f"lr {row.lr:g}: {row.loss_decrease:+.3g} +- {row.loss_decrease_error:.2g}" for row in rows[:6]),
            "the scale of the inputs was looked at first; then, in order of likelihood: too few steps, frozen "
            f"parameters, truth that does not belong to the events, rates that are all too {'high' if rose else 'low'}",
        ),
        fix=following,
    )


def _only_constant(best: float, baseline: float, steps: int, again: str) -> Finding:
    return Finding(
        "XT-NO-LEARNING",
        Severity.ERROR,
        f"no rate got {1 - LEARNT_SHARE:.0%} below the loss of a constant prediction in {steps} steps: {best:.4g} "
        f"against {baseline:.4g}",
        where="--steps",
        evidence=("so far only the mean of the truth was learnt, which any rate does",),
        fix=f"xectool lr-sweep {again} --steps {5 * steps}",
    )

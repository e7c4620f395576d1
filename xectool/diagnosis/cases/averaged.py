"""Validations that show weights which do not move, or an average that has taken in too little of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from xectool.config.rules.count import average_beyond
from xectool.diagnosis import fixes
from xectool.diagnosis.cases.plateau import (
    DEAD_STEPS,
    LAST_STEPS,
    LEAST_TRAVEL,
    TRIVIAL_SHARE,
    TermLevel,
    lowered,
    term_levels,
    travel,
)
from xectool.diagnosis.evidence.evidence import Evidence

SAME: Final = 1e-6  # of the validation loss; an epoch at a rate that trains anything changes it by per mille
NEARLY_SAME: Final = 1e-3  # the same, where next to nothing has been learned or enters the average
UNTRAINED: Final = 2.0  # times the loss of the best constant, from where the first steps of any training get away
TOO_LITTLE_OF_RUN: Final = 0.01  # that enters the average of the weights; the default takes so much in ten steps
LITTLE_OF_RUN: Final = 0.1  # the default takes so much in a hundred steps
LEARNED: Final = 0.8  # of the loss of the best constant


def same_validations(evidence: Evidence, levels: Sequence[TermLevel]) -> str:
    """Return that all validations gave the same, which weights that move do not.

    Args:
        evidence: The record of the run.
        levels: The loss of each term, which falls by much from far above the best constant where weights move at all.
    """
    known = [loss for epoch in evidence.epochs if math.isfinite(loss := epoch.metrics.get("val/loss", math.nan))]
    if len(known) < 2 or evidence.steps.good_rows.size < DEAD_STEPS or travel(evidence) < LEAST_TRAVEL / 2:
        return ""
    change = (max(known) - min(known)) / max(abs(known[0]), 1e-12)
    if change <= SAME:
        text = f"all {len(known)} validations gave the same loss, {known[0]:.6g}: the weights they look at do not move"
    else:
        text = (
            f"the losses of all {len(known)} validations, {min(known):.6g} to {max(known):.6g}, are the same within "
            f"{change:.1g} of them: the weights they look at hardly move"
        )
    if averages_too_long(evidence):
        decay = evidence.setting("training.ema_decay")
        steps = (
            f"training.ema_decay {decay} averages over {1 / (1 - decay):.3g} steps, the run has {evidence.steps.seen}"
        )
        return f"{text}: {steps}" if change <= NEARLY_SAME else ""
    untrained = (
        bool(levels)
        and not _share_of_run(evidence) < LITTLE_OF_RUN
        and all(
            level.loss > UNTRAINED * level.trivial > 0 and level.validation > UNTRAINED * level.trivial
            for level in levels
        )
    )
    return text if change <= (NEARLY_SAME if untrained else SAME) else ""


def validates_average(evidence: Evidence) -> bool:
    """Return whether what is validated are averaged weights."""
    return not math.isnan(_share_of_run(evidence))


def averages_too_long(evidence: Evidence) -> bool:
    """Return whether what is validated is an average of weights over a hundred times the steps of the run."""
    return _share_of_run(evidence) < TOO_LITTLE_OF_RUN


def averages_the_start(evidence: Evidence, levels: Sequence[TermLevel]) -> str:
    """Return that the average that is validated is mostly the first weights, while the trained ones have learned."""
    left = _share_of_run(evidence)
    steps = evidence.steps.good_rows.size
    if not left < LITTLE_OF_RUN or not levels or steps < DEAD_STEPS:
        return ""
    lately = term_levels(evidence, min(LAST_STEPS, steps // 2))  # the first half of a short run is no trained one
    learned = all(level.loss + level.loss_error < lowered(level.trivial, LEARNED) for level in lately)
    easier = [lowered(min(level.trivial, level.val_trivial), TRIVIAL_SHARE) for level in levels]
    idle = all(level.validation >= trivial for level, trivial in zip(levels, easier, strict=True))
    if not learned or not idle:
        return ""
    first = "those it started with" if evidence.setting("checkpoint.init_from") else "the first, untrained ones"
    return (
        f"training.ema_decay {evidence.setting('training.ema_decay')} has let {left:.1%} of this run into the average "
        f"of weights that is validated: the rest are {first}"
    )


def average_beyond_run(evidence: Evidence) -> str:
    """Return how much of the averaged weights, of a run that has ended, is of its first step."""
    decay, validated = evidence.setting("training.ema_decay"), evidence.setting("validation.use_ema", True)
    if not fixes.has_finished(evidence) or not isinstance(decay, int | float) or not 0 < decay < 1:
        return ""
    return average_beyond(float(decay), evidence.status.step, bool(validated))


def _share_of_run(evidence: Evidence) -> float:
    """Return about which share of the averaged weights was trained, NaN where none are validated."""
    decay = evidence.setting("training.ema_decay")
    averaged = isinstance(decay, int | float) and 0 < decay < 1 and evidence.setting("validation.use_ema", True)
    return (1 - float(decay)) * evidence.steps.seen if averaged else math.nan

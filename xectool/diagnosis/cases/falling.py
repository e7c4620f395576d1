"""Whether a loss still falls: no plateau yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from xectool.diagnosis.cases.plateau import (
    VALIDATED,
    collapsed,
    enough_to_learn,
    term_levels,
    validation_names,
)
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.statistics import median, spread

FALLING_SHARE: Final = 0.03  # of the loss, between the second and the last quarter of the run
_FALLS: Final = 3  # one after the other
_FEWEST_QUARTER: Final = 3  # validations, to be compared with three others
_FEWEST_IN_QUARTER: Final = 5  # steps


def learned_beside(evidence: Evidence, tasks: Sequence[str]) -> list[str]:
    """Return which other tasks have learned where all of these are at their constant for good, else nothing."""
    flat = {level.term: level.trivial_reached for level in term_levels(evidence) if level.tells_alone}
    stuck = bool(tasks) and all(flat.get(task, False) for task in tasks)
    done = stuck and enough_to_learn(evidence) and not still_falling(evidence)
    return [term for term, at_constant in flat.items() if done and not at_constant]


def still_falling(evidence: Evidence) -> bool:
    """Return whether the loss of the last quarter is below that of the second by more than noise: no plateau yet.

    The first quarter is left out: there a network forgets its random start, whatever it learns. Validations look at
    the same events each time, so a fall from each to the next is no noise.
    """
    validated = _validations_fall(evidence) or _all_fall(evidence) or _validations_trend(evidence)
    return validated or steps_fall(evidence)


def steps_fall(evidence: Evidence) -> bool:
    """Return the same of the losses of steps alone.

    Validations of averaged weights fall while the average leaves its random start behind, whatever is learned.
    """
    losses = evidence.steps["loss"][evidence.steps.good_rows]
    quarter = losses.size // 4
    if quarter < _FEWEST_IN_QUARTER:
        return False
    early, late = losses[quarter : 2 * quarter], losses[-quarter:]
    # 1.25 is the error of a median over that of a mean
    noise = 1.25 * math.hypot(spread(early), spread(late)) / math.sqrt(quarter)
    return median(early) - median(late) > max(FALLING_SHARE * abs(median(early)), 3.0 * noise)


def _validations_fall(evidence: Evidence) -> bool:
    """Return whether each of the last validations gave less than the one before it; the very first is left out.

    Beside a task that cannot be learned the whole falls little. A task that falls below what the best constant for the
    validated events gives does not converge to one: no constant gets there.
    """
    known = _falling(evidence, (VALIDATED,))
    return (bool(known) and known[0] - known[-1] > FALLING_SHARE * abs(known[0])) or any(
        level.below_every_constant and _falling(evidence, validation_names(level.term))
        for level in term_levels(evidence)
    )


def _all_fall(evidence: Evidence) -> bool:
    """Return whether training and validation gave less from each of the last epochs to the next, without the first.

    Few events and few epochs: one of the two may do so by chance, both seldom do. Predictions that have collapsed to a
    constant fall to no more than it gives.
    """
    if collapsed(evidence) is not None:
        return False
    both = ("train/loss", VALIDATED)
    rows = [[epoch.metrics[name] for name in both] for epoch in evidence.epochs if epoch.metrics.keys() >= {*both}]
    last = np.array(rows[1:][-_FALLS:])
    if len(last) < _FALLS or not (np.diff(last, axis=0) < 0).all():
        return False
    return bool(last[0, 0] - last[-1, 0] > FALLING_SHARE * abs(last[0, 0]))


def _validations_trend(evidence: Evidence) -> bool:
    """Return whether the last quarter of the validations gave less than the second by more than noise, and still falls.

    The steps of a small data set scatter by more than it learns in a run; its validations scatter little from one to
    the next. What converges to a constant has most of its fall behind it; so have predictions that have collapsed.
    """
    values = np.array([epoch.metrics[VALIDATED] for epoch in evidence.epochs if VALIDATED in epoch.metrics][1:])
    values = values[np.isfinite(values)]
    quarter = values.size // 4
    if quarter < _FEWEST_QUARTER or collapsed(evidence) is not None:
        return False
    starts = (quarter, values.size - 2 * quarter, values.size - quarter)
    early, before, late = (float(values[start : start + quarter].mean()) for start in starts)
    # The variance of one value is half that of a difference, of the difference of two means 2 / quarter of one value.
    noise = float(np.diff(values[quarter:]).std()) / math.sqrt(quarter)
    fall = early - late
    return fall > max(FALLING_SHARE * abs(early), 3.0 * noise) and before - late > max(fall / 3.0, 2.0 * noise)


def _falling(evidence: Evidence, names: tuple[str, ...]) -> list[float]:
    """Return the last values of a validation loss where each is less than the one before, else nothing."""
    values = [epoch.metrics[name] for epoch in evidence.epochs for name in names if name in epoch.metrics]
    known = values[1:][-_FALLS - 1 :]
    return known if len(known) > _FALLS and all(later < earlier for earlier, later in pairwise(known)) else []

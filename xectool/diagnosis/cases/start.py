"""The first steps of a run: the loss of a constant prediction, and a start that explodes."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis.cases.growth import HIGH_LR
from xectool.diagnosis.cases.plateau import term_levels
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import TRANSFER_FILE, tolerant_json
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import finite, quantile

SPIKE_FACTOR: Final = 10.0  # F040: loss above 10 x the running median
START_STEPS: Final = 20
_OF_ORDER_ONE: Final = 0.5  # loss of a number of order one, as untrained heads give, for a target of nearly nothing
_HIGH_START: Final = 3.0  # rise of the first losses that counts where the rate is beyond all reason as well


def constant_loss(evidence: Evidence, least: float = 0.0) -> float:
    """Return the mean loss of the best constant prediction, all tasks with their weights; 0 where none is on record.

    Args:
        evidence: The record of the run.
        least: What the loss of a task counts as where it is less.
    """
    levels = {level.term: max(level.trivial, least) for level in term_levels(evidence) if level.trivial > 0}
    loss = sum(number(evidence.setting(f"tasks.{term}.weight", 1.0)) * each for term, each in levels.items())
    return loss if math.isfinite(loss) else 0.0


def exploding_start(evidence: Evidence) -> NDArray[np.intp] | None:
    """Return the rows among the first 20 that lie far above the first loss, if the run explodes there.

    A sound start may rise threefold before the optimiser has its moments (MAE: 7.0 -> 22.9 -> 12.6), so ten times is
    asked for and a gradient that rises with it, and of a network that has learned nothing ten times what a constant
    reaches as well, as its first two events may lie far below that by chance, and what numbers of order one give, which
    is all that it can say where a unit makes the targets small. At a rate beyond all reason the rise alone is enough,
    or three times for most steps with a gradient that rises.
    """
    steps = evidence.steps
    rows = steps.good_rows[:START_STEPS]
    if rows.size < 3 or steps["step"][rows[0]] > 1:
        return None
    losses, norms = steps["loss"][rows], steps["grad_norm"][rows]
    first = max(abs(float(losses[0])), 1e-12)
    rise = (losses - losses[0]) / first + 1
    high_rate = bool(np.nanmax(steps["lr"][rows]) > HIGH_LR) if np.isfinite(steps["lr"][rows]).any() else False
    rising_norm = quantile(norms[1:], 0.8) > 2 * norms[0] or not np.isfinite(norms).any()
    known = SPIKE_FACTOR * constant_loss(evidence), constant_loss(evidence, _OF_ORDER_ONE)
    untrained = 0.0 if _has_learned(evidence) else max(known)
    norm_rises = finite(norms).max(initial=0.0) >= SPIKE_FACTOR * norms[0]
    beyond = norm_rises and losses.max() >= untrained
    far = bool(rise.max() >= SPIKE_FACTOR and (high_rate or beyond))
    lasting = high_rate and quantile(rise[1:], 0.5) >= _HIGH_START and rising_norm
    if not (far or lasting):
        return None
    above = rows[rise >= (SPIKE_FACTOR if far else _HIGH_START)]
    # A single high step that is over at once is a batch, not an explosion.
    return above if above.size > 1 or rows.size < 5 or high_rate else None


def _has_learned(evidence: Evidence) -> bool:
    """Return whether the run began with weights of its own kind: of another one only the encoder is lent, no heads."""
    lent = tolerant_json(evidence.run_dir / TRANSFER_FILE) if evidence.setting("checkpoint.init_from") else {}
    return bool(lent) and lent.get("source") == lent.get("target")

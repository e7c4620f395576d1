"""Rates beyond what AdamW takes, without any jump of the loss that a spike rule would see."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.averaged import validates_average
from xectool.diagnosis.cases.falling import steps_fall, still_falling
from xectool.diagnosis.cases.growth import HIGH_LR
from xectool.diagnosis.cases.plateau import term_levels
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import finite, median, spread
from xectool.diagnosis.rules.learning import other_lr
from xectool.runlog.records import EventRecord

START_STEPS: Final = 5
LEARNED_SHARE: Final = 0.9  # of what a constant prediction gives; means, as batches of few events have skewed losses
LONG: Final = 20  # steps at such a rate; half as many where there are calm ones to compare with
FEWEST: Final = 3  # of them where they go as far as so many at the largest rate AdamW takes
CALM_STEPS: Final = 20  # before the rate rose
LOST_SHARE: Final = 0.3  # of the loss before, by which it lies higher after
LOST_SIGMA: Final = 3.0

_Rows = NDArray[np.intp]


class RateBeyondReason(DiagnosisRule):
    """A rate beyond what AdamW takes leaves a loss that wanders and never falls, from the start or from a rise on."""

    code = "XT-CONFIG-LR"
    title = "the learning rate is too high for anything to be learned"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the steps are missing where they are."""
        return "" if len(evidence.steps) else "no step was recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the steps at such a rate with the first ones, those before, and the best constant prediction."""
        steps, rows = evidence.steps, evidence.steps.good_rows
        high = rows[np.nan_to_num(steps["lr"][rows]) > HIGH_LR]
        calm = rows[rows < high[0]][-CALM_STEPS:] if high.size else rows[:0]
        long = LONG if calm.size < START_STEPS else LONG // 2
        if high.size < FEWEST or float(np.sum(steps["lr"][high])) < long * HIGH_LR:
            return
        falls = steps_fall if validates_average(evidence) else still_falling
        if falls(evidence):
            return
        after = high if high.size >= long else rows[rows >= high[0]]
        late = after[after.size // 2 :]
        level, first = (float(np.mean(steps["loss"][some])) for some in (late, rows[:START_STEPS]))
        idle = _share_of_trivial(evidence, late, level / first if first > 0 else 1.0) >= LEARNED_SHARE
        lost = _lost(evidence, calm, rows[rows >= high[0]])
        if not (idle or lost):
            return
        restart = _restart(evidence, calm, int(high[0]))
        before = f"of the last {calm.size} before it" if restart else f"of the first {START_STEPS} steps"
        told = float(np.mean(steps["loss"][calm])) if restart else first
        lines = (
            f"mean loss {before} {told:.4g}, of the later ones at that rate {level:.4g}",
            *([lost] if lost else []),
            *(term.text() for term in term_levels(evidence)),
        )
        largest = float(np.nanmax(steps["lr"][high]))
        yield _from_restart(evidence, restart, lines) if restart else self._cause(evidence, largest, lines)

    def _cause(self, evidence: Evidence, rate: float, lines: tuple[str, ...]) -> Cause:
        return Cause(
            code=self.code,
            confidence=0.86,
            problem=f"nothing is learned at a learning rate of {rate:.3g}, beyond {HIGH_LR:g}",
            evidence=lines,
            fix=other_lr(evidence),
            symptom="rate",
        )


def _from_restart(evidence: Evidence, restart: EventRecord, lines: tuple[str, ...]) -> Cause:
    rise = f"{number(restart.data.get('lr_before')):.3g} -> {number(restart.data.get('lr_after')):.3g}"
    return Cause(
        code="XT-SPIKE-RESTART",
        confidence=0.9,
        problem=f"step {restart.step}: the schedule went back to a rate at which nothing is learned: lr {rise}",
        evidence=lines,
        fix=fixes.continue_from_best(
            evidence, "training.lr_scheduler=cosine", step=max(1, restart.step), name="no-restarts"
        ),
        step=max(1, restart.step),
        symptom="rate",
    )


def _restart(evidence: Evidence, calm: _Rows, row: int) -> EventRecord | None:
    """Return the restart of the schedule that brought the rate of a row, after calm steps."""
    step = int(evidence.steps["step"][row])
    found = [event for event in evidence.of("schedule_restart") if abs(event.step - step) <= 1]
    return found[-1] if found and calm.size >= START_STEPS else None


def _lost(evidence: Evidence, calm: _Rows, since: _Rows) -> str:
    """Return how the loss since the rate rose stays clearly above that of the calm steps before it, or nothing.

    The rate may have come down again by then: what is not won back is lost.
    """
    if calm.size < START_STEPS:
        return ""
    losses = evidence.steps["loss"]
    before, after = losses[calm], losses[since[since.size // 2 :]]
    # 1.25 is the error of a median over that of a mean; single batches may hold an event far from all others
    error = 1.25 * math.hypot(spread(before) / math.sqrt(before.size), spread(after) / math.sqrt(after.size))
    usual, now = median(before), median(after)
    lost = now - usual > max(LOST_SHARE * abs(usual), LOST_SIGMA * error)
    return f"median loss of the {calm.size} steps before the rate rose {usual:.4g}, later {now:.4g}" if lost else ""


def _share_of_trivial(evidence: Evidence, rows: _Rows, default: float) -> float:
    """Return the mean loss of some steps over that of the best constant, mean over the terms; else ``default``."""
    shares = [
        float(np.mean(finite(evidence.steps.terms[level.term][rows]))) / level.trivial
        for level in term_levels(evidence)
        if level.trivial > 0 and level.term in evidence.steps.terms and np.isfinite(level.loss)
    ]
    return float(np.mean(shares)) if shares else default

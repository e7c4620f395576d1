"""Losses beside what the best constant prediction gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import Series, finite, median, spread
from xectool.runlog.records import EventRecord

TRIVIAL_SHARE: Final = 0.98  # F045
MAX_STEPS: Final = 500  # F045: after two epochs or 500 steps
MAX_EPOCHS: Final = 2
TINY_LR: Final = 1e-8  # float32 holds 24 bits: a weight of 0.1 does not move by less than 6e-9
LEAST_TRAVEL: Final = 0.03
"""Sum of the learning rates before anything can be expected. AdamW moves no weight by more than about the rate in a
step, and weights start at about 1 / sqrt(fan-in), 0.03 for the widest layers here (1024)."""
MOST_OF_RUN: Final = 0.5  # of the steps; a schedule that ends at 0 is there in its last ones only
FEWEST_STEPS: Final = 100  # after the warm-up; a sound run of fewer steps may not have learned anything yet
FEWEST_EVENTS: Final = 360  # a hundred steps of two events each say less than their number
SAMPLED_FROM: Final = 40_000  # events of a validation; the best constant for so many is that of a sample of 20 000
OF_THE_SAME: Final = 0.9999  # of the loss of the best constant for all of them: both are sums of float32
OBJECTIVE: Final = "total"
"""Term of the whole objective; the only one of the sensor kinds. A young network is far above its trivial loss."""
VALIDATED: Final = "val/loss"
LAST_STEPS: Final = 50
_WILD_SIGMA: Final = 5.0
_TAIL: Final = 0.5  # of the mean loss: what is left of it without the wild steps, where the truth has a tail
_FEWEST_STEPS: Final = 20


DEAD_STEPS: Final = 20
"""Steps in a row with exactly no gradient; dropout of a whole block so often is no chance."""


def lowered(loss: float, share: float) -> float:
    """Return what a loss is once it has fallen to a share of its size, below zero as above.

    >>> lowered(2.0, 0.75), lowered(-2.0, 0.75)
    (1.5, -2.5)
    """
    return loss - (1 - share) * abs(loss)


@dataclass(frozen=True)
class TermLevel:
    """One loss term beside its trivial value.

    Attributes:
        term: Name of the term.
        loss: Mean of the last steps of training, without the excess of single wild ones.
        validation: Last validation loss of the term, NaN without any.
        trivial: Loss of the best constant prediction.
        val_trivial: The same of the validation events, which may be easier than those of training.
        num_val: Events of the validation, NaN where unknown.
        without_tail: Share of the mean loss that stays when single wild steps are bounded as in ``loss``, of the first
            steps; 1 unless the truth has a tail.
        loss_error: Standard error of ``loss``.
        validation_error: Standard error of ``validation``, as of a loss that spreads as wide as it is large.
    """

    term: str
    loss: float
    validation: float
    trivial: float
    loss_error: float = 0.0
    validation_error: float = 0.0
    val_trivial: float = math.inf
    without_tail: float = 1.0
    num_val: float = math.nan

    @property
    def below_every_constant(self) -> bool:
        """Whether the validation is below what any constant reaches on its events, or by 2 % that of a sample."""
        share = OF_THE_SAME if self.num_val < SAMPLED_FROM else TRIVIAL_SHARE
        return self.val_trivial < math.inf and self.validation < lowered(self.val_trivial, share)

    @property
    def trivial_reached(self) -> bool:
        """Whether neither training nor validation beats the constant by two per cent.

        A network that overfits beats it in training, one with strong dropout in validation; either has learned.
        """
        easier = min(self.trivial, self.val_trivial)
        known = [
            value + error >= lowered(trivial, TRIVIAL_SHARE)
            for value, error, trivial in (
                (self.loss, self.loss_error, self.trivial * self.without_tail),
                (self.validation, self.validation_error, easier),
            )
            if math.isfinite(value)
        ]
        return bool(known) and all(known)

    @property
    def tells_alone(self) -> bool:
        """Whether the level says by itself that nothing is learned; of the objective only the guard can."""
        return self.term != OBJECTIVE

    @property
    def ratio(self) -> float:
        """Loss over trivial loss."""
        return self.loss / self.trivial if self.trivial else math.nan

    def text(self) -> str:
        """Return the comparison as a line of evidence."""
        validated = f", validation {self.validation:.4g}" if math.isfinite(self.validation) else ""
        bounded = f", {self.trivial * self.without_tail:.4g} without its tail" if self.without_tail < 1 else ""
        return f"{self.term}: loss {self.loss:.4g}{validated}; best constant prediction {self.trivial:.4g}{bounded}"


def term_levels(evidence: Evidence, last: int = LAST_STEPS) -> list[TermLevel]:
    """Return the terms of which a trivial loss and a present one, of the ``last`` steps, are known."""
    baseline = evidence.last("baseline")
    terms = (baseline.data.get("terms") if baseline else None) or {}
    of_validation = (baseline.data.get("val_terms") if baseline else None) or {}
    rows = evidence.steps.good_rows[-last:]
    started = evidence.last("run_start")
    num_val = number(started.data.get("num_val")) if started else math.nan
    found = []
    for term, trivial in terms.items():
        value = number(trivial)
        if not math.isfinite(value):
            continue
        losses = evidence.steps["loss"] if term == OBJECTIVE else evidence.steps.terms.get(term)
        now, error = _mean(losses[rows]) if losses is not None and rows.size else (math.nan, 0.0)
        val_trivial = number(of_validation.get(term, math.inf))
        val_error = min(abs(value), abs(val_trivial)) / math.sqrt(num_val) if num_val > 0 else 0.0
        validation = _validation(evidence, str(term))
        if not (math.isfinite(now) or math.isfinite(validation)):
            continue
        # Of a tail the validation has to tell, too: at first a network may be far above its trivial loss.
        tail = _without_tail(evidence, losses) if losses is not None and math.isfinite(validation) else 1.0
        found.append(TermLevel(str(term), now, validation, value, error, val_error, val_trivial, tail, num_val))
    return found


def _without_tail(evidence: Evidence, losses: Series) -> float:
    """Return which share of the mean of the first losses stays when wild ones are bounded; 1 where most does."""
    first = finite(losses[evidence.steps.good_rows[:LAST_STEPS]])
    share = _mean(first)[0] / float(first.mean()) if first.size and first.mean() > 0 else 1.0
    return share if share < _TAIL else 1.0


def _mean(losses: Series) -> tuple[float, float]:
    """Return mean and standard error of losses; not the median, which lies below where batches hold few events."""
    known = finite(losses)
    if not known.size:
        return math.nan, 0.0
    bounded = np.minimum(known, median(known) + _WILD_SIGMA * spread(known))
    return float(bounded.mean()), float(bounded.std() / math.sqrt(bounded.size))


def few_events(evidence: Evidence) -> bool:
    """Return whether the steps were of so few events that a sound run need not have learned anything."""
    started = evidence.last("run_start")
    batch = number(started.data.get("effective_batch")) if started else math.nan
    return evidence.steps.seen * batch < FEWEST_EVENTS  # NaN compares false


def enough_to_learn(evidence: Evidence) -> bool:
    """Return whether the run is past the point where F045 expects a loss below the trivial one."""
    started = evidence.last("run_start")
    per_epoch = number(started.data.get("steps_per_epoch")) if started else math.nan
    warmup = number(evidence.setting("training.warmup_epochs", 0)) * (0.0 if math.isnan(per_epoch) else per_epoch)
    learned = evidence.steps.good_rows.size - warmup
    if learned < FEWEST_STEPS or travel(evidence) < LEAST_TRAVEL or few_events(evidence):
        return False
    return len(evidence.epochs) >= MAX_EPOCHS or learned >= MAX_STEPS


def collapsed(evidence: Evidence) -> EventRecord | None:
    """Return the last notice of predictions that hardly vary; None for an early one that a later validation undid."""
    event = evidence.last("collapsed")
    if event is None or not event.data.get("early"):
        return event
    return None if any(later.step > event.step for later in evidence.of("validation")) else event


def travel(evidence: Evidence) -> float:
    """Return the sum of the learning rates of the steps taken: the farthest any weight can have moved."""
    rates = evidence.steps["lr"][evidence.steps.good_rows]
    return float(np.nansum(rates)) * evidence.steps.seen / max(len(evidence.steps), 1)


def no_step_size(evidence: Evidence) -> str:
    """Return why no weight can have moved, or an empty string."""
    rates = evidence.steps["lr"][evidence.steps.good_rows]
    rates = rates[np.isfinite(rates)]
    still = rates <= TINY_LR
    if rates.size < _FEWEST_STEPS or float(still.mean()) <= MOST_OF_RUN:
        return ""
    return (
        f"the learning rate is at most {rates[still].max():.3g} in {int(still.sum())} of {rates.size} steps: "
        "float32 weights do not move by it"
    )


def _validation(evidence: Evidence, term: str) -> float:
    for epoch in reversed(evidence.epochs):
        for name in validation_names(term):
            if name in epoch.metrics:
                return float(epoch.metrics[name])
    return math.nan


def validation_names(term: str) -> tuple[str, ...]:
    """Return the names that the validation loss of a term may have."""
    return (VALIDATED,) if term == OBJECTIVE else (f"val/{term}/loss", f"val/loss_{term}")

"""How loss, gradient and learning rate moved before something went wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.statistics import Series, finite, median, quantile

LOOK_BACK: Final = 50  # F033: steps over which the gradient norm must have grown
GROWN: Final = 10.0  # F033: by this factor
HIGH_LR: Final = 1e-2  # CFG-29: no plausible rate for AdamW above it
LARGEST_INPUT: Final = 10.0  # F033 (a): |z| below which the inputs are not to blame
LR_JUMP: Final = 3.0  # a linear warm-up at most doubles the rate from its second step on
_FEW: Final = 8
_BACK: Final = 2.0  # times the usual: one value that stood out before it is an outlier
_RUINED: Final = 100.0  # times the lowest loss before it: weights that give such losses are not gone back to


@dataclass(frozen=True)
class Before:
    """The steps before a fault.

    Attributes:
        steps: Finite steps looked at.
        total: All finite steps before it.
        norm_growth: Largest gradient norm of the last three over the median of the older ones.
        loss_growth: The same of the loss; 1 where losses are not positive.
        lr: Learning rate at the fault.
        lr_jump: Largest rise of the learning rate from one step to the next among them, as a factor.
    """

    steps: int
    total: int
    norm_growth: float
    loss_growth: float
    lr: float
    lr_jump: float

    @property
    def grew(self) -> bool:
        """Whether the gradient norm grew as F033 asks before a learning rate may be blamed."""
        return self.norm_growth >= GROWN

    @property
    def ran_away(self) -> bool:
        """Whether the loss grew with it, as it does long before weights leave the range of floats."""
        return self.grew and self.loss_growth >= GROWN

    def text(self) -> str:
        """Return the growth as a line of evidence."""
        if not self.steps:
            return "no finite step came before"
        return (
            f"over the {self.steps} steps before, the gradient norm changed by a factor {self.norm_growth:.3g} "
            f"and the loss by {self.loss_growth:.3g}; lr {self.lr:.3g}"
        )


def before(evidence: Evidence, row: int) -> Before:
    """Return how the run moved before a row."""
    steps = evidence.steps
    near, all_before = steps.before(row, LOOK_BACK), steps.before(row, len(steps))
    norms, losses = steps["grad_norm"][near], steps["loss"][near]
    norm_growth, loss_growth = _growth(norms), _growth(losses)
    if all_before.size > 2 * LOOK_BACK:
        # Training lowers both; a slow explosion shows against the run's calm quarter, and only if both rose.
        calm_norm = _against(norms, quantile(steps["grad_norm"][all_before], 0.25))
        calm_loss = _against(losses, quantile(steps["loss"][all_before], 0.25))
        if min(calm_norm, calm_loss) >= GROWN:
            norm_growth, loss_growth = max(norm_growth, calm_norm), max(loss_growth, calm_loss)
    lr = steps["lr"][row] if row >= 0 else math.nan
    return Before(near.size, all_before.size, norm_growth, loss_growth, float(lr), lr_jump(evidence, row))


def ruined_since(evidence: Evidence, row: int) -> int:
    """Return the step from which the loss stayed far above its lowest value up to ``row``, else that of ``row``."""
    steps = evidence.steps
    rows = steps.before(row, len(steps))
    losses = steps["loss"][rows]
    if losses.size and losses.min() > 0:  # a likelihood passes through zero
        calm = int(np.flatnonzero(losses <= _RUINED * losses.min())[-1])
        row = int(rows[calm + 1]) if calm + 1 < rows.size else row
    return int(steps["step"][row])


def lr_jump(evidence: Evidence, row: int) -> float:
    """Return the largest rise of the learning rate between neighbouring steps in the 50 steps up to ``row``.

    The first three steps of a run are left out: there a warm-up doubles the rate.
    """
    rates = evidence.steps["lr"][max(3, row - LOOK_BACK) - 1 : row + 1]
    rates = rates[np.isfinite(rates) & (rates > 0)]
    return float(np.max(rates[1:] / rates[:-1])) if rates.size > 1 else 1.0


def input_absmax(evidence: Evidence) -> float:
    """Return the largest normalised input of the first batch, NaN where none was recorded.

    Where the 99 % quantile was recorded it is that one: a single corrupted event says nothing about the scale.
    """
    found = [
        number(channel.get("p99", channel.get("absmax")))
        for event in evidence.of("input_scale")
        if event.data.get("sample") != "validation"
        for channel in (event.data.get("channels") or {}).values()
        if isinstance(channel, dict)
    ]
    return max((value for value in found if not math.isnan(value)), default=math.nan)


def _growth(values: Series) -> float:
    """Return how much the largest of the last three values exceeds the median of the older ones.

    What came back to where it was did not grow: then it is the last value alone that is compared.
    """
    kept = finite(values)
    if kept.size < 2:
        return 1.0
    usual = median(kept[:1] if kept.size < _FEW else kept[:-3])
    return _against(kept[-1:] if kept[-1] <= _BACK * usual else kept, usual)


def _against(values: Series, reference: float) -> float:
    kept = finite(values)
    if not kept.size or not reference > 0:
        return 1.0
    return float(np.max(kept[-3:]) / reference)

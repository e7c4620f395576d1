"""Whether a run that came to its end ended with a finite loss that had run away."""

from __future__ import annotations

import math
from typing import Final

from xectool.diagnosis.evidence.evidence import Evidence

FACTOR: Final = 100.0
"""Of the final loss over the lowest: noise of batches stays well below it, a rate that is too high lies above."""
_LOSSES: Final = ("val/loss", "train/loss")


def divergence(evidence: Evidence) -> str:
    """Return what says that the final loss has run away; empty where it has not, or is no positive number.

    It has where the last epoch lies above the first step, which is that of untrained weights, and 100 times above
    the lowest of the first step and all epochs.
    """
    rows, epochs = evidence.steps.good_rows, evidence.epochs
    if not rows.size or not epochs:
        return ""
    first = float(evidence.steps["loss"][rows[0]])
    for name in _LOSSES:
        course = {record.epoch: record.metrics.get(name, math.nan) for record in epochs}
        course = {epoch: loss for epoch, loss in course.items() if math.isfinite(loss)}
        if epochs[-1].epoch not in course:
            continue
        best = min(course, key=lambda epoch: course[epoch])
        lowest, final = min(first, course[best]), course[epochs[-1].epoch]
        if final > first and 0 < FACTOR * lowest < final:
            where = f"epoch {best}" if course[best] < first else "step 1"
            return f"diverged: {name} ended at {final:.4g}, {final / lowest:.2g} times the {lowest:.4g} of {where}" + (
                "" if name != _LOSSES[0] else _of_best(best, course[best], lowest)
            )
    return ""


def _of_best(epoch: int, loss: float, lowest: float) -> str:
    late = ", when it had run away already" if loss > FACTOR * lowest else ""
    return f"; the best checkpoint is of epoch {epoch}, {loss:.4g}{late}"

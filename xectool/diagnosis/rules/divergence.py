"""A validation loss that has run away and is still finite, so that the training comes to its end all the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.runlog.records import EpochRecord

FACTOR: Final = 100.0
"""Of the last loss over the lowest: noise of batches stays well below it, a rate that is too high lies above."""
RAN_AWAY: Final = "ran away"  # symptom; whatever else is wrong with the run may have led to it
_LOSS: Final = "val/loss"


class Diverged(DiagnosisRule):
    """The last validation lies above the first step on record, and 100 times above the lowest of it and all epochs.

    The first step is that of untrained weights, unless the run began with those of another.
    """

    code = "XT-DIVERGED"
    title = "the validation loss has run away"

    def unseen(self, evidence: Evidence) -> str:
        """Return that a finite step or a validation is missing where it is."""
        if not evidence.steps.good_rows.size:
            return "no finite step was recorded"
        return "" if _validated(evidence) else "no validation has been recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the last validation with the first step and with the best validation."""
        row, validated = int(evidence.steps.good_rows[0]), _validated(evidence)
        first, final = float(evidence.steps["loss"][row]), validated[-1].metrics[_LOSS]
        finite = [epoch for epoch in validated if math.isfinite(epoch.metrics[_LOSS])]
        best = min(finite, key=lambda epoch: epoch.metrics[_LOSS], default=validated[-1])
        lowest = min(first, best.metrics[_LOSS])
        if not (math.isfinite(final) and final > first and 0 < FACTOR * lowest < final):
            return
        where = f"step {evidence.steps['step'][row]:.0f}" if first <= lowest else f"epoch {best.epoch}"
        since = _since(validated, FACTOR * lowest)
        is_late = since is validated[0]
        late = ", when it had run away already" if is_late else ""
        times = f"{final / lowest:.3g} times the {lowest:.4g} of {where}"
        yield Cause(
            code=self.code,
            confidence=0.9,
            problem=f"{_LOSS} has run away: {final:.4g} after epoch {validated[-1].epoch}, {times}; the best "
            f"checkpoint is of epoch {best.epoch}, {best.metrics[_LOSS]:.4g}{late}",
            evidence=_training(validated[-1]),
            fix=self._fix(evidence, since, is_late=is_late, first=first),
            step=since.step,
            symptom=RAN_AWAY,
        )

    def _fix(self, evidence: Evidence, since: EpochRecord, is_late: bool, first: float) -> str:
        """Return the run from before that with a tenth of the rate, or the look at files that were never predicted."""
        if is_late and evidence.epochs[-1].metrics.get("train/loss", math.nan) < first:
            return fixes.check_named_files(evidence, "val")
        lr = float(evidence.steps["lr"][evidence.steps.good_rows[-1]])
        return fixes.continue_from_best(evidence, *fixes.lower_lr(evidence, lr), step=since.step, name="lower-lr")


def _validated(evidence: Evidence) -> list[EpochRecord]:
    return [epoch for epoch in evidence.epochs if _LOSS in epoch.metrics]


def _since(validated: Sequence[EpochRecord], bound: float) -> EpochRecord:
    """Return the first of the last epochs that all lie above a bound."""
    since = validated[-1]
    for epoch in reversed(validated):
        if epoch.metrics[_LOSS] <= bound:
            break
        since = epoch
    return since


def _training(epoch: EpochRecord) -> tuple[str, ...]:
    loss = epoch.metrics.get("train/loss", math.nan)
    return (f"train/loss of epoch {epoch.epoch}: {loss:.4g}",) if math.isfinite(loss) else ()

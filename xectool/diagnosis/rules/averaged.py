"""An average of the weights that was longer than the run, though the weights themselves have learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.averaged import average_beyond_run
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.findings import Severity


class AverageBeyondRun(DiagnosisRule):
    """The averaged weights are largely those after the first step, and they are the ones that are used."""

    code: ClassVar[str] = "XT-EMA-LONG"
    title: ClassVar[str] = "the average of the weights spans more steps than the run had"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the run may still go on."""
        return "" if fixes.has_finished(evidence) else "the run has not finished"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the steps that the average looks back over with those of the run."""
        text = average_beyond_run(evidence)
        if text:
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem=text,
                evidence=("the weights of the last step are beside them: xectool predict CKPT DATA --weights model",),
                fix=fixes.train_again(evidence, "training.ema_decay=auto", name="averaged"),
                severity=Severity.INFO,
                symptom="averaged weights",
            )

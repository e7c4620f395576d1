"""Cuts that leave too few events to learn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.findings import Severity

FEWEST_LEFT: Final = 16  # of which no network learns more than their mean
LEAST_SHARE: Final = 0.01  # a fiducial volume is a tenth of the detector or more


class CutTooTight(DiagnosisRule):
    """What a cut leaves is a sample, and not some events."""

    code = "XT-DATA-NO-EVENTS"
    title = "a cut leaves hardly any event"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the entries before the cut were not counted."""
        started = evidence.last("run_start")
        counted = started is not None and number(started.data.get("num_entries")) > 0
        return "" if counted else "the events before the cut were not counted"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the training events with the entries of their files."""
        started = evidence.last("run_start")
        left, entries = (number(started.data.get(key)) if started else 0.0 for key in ("num_train", "num_entries"))
        if left >= LEAST_SHARE * entries and not (left < FEWEST_LEFT and left < entries / 2):
            return
        limits = {key: evidence.setting(f"data.fiducial.{key}") for key in ("u_max", "v_max", "w_min", "w_max")}
        yield Cause(
            code=self.code,
            confidence=0.9,
            problem=f"the fiducial cut leaves {left:g} of {entries:g} training events",
            evidence=(
                ", ".join(f"{key} {value:g}" for key, value in limits.items() if isinstance(value, int | float)),
            ),
            fix=fixes.train_again(evidence, "data.fiducial.enabled=false", name="uncut"),
            severity=Severity.WARNING,
            step=1,
            symptom="cut",
        )

"""Records of runs that cannot be read, in whole or in part: no rule has seen what they held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.checkpoint.names import LAST_NAME
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.rules.crash import END
from xectool.errors import counted, in_shell
from xectool.findings import Severity
from xectool.runlog.damage import record_damage
from xectool.runlog.run_status import SILENT_END

_SHOWN: Final = 4


class RecordDamaged(DiagnosisRule):
    """The record is damaged: the end of the run, its steps or other parts cannot be read."""

    code = "XT-RECORD-DAMAGED"
    title = "the record cannot be read"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a record without its end or its steps; of other damage a note."""
        status, damage = evidence.status, record_damage(evidence.run_dir)
        cut = status.unwritten and status.message == SILENT_END
        reached = max((status.step, *(event.step for event in evidence.events)))
        if cut or (damage and status.state in ("killed", "failed") and evidence.last(status.state) is None):
            yield self._cause(evidence, damage, "its record is damaged: how the run ended cannot be read", END)
        elif not evidence.steps.seen and reached > 1:  # what happens on the way to the first step is of step 1
            problem = f"the run reached step {reached}, and no step of its record can be read"
            yield self._cause(evidence, damage, problem, "record")
        elif damage:
            problem = f"parts of its record cannot be read: {damage[0]}"
            yield self._cause(evidence, damage, problem, "record", Severity.INFO)

    def _cause(
        self,
        evidence: Evidence,
        damage: tuple[str, ...],
        problem: str,
        symptom: str,
        severity: Severity = Severity.WARNING,
    ) -> Cause:
        more = [f"{counted(len(damage) - _SHOWN, 'further file')} of it"] if len(damage) > _SHOWN else []
        return Cause(
            code=self.code,
            confidence=0.97 if symptom == END else 0.9,
            problem=problem,
            evidence=(*damage[:_SHOWN], *more, "the other rules judge by what can be read alone"),
            fix=_fix(evidence, symptom) if severity is not Severity.INFO else f"xectool explain {self.code}",
            severity=severity,
            symptom=symptom,
        )


def _fix(evidence: Evidence, symptom: str) -> str:
    """Return the look at what can be read: the last checkpoint tells how far the run came."""
    last = evidence.run_dir / LAST_NAME
    if symptom == END and last.is_file():
        return f"xectool inspect-ckpt {in_shell(last)}   # how far it came"
    return f'xectool diagnose query {fixes.quoted(evidence)} "select kind, step, message from events"'

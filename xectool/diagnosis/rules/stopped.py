"""A run whose process is held from outside: nothing in it can say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence

_MOMENT_S: Final = 5.0  # for which whoever looks at stacks may hold a process


class Stopped(DiagnosisRule):
    """A signal or a debugger holds the process."""

    code = "XT-HANG-STOPPED"
    title = "the process is stopped"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a living process that is held and has recorded nothing since."""
        status, silent = evidence.status, evidence.now - evidence.status.updated
        if not evidence.held or silent < _MOMENT_S:
            return
        yield Cause(
            code=self.code,
            confidence=0.97,
            problem=f"process {status.pid} is {evidence.held} by a signal or a debugger, after step {status.step}",
            evidence=(f"its last record is {silent:.0f} s old",),
            fix=f"kill -CONT {status.pid}",
            step=status.step,
            symptom="end",
        )

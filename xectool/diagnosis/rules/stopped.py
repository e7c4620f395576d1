"""Runs that stood still when nothing in them could say so: held from outside, or on a disk that takes no word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.runlog.reader import RunReader

_MOMENT_S: Final = 5.0  # for which whoever looks at stacks may hold a process
_SAVING: Final = "checkpoint"
_LONG_FOR: Final = 10.0  # times guards.hang_s, as the watchdog waits for a file system
_HANG_S: Final = 120.0


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


class SavingHung(DiagnosisRule):
    """The file system took neither the checkpoint nor the word of the watchdog; the status page is in memory."""

    code = "XT-HANG"
    title = "the file system takes no checkpoint"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a run that was killed long after it had begun to save."""
        if evidence.status.state != "killed" or evidence.of("hang"):
            return
        limit = _LONG_FOR * (number(evidence.setting("guards.hang_s", _HANG_S)) or _HANG_S)
        for page in RunReader(evidence.run_dir).live():
            held_s = page.phase_age_s - page.heartbeat_age_s  # until its helper thread was last heard of
            if page.phase != _SAVING or not held_s > limit:
                continue
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem=f"rank {page.rank} had been saving for {held_s:.0f} s when it was killed: the file system "
                "takes no checkpoint",
                evidence=(f"after step {page.step}, limit {limit:.0f} s; its watchdog could write nothing either",),
                fix=f"df -h {fixes.quoted(evidence)}; {fixes.resume(evidence)}",
                step=page.step,
                symptom="saving",
            )
            return

"""Runs that stood still when nothing in them could say so: held from outside, or on a disk that takes no word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.evidence.kernel import HELD, process_state
from xectool.runlog.process import start_ticks
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
        if evidence.held and silent >= _MOMENT_S:
            yield self._held(status.pid, "", evidence.held, status.step, f"its last record is {silent:.0f} s old")
            return
        if status.state != "running":
            return
        for page in RunReader(evidence.run_dir).live():  # the first rank waits for this one, and is not held
            is_there = page.rank and page.same_boot and start_ticks(page.pid) == page.pid_start
            state = process_state(page.pid) if is_there and page.heartbeat_age_s >= _MOMENT_S else ""
            if state in HELD:
                beat = f"its last heartbeat is {page.heartbeat_age_s:.0f} s old; the other ranks wait for it"
                yield self._held(page.pid, f" (rank {page.rank})", state, page.step, beat)
                return

    def _held(self, pid: int, who: str, state: str, step: int, seen: str) -> Cause:
        return Cause(
            code=self.code,
            confidence=0.97,
            problem=f"process {pid}{who} is {state} by a signal or a debugger, after step {step}",
            evidence=(seen,),
            fix=f"kill -CONT {pid}",
            step=step,
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

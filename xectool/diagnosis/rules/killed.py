"""Runs whose process ended without a word: killed from outside, or by a fault in its own machine code."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.hang.fatal import last_fault
from xectool.diagnosis.rules.crash import UNSAVED_KINDS
from xectool.findings import Severity
from xectool.runlog.json_lines import LIMIT


class Killed(DiagnosisRule):
    """The process ended without a word."""

    code = "XT-KILLED"
    title = "the process was killed"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report an end without a last record, and note those that a later attempt went on from."""
        yield from _earlier(evidence)
        status = evidence.status
        if status.state != "killed":
            return
        signal = evidence.last("signal")
        lines = [f"the last record is of step {status.step}; process {status.pid} on {status.host} is gone"]
        if signal is not None:
            lines.append(f"signal {signal.data.get('name') or signal.message} was received at step {signal.step}")
        refused = signal is None and _disk_refuses_last(evidence)
        if refused:
            lines.append("the disk took no more, so that its last word may be missing, too")
        attempt = max((item.number for item in evidence.attempts), default=0)
        fault, place = last_fault(evidence.run_dir, attempt)
        if place:
            lines.append(f"its thread stood in {place}")
        yield Cause(
            code=self.code,
            confidence=0.9 if fault else 0.8,
            problem=f"the process crashed {_when(status.step)}: {fault}, in machine code below Python"
            if fault
            else f"the process was killed {_when(status.step)} (SIGKILL, out of memory or power)",
            evidence=tuple(lines),
            fix=fixes.resume(evidence),
            severity=Severity.INFO if refused else Severity.ERROR,
            step=status.step,
            symptom="end",
        )


def _earlier(evidence: Evidence) -> Iterator[Cause]:
    for ended, after in pairwise(evidence.attempts):
        if not ended.end:
            began = "began anew" if after.resumed_after is None else f"went on after step {after.resumed_after}"
            fault, place = last_fault(evidence.run_dir, ended.number)
            yield Cause(
                code=Killed.code,
                confidence=0.8,
                problem=f"attempt {ended.number} left no last word ({fault or 'killed, or nothing could be written'}), "
                f"and attempt {after.number} {began}",
                evidence=(f"its thread stood in {place}",) if place else (),
                fix=f"xectool explain {Killed.code}",
                severity=Severity.INFO,
                step=after.resumed_after or 0,
                symptom=f"end of attempt {ended.number}",
            )


def _disk_refuses_last(evidence: Evidence) -> bool:
    """Return whether the last that was to be saved was not, for want of space."""
    refused = [
        event for event in evidence.of(*UNSAVED_KINDS) if event.kind != "disk_low" and event.data.get("reason") != LIMIT
    ]
    saved = evidence.last("checkpoint")
    return bool(refused) and (saved is None or refused[-1].step >= saved.step)


def _when(step: int) -> str:
    return f"after step {step}" if step > 0 else "before its first step"

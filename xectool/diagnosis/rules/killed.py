"""Runs whose process ended without a word: killed from outside, or by a fault in its own machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.rules.crash import UNSAVED_KINDS, innermost
from xectool.findings import Severity
from xectool.runlog.json_lines import LIMIT
from xectool.runlog.storage import attempt_dir, slots_path
from xectool.runlog.worker_slots import stacks_path

_FATAL: Final = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_READER: Final = "data/worker_process.py"
_END: Final = "\nExtension modules:"  # ends a dump


class Killed(DiagnosisRule):
    """The process ended without a word."""

    code = "XT-KILLED"
    title = "the process was killed"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report an end without a last record."""
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
        fault, place = last_fault(evidence)
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


def last_fault(evidence: Evidence) -> tuple[str, str]:
    """Return what ended the last attempt by the dump of its signal handler, and where its thread stood; else empty.

    Processes that read data dump into the same file; their end is an error that the run can tell.
    """
    attempt = max((item.number for item in evidence.attempts), default=0)
    try:
        text = stacks_path(slots_path(attempt_dir(evidence.run_dir, attempt))).read_text(
            errors="replace", encoding="utf-8"
        )
    except OSError:
        return "", ""
    what, dump = _FATAL.split(text)[-2:] if _FATAL.search(text) else ("", "")
    own = dump.partition(_END)[0]
    return ("", "") if _READER in own else (what, innermost(own))


def _disk_refuses_last(evidence: Evidence) -> bool:
    """Return whether the last that was to be saved was not, for want of space."""
    refused = [
        event for event in evidence.of(*UNSAVED_KINDS) if event.kind != "disk_low" and event.data.get("reason") != LIMIT
    ]
    saved = evidence.last("checkpoint")
    return bool(refused) and (saved is None or refused[-1].step >= saved.step)


def _when(step: int) -> str:
    return f"after step {step}" if step > 0 else "before its first step"

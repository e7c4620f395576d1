"""Runs that ended before their end: killed, hung, failed, a worker gone, a disk full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence import Evidence
from xectool.diagnosis.incidents import number
from xectool.findings import Severity
from xectool.runlog.json_lines import LIMIT
from xectool.runlog.records import EventRecord

_WORKER: Final = re.compile(r"XT-LOADER-(DIED|KILLED|TIMEOUT)|DataLoader worker|[Ww]orker .*(killed|died|exited)")
_DISK: Final = re.compile(r"XT-DISK|No space left|ENOSPC|Disk quota|disk is full")
_NUMERIC: Final = re.compile(r"XT-NAN|XT-SPIKE|XT-DIVERGED|RunDiverged|non-finite")
_MEMORY: Final = re.compile(r"XT-OOM|OutOfMemory|MemoryError|out of memory")
_OWN_CODE: Final = re.compile(r"XT-[A-Z0-9-]+")
UNSAVED_KINDS: Final = ("checkpoint_failed", "disk", "disk_low", "recorder_gap")


class WorkerDead(DiagnosisRule):
    """A process that reads data died."""

    code = "XT-WORKER-DEAD"
    title = "a loader process died or hung"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Read how the run failed."""
        failure = evidence.failure
        if failure is None or not _WORKER.search(failure_text(failure)):
            return
        yield Cause(
            code=self.code,
            confidence=0.94,
            problem=f"a process that reads data is gone: {first_line(failure)}",
            evidence=(first_line(failure), f"data.num_workers {evidence.setting('data.num_workers', 0)}"),
            fix=fixes.resume(evidence, *fixes.workers(evidence, 0)),
            step=failure.step,
            symptom="end",
        )


class DiskFull(DiagnosisRule):
    """The disk takes no more."""

    code = "XT-DISK-FULL"
    title = "the disk is full or refuses"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for refused checkpoints, lost records and too little space."""
        # A record that has taken its share of the disk leaves events out as well; that is no refusal.
        events = [event for event in evidence.of(*UNSAVED_KINDS) if event.data.get("reason") != LIMIT]
        failure = evidence.failure
        if failure is not None and _DISK.search(failure_text(failure)):
            events = [*events, failure]
        if not events:
            return
        first = events[0]
        lost = first.kind != "disk_low"
        yield Cause(
            code=self.code,
            confidence=0.95 if lost else 0.85,
            problem=_disk_problem(first),
            evidence=tuple(dict.fromkeys(first_line(event) or event.kind for event in events))[:4],
            fix=f"df -h {fixes.quoted(evidence)}; {fixes.resume(evidence)}",
            severity=Severity.ERROR if failure is not None else Severity.WARNING,
            step=first.step,
            symptom="disk",
        )


class CompileKilled(DiagnosisRule):
    """The process was killed while the model was being compiled."""

    code = "XT-COMPILE-KILLED"
    title = "killed while compiling"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Look for a compilation without an end in a run that was killed."""
        begun, ended = evidence.last("compile_begin"), evidence.last("compile_end")
        if evidence.status.state != "killed" or begun is None:
            return
        if ended is not None and ended.mono >= begun.mono and ended.time >= begun.time:
            return
        if any(event.time > begun.time for event in evidence.of("validation", "checkpoint")):
            return
        yield Cause(
            code=self.code,
            confidence=0.94,
            problem="the process was killed while compiling the model, most likely for the memory of the compilers",
            evidence=("compile_begin is recorded and compile_end is not",),
            fix=f"export TORCHINDUCTOR_COMPILE_THREADS=1; {fixes.resume(evidence)}",
            step=begun.step,
            symptom="end",
        )


class Killed(DiagnosisRule):
    """The process ended without a word."""

    code = "XT-KILLED"
    title = "the process was killed"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report an end without a last record."""
        status = evidence.status
        if status.state != "killed" or not len(evidence.attempts):
            return
        signal = evidence.last("signal")
        lines = [f"the last record is of step {status.step}; process {status.pid} on {status.host} is gone"]
        if signal is not None:
            lines.append(f"signal {signal.data.get('name') or signal.message} was received at step {signal.step}")
        yield Cause(
            code=self.code,
            confidence=0.8,
            problem=f"the process was killed after step {status.step} (SIGKILL, out of memory or power)",
            evidence=tuple(lines),
            fix=fixes.resume(evidence),
            step=status.step,
            symptom="end",
        )


class Hang(DiagnosisRule):
    """The run stands still."""

    code = "XT-HANG"
    title = "the run hangs"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report a hang that the watchdog saw and that did not pass."""
        event = evidence.last("hang")
        if event is None:
            return
        later = int(evidence.steps["step"][-1]) if len(evidence.steps) else 0
        passed = later > event.step + 1 or evidence.status.state == "finished"
        slow = Severity.INFO if evidence.gone_on_after(event) else Severity.WARNING
        age, phase = number(event.data.get("age_s")), event.data.get("phase", "unknown")
        yield Cause(
            code=self.code,
            confidence=0.7 if passed else 0.95,
            problem=f"no progress for {age:.0f} s after step {event.step}, in phase {phase}",
            evidence=(event.message or "the watchdog saw it", f"stacks: {event.data.get('stacks', 'not written')}"),
            fix=f"xectool diagnose status {fixes.quoted(evidence)}",
            severity=slow if passed else Severity.ERROR,
            step=event.step,
            symptom="end",
        )


class Failed(DiagnosisRule):
    """The run failed for a reason of its own."""

    code = "XT-FAILED"
    title = "the run ended with an error"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report an error that no other rule speaks about."""
        failure = evidence.failure
        if failure is None:
            return
        text = failure_text(failure)
        # A worker, a disk and memory have rules of their own; of anything else the code of the error is the cause,
        # which the ranking joins with what led to it.
        if any(pattern.search(text) for pattern in (_WORKER, _DISK, _MEMORY)):
            return
        found = _OWN_CODE.search(text) or ("XT-NAN",) if _NUMERIC.search(text) else _OWN_CODE.search(text)
        following = str(failure.data.get("next") or "")
        yield Cause(
            code=found[0] if found else self.code,
            confidence=0.75,
            problem=f"the run ended with an error: {first_line(failure)}",
            evidence=(first_line(failure),),
            fix=following or fixes.resume(evidence),
            step=failure.step,
            symptom="end",
        )


def failure_text(failure: EventRecord) -> str:
    """Return all words of how a run failed."""
    words = (failure.message, *(str(failure.data.get(key) or "") for key in ("code", "error", "class", "where")))
    return " ".join(words)


def first_line(event: EventRecord) -> str:
    """Return the first line of what an event says."""
    return next(iter(event.message.splitlines()), "")[:300]


def _disk_problem(event: EventRecord) -> str:
    if event.kind == "disk_low":
        free, needed = number(event.data.get("free_bytes")) / 1e9, number(event.data.get("needed_bytes")) / 1e9
        return f"the disk has {free:.3g} GB left, {needed:.3g} GB are needed"
    if event.kind == "recorder_gap":
        return f"{event.data.get('lost', 'some')} records were refused by the disk"
    return f"a checkpoint could not be written: {event.data.get('reason') or first_line(event)}"

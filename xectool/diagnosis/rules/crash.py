"""Runs that ended before their end: killed, hung, failed, a worker gone, a disk full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xectool.config.inputs import split_tree
from xectool.diagnosis import fixes
from xectool.diagnosis.cases.memory_fault import OUT_OF_MEMORY
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import train_files
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.hang.fatal import innermost
from xectool.diagnosis.hang.missing import missing_rank
from xectool.errors import counted
from xectool.errors.refused_writes import TOO_LARGE
from xectool.findings import Severity
from xectool.runlog.json_lines import LIMIT
from xectool.runlog.records import EventRecord
from xectool.runlog.run_status import REFUSED_END
from xectool.runlog.storage import attempt_dir

_WORKER: Final = re.compile(r"XT-LOADER-(DIED|KILLED|TIMEOUT)|DataLoader worker|[Ww]orker .*(killed|died|exited)")
_DISK: Final = re.compile(r"XT-DISK|No space left|ENOSPC|Disk quota|disk is full|the disk took no")
_NUMERIC: Final = re.compile(r"XT-NAN|XT-SPIKE|XT-DIVERGED|RunDiverged|non-finite")
_BAD_FILE: Final = re.compile(r"'(.+?)' (?:is (?:damaged|truncated|empty)|was written over)\b")
_BAD_FILES: Final = ("XT-DATA-DAMAGED", "XT-DATA-TRUNCATED", "XT-DATA-EMPTY", "XT-DATA-CHANGED")
_OWN_CODE: Final = re.compile(r"XT-[A-Z0-9-]+")
END: Final = "end"  # symptom of a run that something has ended
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
            symptom=END,
        )


class DiskFull(DiagnosisRule):
    """The disk takes no more."""

    code = "XT-DISK-FULL"
    title = "the disk is full or refuses, or a limit on the size of a file"

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
        told = tuple(dict.fromkeys(first_line(event) or event.kind for event in events))[:4]
        problem, again = _disk_problem(first), fixes.resume(evidence)
        is_limit = any(TOO_LARGE in text for text in (problem, *told))
        yield Cause(
            code=self.code,
            confidence=0.95 if lost else 0.85,
            problem=problem,
            evidence=told,
            fix=f"ulimit -f unlimited; {again}" if is_limit else f"df -h {fixes.quoted(evidence)}; {again}",
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
            symptom=END,
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
        # What then ended the run with an error of its own is why it stood: a reader that gave no answer in time.
        told = evidence.failure is not None and _has_own_rule(failure_text(evidence.failure))
        slow = Severity.INFO if evidence.gone_on_after(event) else Severity.WARNING
        age, phase = number(event.data.get("age_s")), event.data.get("phase", "unknown")
        missing = "" if passed else missing_rank(evidence, event)
        attempt, standing = standing_at(evidence, event)
        stack = (
            f"the training thread stood in {standing}" if standing else "no stack of the training thread was written"
        )
        yield Cause(
            code=self.code,
            confidence=0.7 if passed or told else 0.95,
            problem=f"no progress for {age:.0f} s after step {event.step}, in phase {phase}"
            + f": {missing}" * bool(missing),
            evidence=(event.message or "the watchdog saw it", stack),
            fix=_hang_fix(evidence, attempt if standing else 0),
            severity=slow if passed else Severity.ERROR,
            step=event.step,
            symptom=END,
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
        # Of anything else the code of the error is the cause, which the ranking joins with what led to it.
        if _has_own_rule(text):
            return
        found = _OWN_CODE.search(text) or ("XT-NAN",) if _NUMERIC.search(text) else _OWN_CODE.search(text)
        yield Cause(
            code=found[0] if found else self.code,
            confidence=0.75,
            problem=f"the run ended with an error: {first_line(failure)}",
            evidence=(first_line(failure),),
            fix=_failure_fix(evidence, found[0] if found else "", str(failure.data.get("next") or "")),
            step=failure.step,
            symptom=END,
        )


def _has_own_rule(text: str) -> bool:
    """Return whether a failure is one of a worker, a disk or memory, of which another rule speaks."""
    return any(pattern.search(text) for pattern in (_WORKER, _DISK, OUT_OF_MEMORY))


def _failure_fix(evidence: Evidence, code: str, following: str) -> str:
    """Return what the run said to do next; a look at the state or the file where that is at fault; never this again."""
    if code in _BAD_FILES and evidence.failure is not None:
        return _look_at_file(evidence, evidence.failure)
    resumed = evidence.last("resume")
    if code == "XT-NAN-RESUME" and resumed is not None:
        return fixes.continue_from_best(evidence, step=max(1, resumed.step))
    if following and "diagnose run" not in following:
        return following
    has_begun = evidence.steps.seen or evidence.status.step or evidence.checkpoints
    return fixes.resume(evidence) if has_begun else fixes.train_again(evidence)


def _look_at_file(evidence: Evidence, failure: EventRecord) -> str:
    """Return the look at the file that ended the run; going on before it is copied again ends the same way."""
    found, again = _BAD_FILE.search(failure.message), fixes.resume(evidence)
    then = (
        f"   # {'once it is whole again' if 'was written over' in failure.message else 'copy it again'}, then: {again}"
    )
    if found is None:
        return fixes.check_named_files(evidence, "train") + then
    named = [*train_files(evidence.manifest), *train_files(evidence.manifest, "val")]
    file = next((name for name in named if found[1] in (name, split_tree(name)[0])), found[1])
    return fixes.check_files(evidence.run_dir, [file]) + then


def standing_at(evidence: Evidence, hang: EventRecord) -> tuple[int, str]:
    """Return the attempt of a hang, and the innermost call of its training thread that is not a library's.

    By the stacks the watchdog has recorded; empty where there are none.
    """
    attempt = max((item.number for item in evidence.attempts if item.started <= hang.time), default=0)
    file = attempt_dir(evidence.run_dir, attempt) / Path(str(hang.data.get("stacks") or "none")).name
    try:
        last = file.read_text(errors="replace", encoding="utf-8").rpartition("\n== ")[2]
    except OSError:
        return attempt, ""
    return attempt, innermost(last.partition("\nchild ")[0])


def _hang_fix(evidence: Evidence, attempt: int) -> str:
    """Return a look at the processes while they live, then at the stacks of an attempt; 0 where none were recorded."""
    if evidence.status.state == "running":
        return f"xectool diagnose hang {fixes.quoted(evidence)}"
    if attempt:
        return f'xectool diagnose query {fixes.quoted(evidence)} "select text from stacks where attempt = {attempt}"'
    ended = evidence.status.state != "unknown"  # on another host it may live on
    return fixes.resume(evidence) if ended else f"xectool diagnose status {fixes.quoted(evidence)}"


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
        lost = event.data.get("lost")
        return f"the disk refused {counted(lost, 'record') if isinstance(lost, int) else 'records'}"
    if event.message == REFUSED_END:
        return f"the record ends before the run: {event.message}"
    return f"a checkpoint could not be written: {event.data.get('reason') or first_line(event)}"

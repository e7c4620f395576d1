"""Runs that stand still, and some that only look so: does ``diagnose hang`` say why, within half a minute."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.live.lab import Lab, Run, Said, wait_for
from benchmarks.live.score import LIMIT_S, Answer, scenario

GROUP: Final = "hangs"
LOCKS: Final = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Expected:
    """What has to be said.

    Attributes:
        codes: Codes of which one has to come first.
        words: Each has to be in the verdict or its evidence; a number is no part of a longer one.
        bad: Whether it has to be an alarm.
        otherwise: Words that do in place of the others.
        states: States of which ``diagnose status`` has to give one to some rank or reader; none: it must be no alarm.
    """

    codes: tuple[str, ...]
    words: tuple[str, ...] = ()
    bad: bool = True
    states: tuple[str, ...] = ()
    otherwise: str = ""

    def fits(self, said: Said) -> bool:
        """Return whether a verdict is the expected one."""
        found = said.finding
        text = f"{found.get('problem')} {found.get('evidence')}"
        named = all(re.search(rf"(?<!\d){re.escape(word)}(?!\d)", text) for word in self.words)
        named = named or bool(self.otherwise and self.otherwise in text)
        right = found.get("code") in self.codes and named
        return right and said.result.get("bad") == self.bad and said.code == int(self.bad)


def asked(run: Run, expected: Expected, since: float) -> Answer:
    """Ask until the verdict is right or half a minute is over; then ask for the status, which must agree.

    Where no alarm is right, none may come before it.
    """
    said: list[Said] = []

    def right() -> bool:
        said.append(run.ask("diagnose", "hang", "RUN"))
        return expected.fits(said[-1])

    found = wait_for(right, max(0.0, since + LIMIT_S - time.monotonic()))
    seconds, code = time.monotonic() - since, said[-1].finding.get("code")
    given = f"{code}: {said[-1].result.get('verdict', said[-1].err[-200:])}"
    early = [one.finding.get("code") for one in said[:-1] if one.result.get("bad") and not expected.fits(one)]
    given += f" (first {early[0]})" if early else ""
    status = ""

    def agrees() -> bool:
        nonlocal status
        status = unlike(run, expected)
        return not status

    if not wait_for(agrees, max(0.0, since + LIMIT_S - time.monotonic()) if expected.states else 0.0):
        given += f"; status: {status}"
    return Answer(given, found and not status and seconds < LIMIT_S and (expected.bad or not early), seconds)


def unlike(run: Run, expected: Expected) -> str:
    """Return what ``diagnose status`` says where it does not agree, else nothing."""
    status = run.ask("diagnose", "status", "RUN").result
    lines = [*status.get("ranks", []), *status.get("workers", [])]
    said = [*(line["state"] for line in lines), str(status.get("verdict"))]  # a tracker has no line
    agrees = any(word in text for word in expected.states for text in said)
    agrees = agrees if expected.states else not status.get("bad")
    return "" if agrees else f"{status.get('verdict')}, {sorted({line['state'] for line in lines})}"


HELD: Final = ("late", "slow", "stuck")
READER: Final[dict[str, Any]] = {"data": {"num_workers": 2}}


@dataclass(frozen=True)
class Hang:
    """A fault that the hooks put in.

    Attributes:
        name: What is done.
        says: What is expected, in words.
        fault: Its name in the hooks.
        expected: The same as is looked for.
        sections: Of the configuration.
        nproc: Number of ranks; of several, the second has the fault.
        from_start: Whether it is there before the first step.
    """

    name: str
    says: str
    fault: str
    expected: Expected
    sections: dict[str, Any] = field(default_factory=dict)
    nproc: int = 1
    from_start: bool = False

    def act(self, lab: Lab) -> Answer:
        """Train, let it happen, and ask."""
        if self.from_start:
            lab.go.touch()
        place = {"RANK": "1"} if self.nproc > 1 else {}
        run = lab.train(lab.config(**self.sections), nproc=self.nproc, FAULT=self.fault, STEP_S="0.1", **place)
        if self.from_start:
            wait_for(lambda: run.ended or any(page.phase == "forward" for page in run.pages.values()))
        else:
            run.until_step(8)
            lab.go.touch()
        answer = asked(run, self.expected, time.monotonic())
        if self.fault == "state-d":
            lab.release()  # what stands in for the file system lives on by itself
        return answer


FAULTS: Final = (
    Hang("reader at a FIFO", "READER-IO, file named", "io", Expected(("XT-HANG-READER-IO",), ("train.root",),
         states=HELD), READER),
    Hang("reader thread at a FIFO", "READER-IO, file named", "io", Expected(("XT-HANG-READER-IO",), ("train.root",),
         states=HELD)),
    Hang("reader waits for a lock", "READER-LOCK", "lock", Expected(("XT-HANG-READER-LOCK",), ("train.root",),
         states=HELD), READER),
    Hang("reader spins", "SLOW, file named, an alarm after hang_s", "spin", Expected(("XT-HANG-SLOW",),
         ("train.root", "does not get on"), states=HELD), {**READER, "guards": {"hang_s": 10.0}}),
    Hang("reader in state D (posix_spawn)", "READER-IO", "state-d", Expected(("XT-HANG-READER-IO",), ("train.root",),
         states=HELD), READER),
    Hang("checkpoint at a FIFO", "CHECKPOINT", "checkpoint", Expected(("XT-HANG-CHECKPOINT",), states=HELD)),
    Hang("interpreter held in C", "GIL", "interpreter", Expected(("XT-HANG-GIL",), states=HELD)),
    Hang("a rank stays outside a collective", "RANK, rank 1", "step", Expected(("XT-HANG-RANK",), ("rank 1 is",),
         states=HELD), nproc=2),
    Hang("a rank skips a collective", "RANK, rank 1", "skips", Expected(("XT-HANG-RANK",),
         ("rank 1 is in another",), states=(*HELD, "killed"), otherwise="was aborted inside"), nproc=2),
    Hang("a rank has fewer batches", "UNEVEN, rank 1", "uneven", Expected(("XT-HANG-UNEVEN",), ("rank 1 has",),
         states=HELD), nproc=2),
    Hang("a rank leaves with exit code 0", "DEAD, rank 1", "leaves", Expected(("XT-HANG-DEAD",), ("rank 1",),
         states=("killed", "failed")), nproc=2),
    Hang("lazy initialisation on one rank", "LAZY, rank 1", "lazy", Expected(("XT-HANG-LAZY",), ("rank 1",),
         states=HELD), nproc=2, from_start=True),
)  # fmt: skip
for hang in FAULTS:
    scenario(GROUP, hang.name, hang.says)(hang.act)


def started(lab: Lab, *, nproc: int = 1, **sections: Any) -> Run:
    """Return a sound training in its eighth step."""
    return lab.train(lab.config(**sections), nproc=nproc, STEP_S="0.1").until_step(8)


def signalled(lab: Lab, number: int, chosen: Callable[[Run], int], expected: Expected, **sections: Any) -> Answer:
    """Send a signal to a process of a training, and ask; its number has to be named."""
    run = started(lab, **sections)
    pid = chosen(run)
    os.kill(pid, number)
    named = Expected(expected.codes, (*expected.words, str(pid)), expected.bad, expected.states)
    return asked(run, named, time.monotonic())


@scenario(GROUP, "reader killed", "READER-DEAD or DEAD, process named")
def reader_killed(lab: Lab) -> Answer:
    """Kill a reading process."""
    ends = Expected(("XT-HANG-READER-DEAD", "XT-HANG-DEAD"), states=("failed", "killed", "gone", *HELD))
    return signalled(lab, signal.SIGKILL, lambda run: run.readers()[0], ends, **READER)


@scenario(GROUP, "trainer stopped", "STOPPED, process named")
def trainer_stopped(lab: Lab) -> Answer:
    """Stop the trainer as Ctrl-Z does."""
    held = Expected(("XT-HANG-STOPPED",), states=("stopped",))
    return signalled(lab, signal.SIGSTOP, lambda run: run.pages[0].pid, held)


@scenario(GROUP, "trainer killed", "DEAD, process named")
def trainer_killed(lab: Lab) -> Answer:
    """Kill the trainer."""
    return signalled(lab, signal.SIGKILL, lambda run: run.pages[0].pid, Expected(("XT-HANG-DEAD",), states=("killed",)))


@scenario(GROUP, "tracking database locked", "TRACKER, holder named; no alarm")
def tracking_locked(lab: Lab) -> Answer:
    """Hold the lock of the sqlite file of the tracker."""
    database = lab.directory / "mlruns.db"
    run = started(lab, mlflow={"enabled": True, "tracking_uri": f"sqlite:///{database}"})
    wait_for(lambda: database.exists() and run.tracker())
    command = [sys.executable, "-c", LOCKS, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        expected = Expected(("XT-HANG-TRACKER",), (f"held by process {holder.pid}",), bad=False)
        answer = asked(run, expected, time.monotonic())
        holder.communicate("")
    return answer


def quiet(run: Run, until: Callable[[], bool], limit_s: float = 120.0) -> Answer:
    """Ask again and again until something holds; none of it may be an alarm."""
    began, codes = time.monotonic(), list[str]()
    while True:
        held = until()
        over = held or run.ended or time.monotonic() - began > limit_s
        for what in ("hang", "status"):
            said = run.ask("diagnose", what, "RUN")
            codes.append(str(said.finding.get("code", what)))
            if said.code or said.result.get("bad"):
                alarm = f"alarm after {time.monotonic() - began:.0f} s: {said.result.get('verdict', said.err[-200:])}"
                return Answer(alarm, False, time.monotonic() - began)
        if over:
            break
    given = f"{len(codes)} looks: {', '.join(dict.fromkeys(codes))}"
    return Answer(given, held and not run.ended, time.monotonic() - began)


@scenario(GROUP, "compiling", "COMPILE, no alarm")
def compiling(lab: Lab) -> Answer:
    """Have the network compiled, which takes longer than any step; asked from the first word of the run on."""
    run = lab.train(lab.config(training={"compile": "default"}), STEP_S="0.1")
    wait_for(lambda: bool(run.pages) or run.ended)
    answer = quiet(run, lambda: run.step >= 3, limit_s=500.0)  # compilers share the cores with whatever else runs
    return replace(answer, right=answer.right and "XT-HANG-COMPILE" in answer.given)


@scenario(GROUP, "healthy", "no alarm")
def healthy(lab: Lab) -> Answer:
    """A training as any other, with reading processes and short epochs."""
    run = started(lab, **READER, validation={"interval": 1})
    until = time.monotonic() + LIMIT_S
    return quiet(run, lambda: time.monotonic() > until and run.step > 1)


@scenario(GROUP, "healthy, two ranks", "no alarm")
def healthy_ranks(lab: Lab) -> Answer:
    """The same on two ranks, from the first moment on."""
    run = lab.train(lab.config(validation={"interval": 1}), nproc=2, STEP_S="0.1")
    wait_for(lambda: bool(run.pages) or run.ended)
    until = time.monotonic() + LIMIT_S
    return quiet(run, lambda: time.monotonic() > until and run.step > 1)


@scenario(GROUP, "healthy, slow batches of validation", "no alarm")
def slow_validation(lab: Lab) -> Answer:
    """A validation whose batches take eight times as long as a step."""
    run = lab.train(
        lab.config(validation={"interval": 1}, data={"batch_size": 4}), STEP_S="0.1", VALIDATION_S="4"
    ).until_step(8)
    until = time.monotonic() + LIMIT_S
    return quiet(run, lambda: time.monotonic() > until and run.step > 1)

"""G18 and G19: a thread that notices when a phase does not end, and writes down where every thread stands."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from xectool.config.guards import GuardsConfig
from xectool.data.worker_process import COMM, STACKS_SIGNAL
from xectool.errors import EXIT_WORLD
from xectool.runlog.status_page import COLLECTIVES, PHASES, StatusPage, Word
from xectool.training.guards.phase_limits import NO_DEADLINES, RANK0_PHASE, Deadlines, PhaseLimits

LOOK_EVERY_S: Final = 5.0
STARTUP_EVERY_S: Final = 0.5
OVERSLEPT_S: Final = 5.0
CHILD_WAIT_S: Final = 0.02
CHILD_LOOKS: Final = 25  # a process in an uninterruptible read answers never, any other at once
Say = Callable[..., None]


@dataclass(frozen=True)
class Stall:
    """A phase that has lasted too long.

    Attributes:
        code: ``G18`` in the loop, ``G19`` before the first step.
        phase: What the training thread does.
        age_s: How long it has.
    """

    code: str
    phase: str
    age_s: float


@dataclass(frozen=True)
class Witness:
    """Where a stall is put down.

    Attributes:
        stacks: File that gets the stacks.
        say: Called as ``say(kind, message, **data)`` from the thread.
        keep: Writes an incident folder with these facts and returns its path, or an empty string.
        next_step: Command that looks into a run that was ended.
    """

    stacks: Path
    say: Say
    keep: Callable[[Mapping[str, Any]], str] = lambda facts: ""
    next_step: str = ""


class Watchdog:
    """Watches the status page of this process while it is entered.

    Args:
        page: What the training thread says about itself.
        config: The guards section.
        witness: Where a stall is put down.
        every_s: Seconds between two looks; up to the first step they are closer, so that short phases are seen.
        deadlines: What ends the run by itself.

    Attributes:
        startup: Seconds of each phase up to the first step of this attempt, as far as they were seen.
    """

    def __init__(
        self,
        page: StatusPage,
        config: GuardsConfig,
        witness: Witness,
        every_s: float = LOOK_EVERY_S,
        deadlines: Deadlines = NO_DEADLINES,
    ) -> None:
        self.limits = PhaseLimits(config, deadlines)
        self.startup: dict[str, float] = {}
        self._page, self._config, self._witness = page, config, witness
        self._every_s = min(every_s, deadlines.first_s / 4)
        self._phase = (PHASES[page[Word.PHASE]], page[Word.PHASE_SINCE_NS])
        self._first_step = page[Word.STEP]
        self._last = (page[Word.STEP], time.monotonic())
        self._said_since = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xectool-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self, now_ns: int) -> Stall | None:
        """Return what lasts too long at a moment of the monotonic clock; each stall once."""
        page = self._page
        step, phase, since = page[Word.STEP], phase_of(page), page[Word.PHASE_SINCE_NS]
        self._note_pace(step, now_ns / 1e9)
        stepping = step != self._first_step
        if not stepping:
            self._note_phase(phase, since, now_ns)
        code = "G18" if stepping else "G19"
        age_s = (now_ns - since) / 1e9
        if since == self._said_since or not self._config.active(code):
            return None
        if phase == "done" or age_s <= self.limits.limit_s(phase, stepping):
            return None
        self._said_since = since
        return Stall(code, phase, age_s)

    def _note_pace(self, step: int, now_s: float) -> None:
        last_step, last_s = self._last
        if step > last_step:
            if last_step != self._first_step:  # the time to the first step is no pace
                self.limits.steps.append((now_s - last_s) / (step - last_step))
            self._last = (step, now_s)

    def _note_phase(self, phase: str, since_ns: int, now_ns: int) -> None:
        """Add what has passed since the last look; what began in between took over at its own beginning."""
        last_phase, last_ns = self._phase
        self._phase = (phase, now_ns)
        begun = max(last_ns, min(since_ns, now_ns))
        for name, spent in ((last_phase, begun - last_ns), (phase, now_ns - begun)):
            self.startup[name] = self.startup.get(name, 0.0) + spent / 1e9

    def _run(self) -> None:
        started, looked = False, time.monotonic()
        while not self._stop.wait(self._every_s if started else min(self._every_s, STARTUP_EVERY_S)):
            before, looked = looked, time.monotonic()
            if looked - before > self._every_s + OVERSLEPT_S:
                continue  # the whole machine stood still, or this process was stopped: it has only to wake up
            stall = self.look(time.monotonic_ns())
            if stall is not None:
                self._report(stall)
            if not started and self._page[Word.STEP] != self._first_step:
                started = True
                self._say_startup()
            self._abort_if_too_long()

    def _say_startup(self) -> None:
        if self._config.active("G19"):
            seconds = {phase: round(spent, 3) for phase, spent in self.startup.items() if spent > 0}
            self._witness.say("startup", phases=seconds, seconds=sum(seconds.values()))

    def _report(self, stall: Stall) -> None:
        stacks, reason = self._witness.stacks, f"phase {stall.phase} for {stall.age_s:.0f} s"
        table = phase_table(self.startup) if stall.code == "G19" else ""
        write_stacks(stacks, f"{reason}\n{table}" if table else reason)
        name = "no progress" if stall.code == "G18" else "the first step is not reached"
        message = f"{name}: {stall.phase} for {stall.age_s:.0f} s; the stacks of all threads are in {stacks.name}"
        facts = {"phase": stall.phase, "age_s": stall.age_s, "stacks": stacks.name}
        if table:
            facts["startup"] = dict(self.startup)
        self._witness.say("hang", message, **facts, incident=self._witness.keep(facts))

    def _abort_if_too_long(self) -> None:
        limit, page = self._config.hang_abort_s, self._page
        if limit is None or page[Word.PHASE_SINCE_NS] != self._said_since:
            return
        age_s = (time.monotonic_ns() - self._said_since) / 1e9
        if age_s < limit:
            return
        phase = phase_of(page)
        self._witness.say(
            "failed",
            f"no progress for {age_s:.0f} s in {phase}; ended by guards.hang_abort_s",
            code="XT-HANG",
            error="Hang",
            phase=phase,
            next=self._witness.next_step,
        )
        os._exit(EXIT_WORLD)  # the training thread does not answer, so nothing can be unwound


def phase_of(page: StatusPage) -> str:
    """Return what the training thread does, `RANK0_PHASE` apart from the collectives that it stands beside."""
    phase, op = PHASES[page[Word.PHASE]], page[Word.COLLECTIVE_OP]
    return RANK0_PHASE if phase == "collective" and op == COLLECTIVES.index(RANK0_PHASE) else phase


def phase_table(seconds: Mapping[str, float]) -> str:
    """Return a line a phase of the start-up, the longest first."""
    rows = sorted(seconds.items(), key=lambda item: -item[1])
    return "\n".join(f"   {phase:<12}{spent:>10.1f} s" for phase, spent in rows if spent > 0)


def write_stacks(path: Path, reason: str) -> None:
    """Append the stacks of all threads of this process, and what its children wait for."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as stream:
        stream.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} pid {os.getpid()}: {reason}\n")
        stream.flush()
        faulthandler.dump_traceback(stream, all_threads=True)
        for child in psutil.Process().children(recursive=True):
            stream.write(_child_line(child))
            stream.flush()
            if answers_with_stacks(child.pid):
                _ask_for_stacks(child.pid, path)


def _child_line(child: Any) -> str:
    try:
        status, command = child.status(), " ".join(child.cmdline())[:120]
        waits = Path(f"/proc/{child.pid}/wchan").read_text(encoding="utf-8", errors="replace")
    except (psutil.Error, OSError) as error:
        return f"child {child.pid}: {type(error).__name__}\n"
    return f"child {child.pid}: {status}, waits in {waits or '-'}: {command}\n"


def answers_with_stacks(pid: int) -> bool:
    """Return whether a process is a loader process that dumps its stacks when asked; the signal would end others."""
    process = Path(f"/proc/{pid}")
    try:
        if (process / "comm").read_text(encoding="utf-8", errors="replace").strip() != COMM:
            return False
        caught = next(
            line
            for line in (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
            if line.startswith("SigCgt:")
        )
    except OSError:  # it has ended
        return False
    return bool(int(caught.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)


def _ask_for_stacks(pid: int, path: Path) -> None:
    """Have a loader process append its stacks to the same file; wait for them a little, so that none mix."""
    begin = now = path.stat().st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACKS_SIGNAL)
    for _ in range(CHILD_LOOKS):
        time.sleep(CHILD_WAIT_S)
        last, now = now, path.stat().st_size
        if now == last > begin:
            return

"""``diagnose hang`` and ``diagnose stacks``: where every process of a run stands, and who is waited for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xectool.diagnosis.evidence import kernel
from xectool.diagnosis.hang.collectives import WAITING
from xectool.diagnosis.hang.facts import RankFacts, Reader, RunFacts, gather, run_of
from xectool.diagnosis.hang.hang import Hang
from xectool.diagnosis.hang.stacks import ProcessStacks, Target, stacks_of
from xectool.diagnosis.hang.verdict import judge
from xectool.engine.live import require_here
from xectool.errors import UsageError, in_shell
from xectool.findings import Finding, Severity
from xectool.runlog.reader import RunReader

# Verdicts on ranks that are alive, each by itself, as one that waits for another machine looks.
_BY_ITSELF: Final = ("XT-HANG-STUCK", "XT-HANG-SLOW", "XT-HANG-TRANSPORT")


@dataclass(frozen=True)
class ProcessLine:
    """One process.

    Attributes:
        role: ``rank``, ``loader``, ``tracker`` or ``process``.
        state: As the kernel gives it, ``gone`` for none.
        waiting_for: What it waits for, as far as is known.
        stack: Calls of its main thread, the innermost first.
        source: Where the stacks are from: ``py-spy``, ``built-in`` or empty.
        threads: Calls of each thread by its name.
        problem: Why there are no stacks, or none from py-spy.
    """

    pid: int
    rank: int
    role: str
    state: str
    waiting_for: str
    stack: tuple[str, ...]
    source: str
    threads: dict[str, tuple[str, ...]]
    problem: str


@dataclass(frozen=True)
class HangReport:
    """Who waits for whom.

    Attributes:
        run: The run directory; empty for a process of no run.
        verdict: One line.
        bad: Whether it does not go on by itself.
        next: What to do.
        processes: One line a process.
        findings: The verdict with its code and evidence.
    """

    run: str
    verdict: str
    bad: bool
    next: str
    processes: tuple[ProcessLine, ...]
    findings: tuple[Finding, ...]


def stacks(
    run_dir: Path | str | None = None, *, pid: int | None = None, native: bool = False
) -> tuple[ProcessLine, ...]:
    """Return the stacks of every rank and loader process of a run, or of one process and those below it.

    Args:
        run_dir: Directory of the run; live or hung.
        pid: A process, instead of a run.
        native: Whether calls of compiled code are wanted as well.

    Raises:
        UsageError: The directory holds no run record, there is no such process, or not exactly one is named.
    """
    return _processes("stacks", run_dir, pid, native)[1]


def hang(run_dir: Path | str | None = None, *, pid: int | None = None) -> HangReport:
    """Return who waits for whom in a run, live, hung or dead.

    Args:
        run_dir: Directory of the run.
        pid: One of its processes or their launcher, instead; one of no run is judged by the kernel and its stack alone.

    Raises:
        UsageError: The directory holds no run record, there is no such process, or not exactly one is named.
        UsageError: The run is on another machine.
    """
    facts, processes = _processes("hang", run_dir, pid, native=False)
    found = _judged(facts) if facts is not None else _of_tree(processes)
    severity = Severity.ERROR if found.bad else Severity.INFO
    finding = Finding(
        found.code, severity, found.verdict, f"process {found.pid}" if found.pid else "", found.why, found.next
    )
    run = str(facts.run_dir) if facts is not None else ""
    return HangReport(run, found.verdict, found.bad, found.next, processes, (finding,))


def run_named(run_dir: Path | str | None, pid: int | None, command: str) -> Path | None:
    """Return the directory of a run that is named, or that of a process; None where a process belongs to none.

    Raises:
        UsageError: Not exactly one is named; there is no such process, or it is another user's.
    """
    if (run_dir is None) == (pid is None):
        fix = f"xectool diagnose {command} RUN   # or: xectool diagnose {command} --pid P"
        raise UsageError("name a run or a process, one of them", where="command line", fix=fix)
    if run_dir is not None:
        return Path(run_dir).expanduser()
    owner = kernel.owner(pid or 0)
    if owner is None:
        raise _no_process(pid or 0)
    if os.getuid() not in (0, owner):
        raise UsageError(
            f"process {pid} belongs to another user (uid {owner}): neither its stack nor its run can be seen",
            where="--pid",
            fix="ask its owner, or log in as the owner",
            code="XT-CTL-USER",
        )
    return run_of(pid or 0)


def _processes(
    command: str, run_dir: Path | str | None, pid: int | None, native: bool
) -> tuple[RunFacts | None, tuple[ProcessLine, ...]]:
    directory = run_named(run_dir, pid, command)
    if directory is None:
        return None, _tree(pid or 0, native)
    require_here(RunReader(directory).status(), directory, f"diagnose {command} {{run}}")
    facts = gather(directory, native)
    return facts, tuple(_lines(facts))


def _judged(facts: RunFacts) -> Hang:
    """Return the verdict on the ranks of this machine; where all of them wait, those of another one are waited for."""
    found = judge(facts)
    waiting = [rank for rank in facts.ranks if rank.page.phase in (WAITING if found.bad else WAITING[:1])]
    if not facts.elsewhere or found.code not in _BY_ITSELF or len(waiting) < len(facts.ranks):
        return found
    first = facts.elsewhere[0]
    verdict = f"every rank of this machine waits in a collective for one of another machine, from rank {first} on"
    command = f"xectool diagnose hang {in_shell(facts.run_dir)}   # on the machine of rank {first}"
    return Hang("XT-HANG-RANK", verdict, (found.verdict, *found.why), command)


def _lines(facts: RunFacts) -> Iterator[ProcessLine]:
    workers = {item.pid: item for item in facts.workers}
    for rank in facts.ranks:
        yield _line(rank.page.rank, "rank", rank.view.state, _waits(rank), rank.stacks)
        in_turn = sorted(rank.readers, key=lambda item: item.slot.state == "read")
        readers = {item.slot.pid: item for item in in_turn if item.slot.pid in workers}
        for pid, reader in readers.items():
            yield _line(rank.page.rank, "loader", reader.now.state, _reads(reader), workers[pid])
    tracker = facts.tracker
    if tracker is not None:
        waits = f"process {tracker.holder} has the database locked" if tracker.holder else tracker.status
        state = tracker.view.state
        yield _line(0, "tracker", state, waits, *stacks_of([Target(tracker.pid, state)]))


def _waits(rank: RankFacts) -> str:
    page = rank.page
    doing = f"{page.collective} #{page.collective_seq}" if page.collective else page.phase
    kernel_waits = f", kernel: {rank.view.waits_in}" if rank.view.waits_in else ""
    return f"{doing} for {page.phase_age_s:.1f} s{kernel_waits}"


def _reads(reader: Reader) -> str:
    doing = reader.reading if reader.slot.state == "read" else reader.slot.state
    kernel_waits = f", kernel: {reader.now.waits_in}" if reader.now.waits_in else ""
    return f"{doing} for {reader.slot.age_s:.1f} s{kernel_waits}"


def _tree(pid: int, native: bool) -> tuple[ProcessLine, ...]:
    """Return the lines of a process of no run and of those below it."""
    views = kernel.look(dict.fromkeys([pid, *kernel.descendants(pid)], 0))
    if not views[pid].is_alive:
        raise _no_process(pid, is_zombie=views[pid].state == "zombie")
    lines, stacks = [], stacks_of([Target(number, view.state) for number, view in views.items()], native)
    for view, found in zip(views.values(), stacks, strict=True):
        waits = f"kernel: {view.waits_in}" if view.waits_in else f"{view.cpu_share:.0%} of a core"
        lines.append(_line(-1, "process", view.state, waits, found))
    return tuple(lines)


def _no_process(pid: int, is_zombie: bool = False) -> UsageError:
    ended = f"process {pid} has ended, and its parent has not asked how"
    problem = ended if is_zombie else f"there is no process {pid}"
    return UsageError(problem, where="--pid", fix="ps -ef | grep xectool   # names those there are")


def _line(rank: int, role: str, state: str, waits: str, found: ProcessStacks) -> ProcessLine:
    threads = {thread.name: tuple(str(frame) for frame in thread.frames) for thread in found.threads}
    main = tuple(str(frame) for frame in found.main.frames) if found.main else ()
    return ProcessLine(found.pid, rank, role, state, waits, main, found.source, threads, found.problem)


def _of_tree(lines: tuple[ProcessLine, ...]) -> Hang:
    """Return the verdict on a process of no run; those below it are what it waits for, such as ranks that start."""
    return _of_process(next((line for line in lines if line.state in kernel.HELD), lines[0]))


def _of_process(line: ProcessLine) -> Hang:
    why = (f"state {line.state}, {line.waiting_for}", *line.stack[:4])
    if line.state in kernel.HELD:
        return Hang(
            "XT-HANG-STOPPED", f"process {line.pid} is {line.state}", why, f"kill -CONT {line.pid}", pid=line.pid
        )
    busy = line.state == "running"
    what = "computes" if busy else "waits"
    return Hang(
        "XT-HANG-PROCESS",
        f"process {line.pid} {what}; it belongs to no run of xectool",
        why,
        f"xectool diagnose stacks --pid {line.pid}",
        False,
        pid=line.pid,
    )

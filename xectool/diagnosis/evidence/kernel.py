"""What the kernel says about the processes of a run, without asking them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from xectool.runlog.file_locks import command_of
from xectool.runlog.process import start_ticks

_POOL: Final = "compile_worker"  # of torch.compile: Python processes that start compilers, and first load PyTorch
COMPILERS: Final = ("cc1plus", "cc1", "g++", "gcc", "clang", "ld", "nvcc", "cicc", "ptxas", "triton")
BUSY: Final = 0.2  # processor seconds a second
SPY: Final = "py-spy"
HELD: Final = ("stopped", "traced")  # by a signal or a debugger
GONE: Final = ("gone", "zombie")
_LAUNCHES: Final = re.compile(r"(?:^|[\s/])(?:xectool|torchrun)(?:\s|$)|\storch\.distributed\.")
_STATES: Final = {
    "R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle",
}  # fmt: skip


@dataclass(frozen=True)
class ProcessView:
    """A process as the kernel shows it, looked at twice.

    Attributes:
        pid: Its number.
        state: ``running``, ``sleeping``, ``uninterruptible``, ``stopped``, ``traced``, ``zombie`` or ``gone``.
        waits_in: Kernel function its main thread waits in, or empty.
        cpu_share: Processor seconds a second between the two looks, over its threads.
        read_bytes_per_s: Bytes read a second, through the page cache or not; its own look at /proc counts as well.
        written_bytes_per_s: Bytes written a second, in the same way.
        delayed_share: Part of the time in which its main thread was ready to run and had no processor.
        compilers: Names of running compilers below it.
        idle_compiler: One of them, the stopped one if there is one, where none has worked between the two looks, nor
            what they have started; else None.
        command: Its command line, without passwords.
    """

    pid: int
    state: str
    waits_in: str = ""
    cpu_share: float = 0.0
    read_bytes_per_s: float = 0.0
    written_bytes_per_s: float = 0.0
    delayed_share: float = 0.0
    compilers: tuple[str, ...] = ()
    command: str = ""
    idle_compiler: ProcessView | None = None

    @property
    def is_busy(self) -> bool:
        """Whether its main thread has a processor or waits for one, or its threads use much of one."""
        return self.state == "running" or self.cpu_share > BUSY

    @property
    def is_alive(self) -> bool:
        """Whether there is such a process."""
        return self.state not in GONE


@dataclass(frozen=True)
class _Counters:
    """What the kernel has counted so far: of a process, and of the waits and turns of its main thread."""

    cpu_s: float
    read_bytes: int
    written_bytes: int
    delay_s: float
    turns: int


def look(
    starts: Mapping[int, int], over_s: float = 0.5, threads: Mapping[int, int] = MappingProxyType({})
) -> dict[int, ProcessView]:
    """Return the views of processes and of threads by their number, from two looks ``over_s`` seconds apart.

    Args:
        starts: Start in clock ticks since boot by pid; a process that began at another moment is another one. 0: any.
        over_s: Seconds between the looks.
        threads: The process of each further thread to look at: a process shows the state of its main thread only.
    """
    places = {pid: f"/proc/{pid}" for pid in starts}
    places |= {tid: f"/proc/{pid}/task/{tid}" for tid, pid in threads.items() if tid != pid}
    first = {number: _counters(place) for number, place in places.items()}
    compiling = {pid: _compilers(pid) for pid in starts}
    began = time.monotonic()
    time.sleep(over_s)
    views = {
        number: _view(number, place, starts.get(number, 0), first[number], began) for number, place in places.items()
    }
    return views | {pid: _with_compilers(views[pid], compiling[pid]) for pid in starts}


def descendants(pid: int) -> list[int]:
    """Return the processes below one, none where it is gone."""
    with contextlib.suppress(psutil.Error, ValueError):  # a number that no process can have
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def owner(pid: int) -> int | None:
    """Return the user of a process, None where it is gone."""
    with contextlib.suppress(psutil.Error, ValueError):
        return psutil.Process(pid).uids().real
    return None


def _view(pid: int, place: str, start: int, before: _Counters, began: float) -> ProcessView:
    state = _state(place)
    if state in ("", "zombie") or (start and start_ticks(pid) != start):
        return ProcessView(pid, "zombie" if state == "zombie" else "gone")
    seconds = max(time.monotonic() - began, 1e-6)
    now = _counters(place)
    return ProcessView(
        pid,
        state,
        _first_line(f"{place}/wchan").removeprefix("0"),  # "0" where it runs
        (now.cpu_s - before.cpu_s) / seconds,
        (now.read_bytes - before.read_bytes) / seconds,
        (now.written_bytes - before.written_bytes) / seconds,
        _delayed_s(before, now, seconds) / seconds if state == "running" else 0.0,
        command=command_of(pid),
    )


def _with_compilers(view: ProcessView, before: Mapping[int, _Counters]) -> ProcessView:
    """Return the view with the compilers below it, of which ``before`` holds what they had done at the first look."""
    now = _compilers(view.pid) if view.is_alive else {}
    names = {pid: _name(pid) for pid in now}
    compilers = tuple(sorted({name for name in names.values() if name.startswith((*COMPILERS, _POOL))}))
    states = {pid: process_state(pid) for pid in now}
    idle = None
    if now and now == before and "running" not in states.values():
        own = [pid for pid, name in names.items() if name.startswith(COMPILERS)]
        pid = next((pid for pid, state in states.items() if state in HELD), own[-1] if own else 0)
        if not pid:  # the pool waits for work as long as the process lives
            return replace(view, compilers=())
        idle = ProcessView(pid, states[pid], _first_line(f"/proc/{pid}/wchan").removeprefix("0"), command=names[pid])
    return replace(view, compilers=compilers, idle_compiler=idle)


def process_state(pid: int) -> str:
    """Return the state of the process's main thread; empty where there is none."""
    return _state(f"/proc/{pid}")


def held_launcher(ranks: Collection[int]) -> ProcessView | None:
    """Return the launcher of several ranks where a signal or a debugger holds it, as Ctrl-Z does, else None.

    Ranks go on without it until they meet at its store, which is not in a collective.
    """
    fields = [_first_line(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in ranks]
    parents = {int(found[1]) for found in fields if found}
    if len(fields) < 2 or len(parents) != 1:
        return None
    (parent,) = parents
    state, command = process_state(parent), command_of(parent)
    return ProcessView(parent, state, command=command) if state in HELD and _LAUNCHES.search(command) else None


def is_uninterruptible(pid: int) -> bool:
    """Return whether a thread of a process cannot be stopped, and so keeps waiting who would stop the process."""
    return any(_state(str(place)) == "uninterruptible" for place in Path(f"/proc/{pid}/task").glob("[0-9]*"))


def _state(place: str) -> str:
    text = _first_line(f"{place}/stat")
    state = _STATES.get(text.rpartition(")")[2].split()[0], "sleeping") if text else ""
    return "sleeping" if state == "traced" and _is_looked_at(place) else state


def _is_looked_at(place: str) -> bool:
    """Return whether no debugger holds a process, only somebody else's look at its stacks, which takes a moment."""
    try:
        lines = Path(f"{place}/status").read_text(errors="replace", encoding="utf-8").splitlines()
    except OSError:
        return True
    tracer = next((line.split()[1] for line in lines if line.startswith("TracerPid:")), "0")
    return tracer == "0" or _first_line(f"/proc/{tracer}/comm") in ("", SPY)


def _counters(place: str) -> _Counters:
    fields = _first_line(f"{place}/stat").rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0
    found = [int(value) for value in _first_line(f"{place}/schedstat").split()]
    delay_ns, turns = found[1:3] if len(found) == 3 else (0, 0)
    try:
        lines = Path(f"{place}/io").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # gone, or another user's
        return _Counters(cpu_s, 0, 0, delay_ns / 1e9, turns)
    counts = dict(line.split(": ") for line in lines)
    return _Counters(cpu_s, int(counts["rchar"]), int(counts["wchar"]), delay_ns / 1e9, turns)


def _delayed_s(before: _Counters, now: _Counters, seconds: float) -> float:
    """Return how long a main thread that is ready to run has waited; the kernel adds a wait up when it is over."""
    had_no_turn = before.turns == now.turns > 0 and now.cpu_s == before.cpu_s
    return seconds if had_no_turn else now.delay_s - before.delay_s


def _compilers(pid: int) -> dict[int, _Counters]:
    """Return what compilers below a process, and what they have started, have done so far; callers come first."""
    compilers = [
        child for child in descendants(pid)
        if _name(child).startswith((*COMPILERS, _POOL)) and process_state(child) not in GONE
    ]  # fmt: skip
    below = dict.fromkeys(found for child in compilers for found in (child, *descendants(child)))
    return {child: replace(_counters(f"/proc/{child}"), delay_s=0.0, turns=0) for child in below}


def _name(pid: int) -> str:
    """Return the name of a process, of one of the pool that compiles what it is there for."""
    return _POOL if f"/{_POOL}/" in _first_line(f"/proc/{pid}/cmdline") else _first_line(f"/proc/{pid}/comm")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace", encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""

"""Stacks of processes that may hang: by py-spy where that is allowed, else by their own dump; the target never waits.

py-spy stops its target while it reads, unless told not to. One that waits in the kernel cannot be stopped, and py-spy
would wait with it, so such a target is only ever read as it runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from xectool.diagnosis.evidence.kernel import GONE, HELD, is_uninterruptible
from xectool.errors import duration

BUILT_IN_SIGNAL: Final = signal.SIGQUIT
SPY_S: Final = 5.0
DUMP_S: Final = 2.0
SPIES: Final = 8  # at a time
_POLL_S: Final = 0.05
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*?)\])? \(most recent call first\):")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


@dataclass(frozen=True)
class Frame:
    """One call: function, file and the line it is at."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        """Return the call as it is shown."""
        return f"{self.function} ({_short(self.file)}:{self.line})"


@dataclass(frozen=True)
class ThreadStack:
    """The calls of one thread, the innermost first.

    Attributes:
        name: Name of the thread, or its number.
        frames: Its calls.
        holds_gil: Whether it held the interpreter lock; None where that is not known.
    """

    name: str
    frames: tuple[Frame, ...]
    holds_gil: bool | None = None


@dataclass(frozen=True)
class ProcessStacks:
    """The stacks of one process.

    Attributes:
        pid: Its number.
        source: ``py-spy``, ``built-in``, or empty where there are none.
        threads: Its threads, the main one first.
        problem: Why there are none, or why py-spy gave none.
    """

    pid: int
    source: str
    threads: tuple[ThreadStack, ...]
    problem: str = ""

    @property
    def main(self) -> ThreadStack | None:
        """The main thread."""
        return self.threads[0] if self.threads else None


@dataclass(frozen=True)
class Target:
    """A process whose stacks are wanted.

    Attributes:
        pid: Its number.
        state: Its state as `kernel.look` gives it.
        dump_into: File it appends its stacks to on SIGQUIT, where it is a process of a run.
    """

    pid: int
    state: str
    dump_into: Path | None = None


def stacks_of(targets: Sequence[Target], native: bool = False) -> list[ProcessStacks]:
    """Return the stacks of processes, in their order; those that py-spy waits for in vain are waited for together.

    Args:
        targets: The processes.
        native: Whether calls of compiled code are wanted as well.
    """
    with ThreadPoolExecutor(SPIES) as pool:
        spied = list(pool.map(lambda target: _by_spy(target.pid, target.state, native), targets))
    # one after the other: the processes of a rank write into one file
    return [_or_by_itself(target, found) for target, found in zip(targets, spied, strict=True)]


def _or_by_itself(target: Target, found: ProcessStacks) -> ProcessStacks:
    if found.threads or target.dump_into is None or target.state in GONE:
        return found
    if target.state in HELD:
        return replace(found, problem=f"{found.problem}; a {target.state} process cannot write its own")
    own = _by_itself(target.pid, target.dump_into)
    return replace(own, problem="; ".join(text for text in (found.problem, own.problem) if text))


def _by_spy(pid: int, state: str, native: bool) -> ProcessStacks:
    if state in GONE:
        return ProcessStacks(pid, "", (), "the process is gone")
    program = _spy()
    if program is None:
        return ProcessStacks(pid, "", (), "py-spy is not installed")
    plain = [program, "dump", "--json", "--pid", str(pid)]
    blocking = [] if state in HELD or is_uninterruptible(pid) else [plain]
    tries = [[*command, "--native"] for command in blocking if native] + [*blocking, [*plain, "--nonblocking"]]
    problem = ""
    for command in tries:
        threads, problem = _spied(command)
        if threads:
            return ProcessStacks(pid, "py-spy", threads)
    return ProcessStacks(pid, "", (), problem)


def _spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _spied(command: list[str]) -> tuple[tuple[ThreadStack, ...], str]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SPY_S, check=False, encoding="utf-8", errors="replace"
        )
    except subprocess.TimeoutExpired:
        return (), f"py-spy gave no answer within {duration(SPY_S)}"
    except OSError as error:
        return (), f"py-spy: {error}"
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return (), f"py-spy: {lines[0] if lines else f'exit status {done.returncode}'}"
    try:
        threads = tuple(_spied_thread(item) for item in json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        return (), f"py-spy: {type(error).__name__}"
    return tuple(sorted(threads, key=lambda thread: thread.name != "MainThread")), ""


def _spied_thread(item: dict[str, Any]) -> ThreadStack:
    frames = tuple(Frame(f["name"], f["filename"] or "", int(f["line"] or 0)) for f in item["frames"])
    return ThreadStack(str(item.get("thread_name") or item["thread_id"]), frames, bool(item["owns_gil"]))


def _by_itself(pid: int, path: Path) -> ProcessStacks:
    """Have a process of a run append its stacks to its file; the lock on its interpreter does not matter for that."""
    if not _catches(pid):
        return ProcessStacks(pid, "", (), "it does not write stacks when asked")
    begin = path.stat().st_size if path.exists() else 0
    try:
        os.kill(pid, BUILT_IN_SIGNAL)
    except OSError as error:
        return ProcessStacks(pid, "", (), f"it cannot be asked: {error.strerror}")
    text = _appended(path, begin)
    threads = tuple(parse_dump(text.splitlines()))
    return ProcessStacks(pid, "built-in" if threads else "", threads, "" if threads else "it did not answer")


def _catches(pid: int) -> bool:
    """Return whether the signal asks a process for its stacks instead of ending it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (BUILT_IN_SIGNAL - 1) & 1)


def _appended(path: Path, begin: int) -> str:
    """Return what is appended to a file, until it stops growing."""
    now, until = begin, time.monotonic() + DUMP_S
    while time.monotonic() < until:
        time.sleep(_POLL_S)
        last, now = now, path.stat().st_size if path.exists() else begin
        if now == last > begin:
            break
    if now == begin:
        return ""
    with path.open("rb") as stream:
        stream.seek(begin)
        return stream.read(now - begin).decode(errors="replace")


def parse_dump(lines: Iterable[str]) -> list[ThreadStack]:
    """Return the threads of a dump of Python's `faulthandler`, the main one, which it writes last, first."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in lines:
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if head:
            threads.append((head[2] or f"0x{head[1]}", []))
        elif frame and threads:
            threads[-1][1].append(Frame(frame[3], frame[1], int(frame[2])))
    return [ThreadStack(name, tuple(frames)) for name, frames in reversed(threads)]


def _short(path: str) -> str:
    """Return a path from its package on."""
    parts = Path(path).parts
    for mark in ("site-packages", "xectool"):
        if mark in parts:
            at = len(parts) - 1 - parts[::-1].index(mark)
            return "/".join(parts[at + (mark == "site-packages") :])
    return "/".join(parts[-2:])

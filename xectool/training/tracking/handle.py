"""The trainer's end of the mirror: start it, ask how it is, and let it finish."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import psutil

import xectool
from xectool.errors import EXIT_OK, EXIT_WORLD, DiskError, TrackerError, UsageError, duration, in_shell
from xectool.runlog.file_locks import command_of, lock_holders
from xectool.runlog.reader import RunReader
from xectool.training.tracking.settings import (
    TrackerSettings,
    TrackerState,
    load_settings,
    load_state,
    save_settings,
    save_state,
    sqlite_path,
    tracking_dir,
    without_password,
)

_LOOK_EVERY_S: Final = 1.0
_STATE_EVERY_S: Final = 10.0  # reading what the mirror wrote costs a hundred times more than asking whether it lives
_WARN_EVERY_S: Final = 300.0
_FINISHED_S: Final = 60.0
_LATE_S: Final = 8.0
_STOPPED_S: Final = 5.0  # batch systems kill within half a minute of their signal
_EXIT_BUSY: Final = 4
_QUIET: Final = {
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the mirror retries by itself, and answers in between
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "GIT_PYTHON_REFRESH": "quiet",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def _tell_nobody(text: str) -> None: ...


class TrackerHandle(Protocol):
    """What the training loop knows of tracking."""

    @property
    def pid(self) -> int:
        """Process number of the mirror, 0 without one."""

    def poll(self) -> str:
        """Return a warning for the user, at most one in five minutes, else an empty string."""

    def holder(self) -> str:
        """Return process and command that hold the database's lock, or an empty string."""

    def finish(self, timeout_s: float | None = None, told: Callable[[str], None] = _tell_nobody) -> TrackerState:
        """Let the mirror catch up and end; returns after ``timeout_s`` at the latest, whatever the database does.

        Where that takes long, ``told`` is called with what is waited for.
        """


class NullTracker:
    """Stands in where tracking is off."""

    pid = 0

    def poll(self) -> str:
        """Return no warning."""
        return ""

    def holder(self) -> str:
        """Return an empty string."""
        return ""

    def finish(self, timeout_s: float | None = None, told: Callable[[str], None] = _tell_nobody) -> TrackerState:
        """Return at once."""
        return TrackerState(status="done")


class Tracker:
    """A running mirror.

    Args:
        run_dir: Directory of the run; a `RunWriter` has been opened on it.
        settings: Where and as what the run is mirrored.
        new_run: Appear as another MLflow run although this attempt resumes one.
    """

    def __init__(self, run_dir: Path, settings: TrackerSettings, *, new_run: bool = False) -> None:
        self._run_dir = run_dir
        self._next_look = self._next_state = 0.0
        self._warn_after_s = settings.warn_after_s
        self._database = sqlite_path(settings.uri)
        save_settings(run_dir, settings, new_run=new_run)
        self._process = _start(run_dir, "--parent", str(os.getpid()))
        state = TrackerState(pid=self._process.pid, uri=without_password(settings.uri), attempt=settings.attempt)
        with contextlib.suppress(DiskError):  # it says so itself once MLflow is loaded; it may be stopped before
            save_state(run_dir, state)

    @property
    def pid(self) -> int:
        """Process number of the mirror."""
        return self._process.pid

    def poll(self) -> str:
        """Return a warning for the user, at most one in five minutes, else an empty string."""
        now = time.monotonic()
        if now < self._next_look:
            return ""
        problem = self._problem(now)
        self._next_look = now + (_WARN_EVERY_S if problem else _LOOK_EVERY_S)
        return problem

    def holder(self) -> str:
        """Return process and command that hold the database's lock, the mirror aside, or an empty string."""
        if self._database is None or not self._database.is_file():
            return ""
        others = [pid for pid in lock_holders(self._database) if pid != self._process.pid]
        return f"process {others[0]}: {command_of(others[0])}" if others else ""

    def _problem(self, now: float) -> str:
        code = self._process.poll()
        if code is None and now < self._next_state:
            return ""
        self._next_state = now + min(_STATE_EVERY_S, self._warn_after_s)
        state = load_state(self._run_dir)
        replay = f"training continues; replay later: {sync_command(self._run_dir)}"
        if code is not None:
            return f"{_ended(self._run_dir, code)}; {replay}"
        if _is_held(self._process.pid):
            held = f"process {self.pid} is stopped, a signal holds it: kill -CONT {self.pid}"
            return f"tracking is paused: {held}; {replay}"
        failing_s = time.time() - state.failing_since
        if state.status == "paused" and state.pid == self._process.pid and failing_s > self._warn_after_s:
            return f"tracking is paused: {state.error}; {replay}"
        return ""

    def finish(self, timeout_s: float | None = None, told: Callable[[str], None] = _tell_nobody) -> TrackerState:
        """Let the mirror catch up and end; returns after ``timeout_s`` at the latest, whatever the database does.

        A mirror that died during the training, or that a signal holds, is started once more. The state's ``status`` is
        ``done``, or ``late`` or ``behind`` where a replay is needed; the run keeps it.

        Args:
            timeout_s: None gives a minute to a training that is finished, and seconds to one that was told to stop.
            told: Called with what is waited for, where that takes long.
        """
        if timeout_s is None:
            finished = RunReader(self._run_dir).status().state == "finished"
            timeout_s = _FINISHED_S if finished else _STOPPED_S
        deadline = time.monotonic() + timeout_s
        code = _stop(self._process, timeout_s, partial(told, self._waiting(timeout_s)))
        if code not in (EXIT_OK, EXIT_WORLD) and time.monotonic() < deadline:
            code = _replay(self._run_dir, "", deadline - time.monotonic())
        state = load_state(self._run_dir)
        if code == EXIT_OK:
            return state
        late = code == -signal.SIGKILL and not state.error
        state = replace(state, status="late" if late else "behind")
        error = state.error or ("the mirror had no time to catch up" if late else _ended(self._run_dir, code))
        state = replace(state, error=f"{error}; steps after {state.step} are not in it")
        with contextlib.suppress(DiskError):  # the disk is full: that has been said
            save_state(self._run_dir, state)
        return state

    def _waiting(self, timeout_s: float) -> str:
        longest, later = duration(timeout_s), sync_command(self._run_dir)
        return f"waiting for the tracking database to take the last steps, {longest} at most; what it misses: {later}"


def start_tracker(run_dir: Path, settings: TrackerSettings | None, *, new_run: bool = False) -> TrackerHandle:
    """Start the mirror of a run without waiting for it; None turns tracking off.

    Raises:
        DiskError: The run directory cannot be written.
    """
    return Tracker(run_dir, settings, new_run=new_run) if settings else NullTracker()


def sync_command(run_dir: Path) -> str:
    """Return the command that replays what the mirror of a run missed."""
    return f"xectool runs sync {in_shell(run_dir)}"


def sync_run(run_dir: Path, uri: str | None = None, timeout_s: float = 3600.0) -> TrackerState:
    """Replay into the database what it misses of a run, and return the state after it.

    Args:
        run_dir: Directory of the run.
        uri: Absolute URI of another database; by default the one the run was tracked with.
        timeout_s: Longest time to take.

    Raises:
        UsageError: The run was never tracked, or its own mirror is at work.
        TrackerError: The database is locked, gone or refuses.
    """
    settings = load_settings(run_dir)
    code = _replay(run_dir, uri or "", timeout_s)
    state = load_state(run_dir)
    if code == EXIT_OK:
        return state
    if code == _EXIT_BUSY:
        raise UsageError(
            f"the mirror of this run is at work (process {state.pid})",
            where=str(run_dir),
            fix="nothing is missed while it runs; wait for it to end",
        )
    where = without_password(uri or settings.uri)
    if code == EXIT_WORLD:
        raise TrackerError(state.error, where=where, fix=state.fix)
    log = in_shell(tracking_dir(run_dir) / "mirror.log")
    raise TrackerError(f"the replay ended with code {code}", where=where, fix=f"tail {log}")


def _ended(run_dir: Path, code: int) -> str:
    return f"the tracking process ended with code {code} (see {tracking_dir(run_dir) / 'mirror.log'})"


def _start(run_dir: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the mirror's process in a session of its own, so that Ctrl-C reaches the trainer only."""
    root = str(Path(xectool.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "xectool.training.tracking", str(run_dir), *options]
    log = os.open(tracking_dir(run_dir) / "mirror.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **_QUIET, "PYTHONPATH": path},
            start_new_session=True,
        )
    finally:
        os.close(log)


def _replay(run_dir: Path, uri: str, timeout_s: float) -> int:
    """Run the mirror once to its end and return its exit code; kills after ``timeout_s``."""
    process = _start(run_dir, "--once")
    try:
        process.communicate(uri.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        pass  # the exit code says that it was killed
    finally:
        process.kill()
    return process.wait()


def _stop(process: subprocess.Popen[bytes], timeout_s: float, late: Callable[[], None]) -> int:
    """Say that the training is over, wait, and return the exit code; kills after ``timeout_s``, and what is held.

    Killing is harmless: the database says what it holds, so a replay goes on exactly there. ``late`` is called once,
    where it takes longer than a mirror does that is behind by nothing.
    """
    begun = time.monotonic()
    deadline, told_at = begun + timeout_s, begun + _LATE_S
    try:
        if process.stdin and not process.stdin.closed:
            process.stdin.write(b".")
            process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already; its exit code says how
    while (left := deadline - time.monotonic()) > 0 and not _is_held(process.pid):
        if time.monotonic() > told_at:
            late()
            told_at = math.inf
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, _LOOK_EVERY_S))
    process.kill()
    return process.wait()


def _is_held(pid: int) -> bool:
    """Return whether a signal (SIGSTOP, SIGTSTP) keeps a process from running."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False

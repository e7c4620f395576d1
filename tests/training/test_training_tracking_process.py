"""Faults of a real MLflow database, injected for real: locked, gone, mirror killed, trainer killed."""

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from xectool import engine
from xectool.errors import TrackerError, UsageError
from xectool.runlog.process import start_ticks
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter
from xectool.training.record.heartbeat import Heartbeat
from xectool.training.tracking import Tracker, TrackerSettings, handle, sync_run
from xectool.training.tracking.settings import load_state

PATIENCE_S = 400.0
LOCKER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
"""
TRAINER = """
import os, sys, time
from pathlib import Path
from xectool.runlog.records import StepRecord
from xectool.runlog.writer import RunWriter
from xectool.training.tracking import Tracker, TrackerSettings
run_dir = Path(sys.argv[1])
writer = RunWriter(run_dir)
tracker = Tracker(run_dir, TrackerSettings(sys.argv[2], "exp", "run", {"lr": "1"}, poll_s=0.2))
print(tracker.pid, flush=True)
if os.fork() == 0:
    time.sleep(1000)  # a loader worker that hangs and outlives its trainer
for step in range(1, 10**6):
    writer.step(StepRecord(1, step, time.time(), time.monotonic(), 1.0 / step))
    time.sleep(0.005)
"""


@pytest.fixture(scope="module")
def made_database(tmp_path_factory) -> Path:
    """An MLflow database whose tables exist: creating them takes seconds."""
    run_dir = tmp_path_factory.mktemp("made") / "run"
    with RunWriter(run_dir) as writer:
        tracker = Tracker(run_dir, replace(settings(run_dir.parent / "mlflow.db"), run_name="made"))
        writer.event("finished")
        assert tracker.finish(PATIENCE_S).status == "done"
    return run_dir.parent / "mlflow.db"


@pytest.fixture
def database(made_database, tmp_path) -> Path:
    return Path(shutil.copy(made_database, tmp_path / "mlflow.db"))


def settings(database: Path, **changes) -> TrackerSettings:
    values = {"params": {"lr": "1", "batch_size": "8"}, "poll_s": 0.2, "warn_after_s": 0.0} | changes
    return TrackerSettings(f"sqlite:///{database}", "exp", "my run", **values)


def write_steps(writer: RunWriter, first: int, last: int) -> None:
    for step in range(first, last + 1):
        writer.step(StepRecord(1, step, time.time(), time.monotonic(), 1.0 / step, {"energy": 0.5}, 1e-3, 2.0))


def wait_until(condition, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows(database: Path, query: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", timeout=60, uri=True)) as connection:
        return connection.execute(query).fetchall()


def curve(database: Path, key: str = "step/loss", name: str = "my run") -> list[tuple[int, float]]:
    query = (
        "select step, value from metrics join runs using (run_uuid) "
        f"where key = '{key}' and name = '{name}' order by step, timestamp"
    )
    return rows(database, query)


def recorded(run_dir: Path) -> list[tuple[int, float]]:
    return [(record.step, record.loss) for record in RunReader(run_dir).steps()]


@contextlib.contextmanager
def locked(database: Path, seconds: float = 1000.0):
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCKER, database, str(seconds)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert holder.stdout.readline() == "locked\n"
    try:
        yield
    finally:
        holder.kill()
        holder.communicate()


def judged(writer: RunWriter) -> tuple[str, str, str]:
    """What `diagnose hang` says of a run that goes on."""
    with Heartbeat(writer.status, torch.device("cpu")):
        writer.status.phase("forward")
        found = engine.diagnose.hang(writer.run_dir)
    return found.findings[0].code, found.verdict, found.next


def test_a_mirror_that_is_stopped_while_it_starts_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with RunWriter(run_dir):
        assert engine.diagnose.hang(run_dir).findings[0].code == "XT-HANG-NONE"
        tracker = Tracker(run_dir, settings(tmp_path / "mlflow.db"))
        os.kill(tracker.pid, signal.SIGSTOP)
        try:
            found, status = engine.diagnose.hang(run_dir), engine.diagnose.status(run_dir)
        finally:
            os.kill(tracker.pid, signal.SIGKILL)
        assert (found.findings[0].code, found.next) == ("XT-HANG-TRACKER", f"kill -CONT {tracker.pid}")
        assert status.next == found.next
        tracker.finish(0.0)


def test_a_mirror_that_is_held_is_told_of_and_another_one_ends_its_work(database: Path, tmp_path: Path) -> None:
    """A minute was waited for it at the end of a training, and the points were missing."""
    run_dir = tmp_path / "run"
    with RunWriter(run_dir) as writer:
        tracker = Tracker(run_dir, settings(database))
        write_steps(writer, 1, 20)
        wait_until(lambda: len(curve(database)) == 20)
        os.kill(tracker.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(tracker.pid).status() == psutil.STATUS_STOPPED)
        write_steps(writer, 21, 40)
        told: list[str] = []
        wait_until(lambda: bool(told.append(tracker.poll()) or told[-1]), 30.0)
        writer.event("tracker", told[-1], status="paused")
        assert f"kill -CONT {tracker.pid}" in told[-1]
        writer.event("finished")
        state = tracker.finish(PATIENCE_S)
    assert (state.status, state.error) == ("done", "")
    assert curve(database) == recorded(run_dir)
    (found,) = [finding for finding in engine.diagnose.run(run_dir).findings if finding.code == "XT-TRACKER-DOWN"]
    assert "it has caught up since" in found.evidence


def test_mirror_killed_twice_ends_with_each_point_once(database, tmp_path):
    run_dir = tmp_path / "run"
    (run_dir / "plots").mkdir(parents=True)
    (run_dir / "config.yaml").write_text("kind: regressor\n")
    with RunWriter(run_dir) as writer:
        write_steps(writer, 1, 300)
        tracker = Tracker(run_dir, settings(database))
        wait_until(lambda: load_state(run_dir).step > 0 or len(curve(database)) > 100)
        assert "libtorch" not in Path(f"/proc/{tracker.pid}/maps").read_text()
        assert judged(writer)[0] == "XT-HANG-NONE"
        os.kill(tracker.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(tracker.pid).status() == psutil.STATUS_STOPPED)
        code, verdict, line = judged(writer)
        assert (code, line) == ("XT-HANG-TRACKER", f"kill -CONT {tracker.pid}")
        os.kill(tracker.pid, signal.SIGKILL)
        wait_until(lambda: tracker.poll().startswith("the tracking process ended with code -9"))
        code, verdict, line = judged(writer)
        assert (code, line) == ("XT-HANG-TRACKER", f"xectool runs sync {run_dir}")
        assert f"process {tracker.pid}, is gone" in verdict
        assert tracker.poll() == ""
        write_steps(writer, 301, 400)
        values = {"train/loss": 0.5, "val/loss": float("nan")}
        writer.epoch(EpochRecord(1, 400, time.time(), time.monotonic(), values, 1e-3, 2.5, 8, 8))
        (run_dir / "plots" / "loss.png").write_bytes(b"png")
        writer.event("finished")
        assert tracker.finish(PATIENCE_S).status == "done"
    assert curve(database) == recorded(run_dir)
    assert curve(database, "perf/epoch_time_sec") == [(1, 2.5)]
    assert rows(database, "select is_nan from metrics where key = 'val/loss'") == [(1,)]
    assert ("my run", "FINISHED") in rows(database, "select name, status from runs")
    ((location,),) = rows(database, "select artifact_uri from runs where name = 'my run'")
    uploaded = {path.name for path in Path(location.removeprefix("file://")).rglob("*") if path.is_file()}
    assert {"config.yaml", "loss.png"} <= uploaded


def test_a_mirror_that_never_comes_to_work_is_not_waited_for(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(handle, "_LATE_S", 0.1)
    said: list[str] = []
    with RunWriter(tmp_path / "run") as writer:
        tracker = Tracker(tmp_path / "run", settings(tmp_path / "mlflow.db"))
        write_steps(writer, 1, 10)
        assert tracker.poll() == ""
        state = tracker.finish(timeout_s=2.5, told=said.append)
    (waiting,) = said  # once; a training stood silent for a minute
    assert waiting.startswith("waiting for the tracking database to take the last steps, 2.5 s at most; ")
    assert waiting.endswith(f"xectool runs sync {tmp_path}/run")
    assert (state.status, state.error) == (
        "late",
        "the mirror had no time to catch up; steps after 0 are not in it",
    )


def test_a_mirror_that_ends_with_an_error_is_not_called_late(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with RunWriter(tmp_path / "run") as writer:
        tracker = Tracker(tmp_path / "run", settings(tmp_path / "mlflow.db"))
        write_steps(writer, 1, 10)
        writer.event("interrupted")
        state = tracker.finish()
    assert state.status == "behind"
    assert state.error.startswith("the tracking process ended with code 1 (see ")


@pytest.mark.slow
def test_database_locked_for_good_costs_the_training_nothing_and_is_filled_by_a_replay(database, tmp_path):
    run_dir = tmp_path / "run"
    with RunWriter(run_dir) as writer, locked(database):
        tracker = Tracker(run_dir, settings(database))  # returns, though nothing can be written
        write_steps(writer, 1, 200)
        wait_until(lambda: "database is locked" in tracker.poll())
        holder = re.match(r"process (\d+): .*python.* -c", tracker.holder())
        assert holder is not None
        code, verdict, line = judged(writer)
        assert (code, line) == ("XT-HANG-TRACKER", f"xectool diagnose mlflow sqlite:///{database}")
        assert f"{database}, held by process {holder[1]} (" in verdict
        writer.event("interrupted")
        start = time.perf_counter()
        assert tracker.finish().status == "behind"
        assert time.perf_counter() - start < 30.0  # a batch system kills then; half of what a finished run takes
        state = load_state(run_dir)  # the mirror did not live to say so itself
        assert state.status == "behind"
        assert "database is locked; steps after 0 are not in it" in state.error
        with pytest.raises(TrackerError, match=r"database is locked[\s\S]*fuser -v .*do not delete"):
            sync_run(run_dir)
    assert sync_run(run_dir).points == 7 * 200
    assert curve(database) == recorded(run_dir)


@pytest.mark.slow
def test_database_locked_over_several_retries_is_caught_up_by_the_mirror_itself(database, tmp_path):
    run_dir = tmp_path / "run"
    with RunWriter(run_dir) as writer:
        with locked(database):
            tracker = Tracker(run_dir, settings(database))
            write_steps(writer, 1, 100)
            wait_until(lambda: load_state(run_dir).status == "paused")
            writer.event("finished")
            assert load_state(run_dir).failing_since > 0
            log = run_dir / "tracking" / "mirror.log"
            wait_until(lambda: log.read_text().count("database is locked") >= 3)
        assert tracker.finish(PATIENCE_S).status == "done"
    assert curve(database) == recorded(run_dir)


def test_server_that_is_gone_costs_nothing_and_another_database_takes_the_replay(database, tmp_path):
    run_dir = tmp_path / "run"
    gone = TrackerSettings("http://me:secret@127.0.0.1:9", "exp", "my run", poll_s=0.2, warn_after_s=0.0)
    with RunWriter(run_dir) as writer:
        tracker = Tracker(run_dir, gone)
        write_steps(writer, 1, 50)
        wait_until(lambda: "tracking is paused: MLflow failed" in tracker.poll())
        writer.event("failed")
        assert tracker.finish(timeout_s=0.5).status == "behind"
    assert "secret" not in (run_dir / "tracking" / "state.json").read_text()
    sync_run(run_dir, f"sqlite:///{database}")
    assert curve(database) == recorded(run_dir)
    assert ("my run", "FAILED") in rows(database, "select name, status from runs")


def test_killed_trainer_leaves_no_mirror_and_its_resumed_run_has_each_step_once(database, tmp_path):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", TRAINER, run_dir, f"sqlite:///{database}"]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    mirror = int(trainer.stdout.readline())
    wait_until(lambda: len(curve(database, name="run")) > 20)
    try:
        with locked(database):
            with pytest.raises(UsageError, match=f"process {mirror}"):
                sync_run(run_dir)
            trainer.kill()
            trainer.wait()
            wait_until(lambda: start_ticks(mirror) == 0, 20.0)  # it would try for a minute; a second is measured
        sync_run(run_dir)
        assert RunReader(run_dir).status().state == "killed"
        assert curve(database, name="run") == recorded(run_dir)
        assert ("run", "KILLED") in rows(database, "select name, status from runs")
        last = len(recorded(run_dir))
        with RunWriter(run_dir) as writer:
            writer.resume(last - 15, 1)
            tracker = Tracker(run_dir, settings(database, params={"lr": "2"}, attempt=2))
            write_steps(writer, last - 14, last + 20)
            writer.event("finished")
            assert tracker.finish(PATIENCE_S).status == "done"
    finally:
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.stdout.close()
    assert [step for step, _ in curve(database, name="run")] == list(range(1, last + 21))
    tags = dict(rows(database, "select key, value from tags where key like 'resume%'"))
    assert tags == {"resume_1/lr": "2", "resume_1/after_step": str(last - 15)}
    assert rows(database, "select p.value from params p join runs r using (run_uuid) where r.name = 'run'") == [("1",)]

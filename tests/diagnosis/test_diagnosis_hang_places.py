"""Where the processes of a run are: below a launcher, on another machine, another user's, in an attempt that begins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xectool import engine
from xectool.diagnosis.hang.facts import gather
from xectool.diagnosis.hang.verdict import judge
from xectool.errors import UsageError
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import Word
from xectool.runlog.worker_slots import WorkerSlots
from xectool.runlog.writer import RunWriter

WAITS = """
import socket, sys, time
from pathlib import Path
import xectool.runlog.process as process
from xectool.runlog.status_page import Word
from xectool.runlog.writer import RunWriter

first = RunWriter(Path(sys.argv[1]))
first.status[Word.COLLECTIVE_SEQ] = 7
first.status.phase("collective")
first.status[Word.PHASE_SINCE_NS] -= 60 * 10**9
process.boot_id, process.socket.gethostname = lambda: "of another machine", lambda: "node7"
second = RunWriter(Path(sys.argv[1]), attempt=1, rank=1)
print("ready", flush=True)
while True:
    first.status[Word.HEARTBEAT_NS] = time.monotonic_ns()
    time.sleep(0.5)
"""


def settled(run: Path, code: str) -> Any:
    """Look until the verdict has a code, at most a minute: where the machine stands still, so do heartbeats."""
    until = time.monotonic() + 60
    while (found := engine.diagnose.hang(run)).findings[0].code != code and time.monotonic() < until:
        time.sleep(0.2)
    return found


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A run whose first rank waits for one on another machine, and the process that started it."""
    start = 'import subprocess, sys; sys.exit(subprocess.run([sys.executable, "-c", *sys.argv[1:]]).returncode)'
    command = [sys.executable, "-c", start, WAITS, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield tmp_path / "run", process.pid
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def test_a_rank_of_another_machine_is_waited_for_and_not_called_dead(launched: tuple[Path, int]) -> None:
    run, launcher = launched
    found = settled(run, "XT-HANG-RANK")
    assert (found.findings[0].code, found.bad) == ("XT-HANG-RANK", True)
    assert "from rank 1 on" in found.verdict
    assert found.next.startswith(f"xectool diagnose hang {run}")
    # by what is here alone, this machine's rank would be the culprit
    assert judge(gather(run)).rank == 0
    status = engine.diagnose.status(pid=launcher)
    assert status.run == str(run)
    assert [rank.state for rank in status.ranks] == ["late", "unknown"]
    assert not status.bad
    assert engine.diagnose.hang(pid=launcher).run == str(run)
    with subprocess.Popen(["sleep", "60"]) as other:
        assert engine.diagnose.hang(pid=other.pid).run == ""
        with pytest.raises(UsageError, match="belongs to no run"):
            engine.diagnose.status(pid=other.pid)
        other.kill()


def test_a_run_of_another_machine_is_not_judged_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setattr("xectool.runlog.process.boot_id", lambda: "of another machine")
        there.setattr("xectool.runlog.process.socket.gethostname", lambda: "node7")
        writer = RunWriter(tmp_path / "a run")
    assert judge(gather(tmp_path / "a run")).code == "XT-HANG-DEAD"  # what the pages would say here
    for name, look in (("hang", engine.diagnose.hang), ("stacks", engine.diagnose.stacks)):
        with pytest.raises(UsageError, match="the run is on node7") as caught:
            look(tmp_path / "a run")
        assert caught.value.code == "XT-CTL-HOST"
        assert caught.value.fix == f"ssh node7 xectool diagnose {name} '{tmp_path / 'a run'}'"
    writer.close()


def test_the_copy_of_a_live_run_is_not_judged_in_its_place(tmp_path: Path) -> None:
    run, copy, moved = tmp_path / "run", tmp_path / "copy", tmp_path / "moved"
    with RunWriter(run) as writer, RunWriter(tmp_path / "beside"):  # one process may have several
        assert engine.diagnose.status(tmp_path / "beside").state == "running"
        shutil.copytree(run, copy)
        for look in (engine.diagnose.hang, engine.diagnose.stacks, lambda place: engine.control(place, "stop")):
            with pytest.raises(UsageError, match="copy of a run that goes on") as caught:
                look(copy)
            assert caught.value.code == "XT-CTL-COPY"
            assert str(run) in caught.value.fix
        assert caught.value.fix == f"xectool ctl {run} stop", "what was asked for, and not a checkpoint"
        status = engine.diagnose.status(copy)
        assert (status.state, status.next) == ("unknown", f"xectool diagnose status {run}")
        assert engine.diagnose.status(run).state == "running"
        run.rename(moved)  # no copy
        assert engine.diagnose.status(moved).state == "running"
        writer.event("finished")
    assert engine.diagnose.status(moved).state == "finished"


def test_a_process_that_outlives_its_record_is_not_said_to_have_ended(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.status.phase("outputs")
        writer.status[Word.PHASE_SINCE_NS] -= 390 * 10**9
        writer.event("finished")
        found = judge(gather(tmp_path))  # files are still written
        assert found.code in ("XT-HANG-SLOW", "XT-HANG-STUCK")
        assert "outputs for 39" in found.verdict
        writer.status.phase("done")
        assert judge(gather(tmp_path)).verdict == "the run has ended: finished"
        writer.status[Word.PHASE_SINCE_NS] -= 390 * 10**9
        found = judge(gather(tmp_path))  # a script, or the page of the report
        assert f"process {os.getpid()} of rank 0 lives on for 39" in found.verdict
        assert (found.bad, found.code) == (False, "XT-HANG-NONE")
        assert any("stack" in line for line in found.why)


def test_an_attempt_that_starts_has_no_socket_yet(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as first:
        first.event("control_socket", socket=str(tmp_path / "gone"))
        first.event("interrupted")
    with RunWriter(tmp_path) as second:
        with pytest.raises(UsageError, match="still starting") as caught:
            engine.control(tmp_path, "checkpoint")
        second.event("finished")
    assert caught.value.code == "XT-CTL-CLOSED"


def test_a_rank_without_its_first_heartbeat_holds_no_interpreter(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.status.phase("forward")
        writer.status[Word.PHASE_SINCE_NS] -= 60 * 10**9
        assert judge(gather(tmp_path)).code in ("XT-HANG-SLOW", "XT-HANG-STUCK")  # by its phase
        writer.status[Word.HEARTBEAT_NS] = time.monotonic_ns() - 60 * 10**9
        assert settled(tmp_path, "XT-HANG-GIL").bad
        writer.event("finished")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("closed", ["rec", "."])
def test_the_run_of_another_user_is_said_to_be_one(closed: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        RunWriter(Path(name, "run")).close()
        Path(name).chmod(0o755)
        Path(name, "run", closed).chmod(0o700)
        child = os.fork()
        if not child:
            code = 1
            try:
                os.setuid(65534)
                RunReader(Path(name, "run"))
            except UsageError as error:
                code = 0 if error.code == "XT-CTL-USER" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(UsageError, match="there is no such directory"):
            RunReader(Path(name, "nothing"))


def test_a_file_of_the_validation_has_its_name_too(tmp_path: Path) -> None:
    files = [{"role": role, "path": f"/data/{role}.root"} for role in ("train", "val")]
    (tmp_path / "manifest.json").write_text(json.dumps({"attempts": [{"data_files": files}]}))
    with contextlib.closing(RunWriter(tmp_path)) as writer:
        for number, slots in enumerate(writer.worker_slots([1, 1])):
            assert slots is not None
            WorkerSlots(slots).read(0, 0, 8 * number, 8 * number + 8)
        readers = gather(tmp_path).ranks[0].readers
        lines = engine.diagnose.status(tmp_path).workers
    assert [item.reading for item in readers] == ["/data/train.root entries 0:8", "/data/val.root entries 8:16"]
    assert [line.file for line in lines] == ["/data/train.root", "/data/val.root"]


RECORDS = """
import sys, threading, time
from pathlib import Path
from xectool.runlog.status_page import Word
from xectool.runlog.writer import RunWriter

writer = RunWriter(Path(sys.argv[1]))
threading.Thread(target=sys.stdin.read).start()
print("ready", flush=True)
while True:
    writer.status.phase("backward")
    writer.status[Word.PHASE_SINCE_NS] -= 60 * 10**9
    writer.status[Word.HEARTBEAT_NS] = time.monotonic_ns()
    time.sleep(0.01)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    image, place = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(bytes(16 << 20))
    place.mkdir()
    made = [["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, place]]
    if os.getuid() or any(shutil.which(command[0]) is None for command in (*made, ["fsfreeze"])):
        pytest.skip("no file system can be mounted here")
    if any(subprocess.run(command, capture_output=True, check=False).returncode for command in made):
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_file_system_that_takes_no_record_is_named_in_any_phase(disk: Path) -> None:
    program = [sys.executable, "-c", RECORDS, str(disk / "run")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        try:
            until = time.monotonic() + 60
            while not (found := engine.diagnose.hang(disk / "run")).bad and time.monotonic() < until:
                time.sleep(0.2)
        finally:
            subprocess.run(["fsfreeze", "-u", disk], check=True)
            process.kill()
    assert (found.findings[0].code, found.bad) == ("XT-HANG-CHECKPOINT", True), found
    assert "the file system does not take the record of rank 0: nothing written for 6" in found.verdict
    assert found.next.startswith("timeout 10 dd")

"""Loader processes end with their parent however it ends, and say where they stand when they are asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xectool.data.worker_process import COMM, STACKS_SIGNAL

SCRIPT = """
import multiprocessing, os, sys, time
from pathlib import Path
from xectool.data.worker_process import become_loader
from xectool.runlog.worker_slots import SlotRange, create_slots

def stuck(directory, prepared):
    if prepared:
        become_loader(SlotRange(Path(directory) / "rank0000.workers", 0, 1, 0))
    (Path(directory) / "worker").write_text(str(os.getpid()))
    os.open(Path(directory) / "pipe", os.O_RDONLY)  # as a read of a file system that does not answer

if __name__ == "__main__":
    directory, method, prepared = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
    os.mkfifo(Path(directory) / "pipe")
    create_slots(Path(directory) / "rank0000.workers", 1)
    context = multiprocessing.get_context(method)
    process = context.Process(target=stuck, args=(directory, prepared), daemon=True)
    process.start()
    time.sleep(60)
"""


def started(directory: Path, method: str, prepared: bool) -> tuple[subprocess.Popen[bytes], int]:
    script = directory / "script.py"
    script.write_text(SCRIPT)
    trainer = subprocess.Popen([sys.executable, str(script), str(directory), method, str(int(prepared))])
    note = directory / "worker"
    for _ in range(1200):
        if note.exists() and note.read_text():
            return trainer, int(note.read_text())
        time.sleep(0.05)
    raise AssertionError("the worker has not started")


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def ends(pid: int, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end and state(pid) not in ("gone", "Z"):
        time.sleep(0.05)
    return state(pid) in ("gone", "Z")


def sleeps(pid: int) -> bool:
    """Whether a process comes to wait within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end and state(pid) != "S":
        time.sleep(0.05)
    return state(pid) == "S"


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_stuck_loader_process_dies_with_a_killed_trainer(tmp_path: Path, method: str) -> None:
    trainer, worker = started(tmp_path, method, prepared=True)
    assert sleeps(worker)
    trainer.kill()
    trainer.wait()
    assert ends(worker, 120)


def test_without_it_a_stuck_process_lives_on(tmp_path: Path) -> None:
    trainer, worker = started(tmp_path, "spawn", prepared=False)
    trainer.kill()
    trainer.wait()
    try:
        assert not ends(worker, 3)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_stuck_loader_process_has_a_name_and_writes_its_stacks(tmp_path: Path) -> None:
    trainer, worker = started(tmp_path, "forkserver", prepared=True)
    try:
        assert Path(f"/proc/{worker}/comm").read_text().strip() == COMM
        os.kill(worker, STACKS_SIGNAL)
        stacks = tmp_path / "rank0000.stacks"
        for _ in range(2000):
            if "in stuck" in stacks.read_text():
                break
            time.sleep(0.05)
        assert "in stuck" in stacks.read_text()
        assert sleeps(worker)
    finally:
        trainer.kill()
        trainer.wait()
    assert ends(worker, 120)


FAR = """
import multiprocessing, sys
from xectool.data import worker_process
if __name__ == "__main__":
    if sys.argv[1] == "unchanged":
        worker_process._place_socket = lambda: None
    process = multiprocessing.get_context("forkserver").Process(target=print, args=("read",), kwargs={"flush": True})
    worker_process.start_deaf(process, uses_server=True)
    process.join()
"""


@pytest.mark.parametrize(("how", "reads"), [("as it is", True), ("unchanged", False)])
def test_processes_start_where_no_socket_has_room(tmp_path: Path, how: str, reads: bool) -> None:
    script, deep = tmp_path / "script.py", tmp_path / ("d" * 100)
    script.write_text(FAR)
    deep.mkdir()
    command, environment = [sys.executable, str(script), how], {**os.environ, "TMPDIR": str(deep)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout == "read\n") is reads, done.stderr
    assert ("too long" in done.stderr) is not reads
    assert list(deep.iterdir()) == []

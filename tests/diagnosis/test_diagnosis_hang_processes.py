"""The verdicts on real processes that hang in every way, and on real ranks of which one is elsewhere."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from xectool import engine
from xectool.diagnosis.evidence.files import TRACKER_STATE
from xectool.engine.ranks import watch
from xectool.engine.ranks.said import RankWarnings
from xectool.errors import UsageError
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import Word
from xectool.runlog.storage import attempt_dir, status_path
from xectool.runlog.writer import RunWriter

STANDS = """
import ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path
from xectool.runlog.status_page import Word
from xectool.runlog.worker_slots import WorkerSlots
from xectool.runlog.writer import RunWriter

run, what = Path(sys.argv[1]), sys.argv[2]
writer = RunWriter(run)
(slots,) = writer.worker_slots([1])
os.mkfifo(run / "fifo")
def io(): open(run / "fifo")
def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()
def spin():
    while True: pass
def stop(): os.kill(os.getpid(), signal.SIGSTOP)
def kill(): os.kill(os.getpid(), signal.SIGKILL)
kill_idle = kill
def frozen():  # who has called vfork waits for the child in state D, as in a frozen file system
    ctypes.PyDLL(None).vfork()
    time.sleep(600)
def compile(program):
    os.symlink("/bin/sh", run / "cc1plus")
    subprocess.run([run / "cc1plus", "-c", program])
def compiler(): compile("while :; do :; done")
def compiler_waits(): compile("while :; do sleep 1.5; i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; done")
def compiler_idle(): compile("read line < " + str(run / "fifo"))
def compiler_held(): compile("kill -STOP $$")
def compiler_pool():  # as torch.compile starts it: Python, which loads PyTorch before it calls a compiler
    (run / "compile_worker").mkdir()
    (run / "compile_worker" / "__main__.py").write_text("while True: sum(range(9999))")
    subprocess.run([sys.executable, run / "compile_worker" / "__main__.py"])
def compiler_pool_idle():  # it waits for more to compile as long as its process lives
    (run / "compile_worker").mkdir()
    (run / "compile_worker" / "__main__.py").write_text("import time; time.sleep(600)")
    subprocess.run([sys.executable, run / "compile_worker" / "__main__.py"])
def compiler_pauses():  # between two, each as short as most are
    os.symlink("/bin/sh", run / "cc1plus")
    while True:
        subprocess.run([run / "cc1plus", "-c", "i=0; while [ $i -lt 299999 ]; do i=$((i+1)); done"])
        time.sleep(1.5)
writer.status.phase("compile" if "compiler" in what else "checkpoint" if what == "checkpoint" else "data_wait")
writer.status[Word.PHASE_SINCE_NS] -= 60 * 10**9
def beats():  # it stands for a minute, however long the tests before it took: beyond the limit it would be slow
    while True:
        writer.status[Word.HEARTBEAT_NS] = now = time.monotonic_ns()
        writer.status[Word.PHASE_SINCE_NS] = now - 60 * 10**9
        time.sleep(0.5)
def reads():
    WorkerSlots(slots).read(0, 3, 224, 256)
    if what == "kill_idle":
        WorkerSlots(slots).idle(0)
    print("ready", flush=True)
    globals()[what]()
if what != "checkpoint" and os.fork() == 0:  # as in a loader process: it reads in a thread the main one waits for
    thread = threading.Thread(target=reads)
    thread.start()
    thread.join()
threading.Thread(target=beats, daemon=True).start()
if what == "checkpoint":
    print("ready", flush=True)
    io()
time.sleep(600)
"""
VERDICTS = {
    "io": ("XT-HANG-READER-IO", True, "is stuck in the file system: training file 3 entries 224:256"),
    "frozen": ("XT-HANG-READER-IO", True, "is stuck in the file system: training file 3 entries 224:256"),
    "lock": ("XT-HANG-READER-LOCK", True, "waits for a lock while it reads training file 3"),
    "spin": ("XT-HANG-SLOW", False, "works on training file 3 entries 224:256: slow, not stuck"),
    "stop": ("XT-HANG-STOPPED", True, "(loader process of rank 0) is stopped"),
    "kill": ("XT-HANG-READER-DEAD", True, "is gone while it read training file 3 entries 224:256"),
    "kill_idle": ("XT-HANG-READER-DEAD", True, " is gone"),
    "checkpoint": ("XT-HANG-CHECKPOINT", True, "nothing written for "),
    "compiler": ("XT-HANG-COMPILE", False, "compiles since "),
    "compiler_waits": ("XT-HANG-COMPILE", False, "compiles since "),
    "compiler_pool": ("XT-HANG-COMPILE", False, "compile_worker"),
    "compiler_pool_idle": ("XT-HANG-STUCK", True, "rank 0 stands in compile for "),
    "compiler_pauses": ("XT-HANG-COMPILE", False, "compiles since "),
    "compiler_idle": ("XT-HANG-STUCK", True, "(cc1plus), a compiler of rank 0, does nothing; it compiles since "),
    "compiler_held": ("XT-HANG-STOPPED", True, "(cc1plus), a compiler of rank 0, is stopped"),
}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of each kind that stands still, in processes that really do."""
    folder = tmp_path_factory.mktemp("standing")
    with ExitStack() as stack:
        for what in VERDICTS:
            process = subprocess.Popen(
                [sys.executable, "-c", STANDS, str(folder / what), what],
                stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            stack.callback(process.communicate)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield folder


@pytest.mark.parametrize("what", VERDICTS)
def test_a_process_that_stands_still_is_named_with_the_reason(standing: Path, what: str) -> None:
    code, bad, words = VERDICTS[what]
    until = time.monotonic() + 60  # it was about to stand still when it was started; a machine that does looks alike
    while words not in (found := engine.diagnose.hang(standing / what)).verdict and time.monotonic() < until:
        time.sleep(0.2)
    assert (found.findings[0].code, found.bad) == (code, bad), found.verdict
    assert words in found.verdict
    assert found.next


@pytest.mark.parametrize(
    ("what", "bad", "words"),
    [
        ("kill", True, "(training reader) is gone while read"),
        ("kill_idle", True, "(training reader) is gone while idle"),
        ("checkpoint", False, "rank 0 is late: "),
        ("compiler", False, "live: step 0"),
    ],
)
def test_the_status_of_a_run_that_stands_still_leads_to_the_reason(
    standing: Path, what: str, bad: bool, words: str
) -> None:
    """A checkpoint at a FIFO was live for ten times `guards.hang_s`, a reader that was killed idle had ended."""
    report = engine.diagnose.status(standing / what)
    assert (report.bad, words in report.verdict) == (bad, True), report.verdict
    assert report.next == ("" if what == "compiler" else f"xectool diagnose hang {standing / what}")


def test_a_pause_between_two_compilers_is_no_hang(standing: Path) -> None:
    """Half a second without one was 'stands in compile and does nothing'."""
    assert not [found.verdict for _ in range(4) if (found := engine.diagnose.hang(standing / "compiler_pauses")).bad]


def test_status_names_what_is_stopped_or_late_and_how_to_go_on(standing: Path) -> None:
    stopped, late = engine.diagnose.status(standing / "stop"), engine.diagnose.status(standing / "io")
    (reader,) = stopped.workers
    assert (reader.state, stopped.bad, stopped.next) == ("stopped while read", True, f"kill -CONT {reader.pid}")
    assert f"process {reader.pid} (training reader) is stopped" in stopped.verdict
    assert [rank.state for rank in (*stopped.ranks, *late.ranks)] == ["late", "late"]
    assert "in phase data_wait, usually up to 5 s" in late.verdict
    assert (late.bad, late.next) == (False, f"xectool diagnose hang {standing / 'io'}")


def test_status_names_a_stopped_tracker_of_a_run_that_goes_on(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run"), ExitStack() as stack:
        assert engine.diagnose.status(tmp_path / "run").next == ""
        command = [sys.executable, "-c", "import time; time.sleep(600)", "xectool.training.tracking"]
        tracker = subprocess.Popen(command)
        stack.callback(tracker.wait)
        stack.callback(tracker.kill)
        (tmp_path / "run" / TRACKER_STATE).parent.mkdir()
        (tmp_path / "run" / TRACKER_STATE).write_text(json.dumps({"pid": tracker.pid, "attempt": 1}))
        assert engine.diagnose.status(tmp_path / "run").next == ""
        tracker.send_signal(signal.SIGSTOP)
        os.waitpid(tracker.pid, os.WUNTRACED)
        found = engine.diagnose.status(tmp_path / "run")
        assert (found.bad, found.next) == (True, f"kill -CONT {tracker.pid}")
        assert found.verdict.startswith(f"process {tracker.pid} (tracker) is stopped")


LAUNCHES = """
import subprocess, sys, time
from pathlib import Path
ranks = [subprocess.Popen([sys.executable, sys.argv[2], sys.argv[1], rank]) for rank in "01"]
while not all(Path(sys.argv[1], "here" + rank).exists() for rank in "01"):
    time.sleep(0.05)
print("ready", flush=True)
time.sleep(600)
"""
LAUNCHED = """
import sys, time
from pathlib import Path
from xectool.runlog.process import end_with_parent
from xectool.runlog.status_page import Word
from xectool.runlog.writer import RunWriter
end_with_parent()
run, rank = Path(sys.argv[1]), int(sys.argv[2])
while rank and not (run / "here0").exists():
    time.sleep(0.05)
page = RunWriter(run, attempt=1 if rank else None, rank=rank).status
page.phase("collective" if rank == 0 else "optimizer")
page[Word.COLLECTIVE_SEQ] += rank == 0
(run / f"here{rank}").touch()
while True:
    page[Word.HEARTBEAT_NS] = time.monotonic_ns()
    time.sleep(0.5)
"""


@pytest.mark.parametrize("name", ["xectool", "other"])
def test_a_launcher_that_ctrl_z_holds_is_named_and_not_the_rank_that_waits_for_it(tmp_path: Path, name: str) -> None:
    run, program = tmp_path / "run", tmp_path / "rank.py"
    program.write_text(LAUNCHED)
    command = [sys.executable, "-c", LAUNCHES, str(run), str(program), name]
    with ExitStack() as stack:
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(launcher.communicate)
        stack.callback(launcher.kill)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        make_old(run)
        assert engine.diagnose.hang(run).findings[0].code == "XT-HANG-RANK"
        launcher.send_signal(signal.SIGSTOP)
        os.waitpid(launcher.pid, os.WUNTRACED)
        found, status = engine.diagnose.hang(run), engine.diagnose.status(run)
    held = (True, f"kill -CONT {launcher.pid}")
    assert ((found.bad, found.next) == (status.bad, status.next) == held) is (name == "xectool")
    if name == "xectool":
        assert found.findings[0].code == "XT-HANG-STOPPED"
        for report in (found, status):
            assert f"process {launcher.pid} (launcher of the ranks) is stopped" in report.verdict


def test_a_launcher_sees_that_a_reader_is_stopped_before_its_rank_misses_anything(
    standing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "rank_processes", list)
    for what, readers in (("stop", 1), ("io", 0)):  # the pages of both beat, and no rank is stopped
        ranks = watch.RankWatch(1e6, RankWarnings(standing, 1))
        ranks.run = standing / what
        late = ranks._late()
        assert len(late) == readers
        assert not late & {page.pid for page in RunReader(standing / what).live()}
        for pid in late:
            ranks._judge(pid)
            assert f"process {pid} (loader process of rank 0) is stopped" in ranks.verdict


RANK = """
import sys, time
from pathlib import Path
import torch
from xectool.config.distributed import DistributedConfig
from xectool.runlog.status_page import Word
from xectool.runlog.writer import RunWriter
from xectool.training.record.heartbeat import Heartbeat
from xectool.training.ranks.group import joined

run = Path(sys.argv[1])
with joined(DistributedConfig(timeout_s=120), torch.device("cpu")) as ranks:
    first = ranks.on_first(lambda: RunWriter(run))
    attempt = ranks.share(first.attempt if first else 0)
    page = (first or RunWriter(run, attempt=attempt, rank=ranks.rank)).status
    ranks.note_into(page)
    model = ranks.parallel(torch.nn.Linear(2, 1))
    with Heartbeat(page, torch.device("cpu")):
        for stage, (step, own, other) in enumerate([(0, "sum", "forward"), (3, "sum", "optimizer"),
                                                    (9, "backward", "validation")]):
            page[Word.STEP], page[Word.EPOCH] = step, 1
            if ranks.rank:
                page.phase(other)
                while not (run / f"go{stage}").exists():
                    time.sleep(0.05)
            page.phase("backward")
            if own == "sum":
                ranks.sum(torch.ones(1))
            else:
                model(torch.ones(1, 2)).sum().backward()
"""


@pytest.mark.slow
def test_the_rank_that_skips_a_real_collective_is_named_with_the_reason(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
    run, processes = tmp_path / "run", []
    with ExitStack() as stack:
        for rank in ("0", "1"):
            own = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
            processes.append(subprocess.Popen([sys.executable, "-c", RANK, str(run)], env=own))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        for stage, (code, phase) in enumerate(
            [("XT-HANG-LAZY", "forward"), ("XT-HANG-RANK", "optimizer"), ("XT-HANG-UNEVEN", "validation")]
        ):
            until = time.monotonic() + 200
            while not all_wait(run, phase):
                assert time.monotonic() < until
                time.sleep(0.1)
            make_old(run)
            looks = [engine.diagnose.hang(run)]
            while not looks[-1].bad and len(looks) < 3:  # what came before the look may still be at work, if slowly
                looks.append(engine.diagnose.hang(run))
            found = looks[-1]
            assert (found.findings[0].code, found.bad) == (code, True), (found.verdict, found.findings)
            assert "rank 1" in found.verdict
            assert f"process {processes[1].pid}" in found.findings[0].where
            (run / f"go{stage}").touch()
        assert [process.wait(200) for process in processes] == [0, 0]


def all_wait(run: Path, phase: str) -> bool:
    """Whether the second rank is in a phase, and the first one waits for it in a collective."""
    try:
        pages = {page.rank: page for page in RunReader(run).live()}
    except UsageError:  # there is no record yet
        return False
    waits = len(pages) == 2 and pages[0].phase in ("collective", "backward") and pages[0].phase_age_s > 0.3
    return waits and pages[1].phase == phase


def make_old(run: Path) -> None:
    """Let a minute pass for the phases of both ranks."""
    for rank in (0, 1):
        page = np.memmap(status_path(attempt_dir(run, 1), rank), np.int64)
        page[Word.PHASE_SINCE_NS] -= 60 * 10**9

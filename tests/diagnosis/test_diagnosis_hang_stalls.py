"""What looks like a hang and is none, or has no page yet: a machine that stalls, ranks that start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from xectool import engine
from xectool.diagnosis.evidence import kernel
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.hang import facts, verdict
from xectool.diagnosis.rules.uneven_ranks import UnevenRanks
from xectool.errors import UsageError
from xectool.runlog.records import StepRecord
from xectool.runlog.status_page import Word
from xectool.runlog.writer import RunWriter


def test_a_heartbeat_that_comes_after_a_stall_of_the_machine_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(tmp_path / "run")

    def stalls(wakes_after_s: float) -> str:
        writer.status.phase("forward")
        writer.status[Word.HEARTBEAT_NS] = time.monotonic_ns() - 60 * 10**9
        began, over = time.monotonic(), threading.Event()

        def beats() -> None:
            while not over.wait(0.05):
                if time.monotonic() - began > wakes_after_s:
                    writer.status[Word.HEARTBEAT_NS] = writer.status[Word.PHASE_SINCE_NS] = time.monotonic_ns()

        heart = threading.Thread(target=beats)
        heart.start()
        code = engine.diagnose.hang(tmp_path / "run").findings[0].code
        over.set()
        heart.join()
        return code

    engine.diagnose.hang(tmp_path / "run")  # imports take their time
    assert stalls(0.8) == "XT-HANG-NONE"
    monkeypatch.setattr(facts, "BEAT_WAIT_S", 0.0)  # without the wait, the moment of the look decides
    assert stalls(600.0) != "XT-HANG-NONE"
    writer.close()


def test_a_stopped_rank_that_has_not_begun_is_named_by_its_launcher() -> None:
    launcher = "import subprocess, sys; sys.exit(subprocess.run(['sleep', '60']).returncode)"
    with subprocess.Popen([sys.executable, "-S", "-c", launcher]) as process:
        while not (below := psutil.Process(process.pid).children()):
            time.sleep(0.02)
        assert not engine.diagnose.hang(pid=process.pid).bad
        below[0].suspend()
        found = engine.diagnose.hang(pid=process.pid)
        assert (found.bad, found.findings[0].code) == (True, "XT-HANG-STOPPED")
        assert found.next == f"kill -CONT {below[0].pid}"
        below[0].kill()


def test_a_process_that_gets_no_processor_is_told_from_one_that_sleeps() -> None:
    core = min(os.sched_getaffinity(0))
    spins, sleeps = "while True: pass", "import time; time.sleep(60)"
    commands = [[sys.executable, "-S", "-c", code] for code in (spins, spins, sleeps)]
    with ExitStack() as stack:
        hog, starved, asleep = (stack.enter_context(subprocess.Popen(command)).pid for command in commands)
        for pid in (hog, starved, asleep):
            stack.callback(os.kill, pid, signal.SIGKILL)
            os.sched_setaffinity(pid, {core})
        os.sched_setscheduler(starved, os.SCHED_IDLE, os.sched_param(0))
        shares = [max(kernel.look({pid: 0})[pid].delayed_share for _ in range(2)) for pid in (starved, asleep)]
    assert shares[0] > verdict.STARVED
    assert shares[1] == 0


TRACES = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
libc.prctl(15, sys.argv[1].encode(), 0, 0, 0)  # its name
with subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL) as held:
    assert libc.ptrace(16, held.pid, 0, 0) == 0  # attached, and stopped
    print(held.pid, flush=True)
    sys.stdin.read()
    os.kill(held.pid, 9)  # kill() would ask first, and take the stop for an end
"""


@pytest.mark.parametrize(("name", "state"), [("gdb", "traced"), ("py-spy", "sleeping")])
def test_a_look_at_stacks_from_elsewhere_is_no_debugger(name: str, state: str) -> None:
    command = [sys.executable, "-S", "-c", TRACES, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        pid = int(tracer.stdout.readline())
        until = time.monotonic() + 60
        while psutil.Process(pid).status() != psutil.STATUS_TRACING_STOP and time.monotonic() < until:
            time.sleep(0.01)
        assert kernel.look({pid: 0}, over_s=0.01)[pid].state == state
        tracer.communicate()


@pytest.mark.parametrize(("pid", "says"), [(-1, "there is no process -1"), (0, "has ended, and its parent")])
def test_a_number_of_no_process_is_refused(pid: int, says: str) -> None:
    with subprocess.Popen(["true"]) as ended:
        while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with pytest.raises(UsageError, match=says):
            engine.diagnose.hang(pid=pid or ended.pid)


LAST_WORDS = {
    "failed": ("WorldError: another rank is gone: Connection closed by peer", {"code": "XT-RANK-LOST"}),
    "interrupted": ("KeyboardInterrupt: ", {}),  # the launcher was faster
}


@pytest.mark.parametrize("end", LAST_WORDS)
def test_of_a_run_that_lost_a_rank_the_one_that_was_killed_is_named(tmp_path: Path, end: str) -> None:
    first = RunWriter(tmp_path)
    second, third = (RunWriter(tmp_path, attempt=first.attempt, rank=rank) for rank in (1, 2))
    for rank, writer in enumerate((second, third)):
        writer.status.phase("validation")
        writer.status[Word.STEP] = 20
        writer.status[Word.PID_START] += 1  # as if its process were gone
        writer.status[Word.HEARTBEAT_TIME_NS] = rank + 1  # the third was ended for it afterwards
    first.event(end, LAST_WORDS[end][0], step=20, **LAST_WORDS[end][1])
    first.close()
    cause = engine.diagnose.run(tmp_path).causes[0]
    assert cause.code == "XT-RANK-DIED"
    assert cause.problem == f"rank 1 (process {os.getpid()}) was killed in validation after step 20"
    found = engine.diagnose.hang(tmp_path)
    assert (found.findings[0].code, found.bad) == ("XT-HANG-DEAD", True)
    assert found.verdict.startswith("rank 1, process")
    assert not any("still live" in line for line in found.findings[0].evidence)
    second.close()
    third.close()


def test_of_a_run_whose_first_rank_only_lost_another_the_reason_of_that_one_counts(tmp_path: Path) -> None:
    first = RunWriter(tmp_path)
    second = RunWriter(tmp_path, attempt=first.attempt, rank=1)
    second.event("failed", "WorldError: loader process 7 was killed", step=20, code="XT-LOADER-KILLED")
    first.event("failed", LAST_WORDS["failed"][0], step=20, code="XT-RANK-LOST")
    first.close()
    second.close()
    assert engine.diagnose.run(tmp_path).causes[0].code == "XT-WORKER-DEAD"
    assert "loader process 7 was killed" in engine.diagnose.hang(tmp_path).findings[0].evidence[0]


@pytest.mark.parametrize(("batches", "named"), [((4, 3), True), ((4, 4), False)])
def test_ranks_that_wait_for_each_other_after_different_batches_are_uneven(
    tmp_path: Path, batches: tuple[int, int], named: bool
) -> None:
    said = {"code": "XT-RANK-TIMEOUT", "phase": "collective"}
    first = RunWriter(tmp_path)
    for writer, stop in zip((first, RunWriter(tmp_path, attempt=first.attempt, rank=1)), batches, strict=True):
        for word, value in ((Word.BATCH_EPOCH, 1), (Word.BATCH_STOP, stop), (Word.STEP, 3)):
            writer.status[word] = value
        writer.event("hang", "no progress: collective for 13 s", step=3, phase="collective", age_s=13.0)
        writer.event("failed", "WorldError: another rank did not come in time", step=3, **said)
        writer.close()
    cause = engine.diagnose.run(tmp_path).causes[0]
    assert (cause.code == "XT-UNEVEN-RANKS") is named
    assert ("rank 1 took 3 batches" in cause.problem) is named


def test_a_first_rank_that_was_killed_is_named_like_any_other(tmp_path: Path) -> None:
    program = "import os, sys; from xectool.runlog.writer import RunWriter; w = RunWriter(sys.argv[1]); os._exit(9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    second = RunWriter(tmp_path, attempt=1, rank=1)
    second.event("failed", LAST_WORDS["failed"][0], step=20, code="XT-RANK-LOST")
    second.close()
    cause = engine.diagnose.run(tmp_path).causes[0]
    assert (cause.code, cause.problem.split(" (")[0]) == ("XT-RANK-DIED", "rank 0")


RANKS = """
import faulthandler, os, sys
import torch
import torch.distributed as dist
from xectool.runlog.status_page import Word
from xectool.runlog.storage import attempt_dir, slots_path
from xectool.runlog.worker_slots import stacks_path
from xectool.runlog.writer import RunWriter

run, rank, phase = sys.argv[1], int(sys.argv[2]), sys.argv[3]
writer = RunWriter(run, attempt=1 if rank else None, rank=rank)
dump = open(stacks_path(slots_path(attempt_dir(writer.run_dir, 1), rank)), "w")
faulthandler.enable(dump, all_threads=True)
dist.init_process_group("gloo", init_method=f"file://{run}/store", rank=rank, world_size=2)
writer.status.phase(phase)
writer.status[Word.COLLECTIVE_OP] = 1

def sums():
    if len(sys.argv) > 4:
        os.abort()  # as NCCL does with all ranks that wait for too long
    dist.all_reduce(torch.ones(8, dtype=(torch.int32, torch.float64)[rank]))

try:
    sums()
    writer.event("finished", "", step=3)
except RuntimeError as error:
    writer.event("failed", f"WorldError: another rank is gone: {error}", step=3, code="XT-RANK-LOST")
writer.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "all_of_them", "named"),
    [("collective", (), True), ("forward", (), False), ("collective", ("all",), True)],
)
def test_a_rank_that_gloo_aborts_for_another_collective_says_so(
    tmp_path: Path, phase: str, all_of_them: tuple[str, ...], named: bool
) -> None:
    program = tmp_path / "two_ranks.py"
    program.write_text(RANKS, encoding="utf-8")
    with contextlib.ExitStack() as stack:
        words = [[sys.executable, str(program), str(tmp_path), str(rank), phase, *all_of_them] for rank in (0, 1)]
        first = stack.enter_context(subprocess.Popen(words[0], stderr=subprocess.DEVNULL))
        while not (tmp_path / "rec" / "a0001").is_dir():
            assert first.poll() is None
            time.sleep(0.05)
        second = stack.enter_context(subprocess.Popen(words[1], stderr=subprocess.DEVNULL))
        codes = {first.wait(60), second.wait(60)}
    assert -signal.SIGABRT in codes
    found = engine.diagnose.hang(tmp_path)
    assert (found.findings[0].code == "XT-HANG-RANK") is named
    assert ("was aborted inside all_reduce #0: most often what connects the ranks does so" in found.verdict) is named
    assert any("stood in sums" in line for line in found.findings[0].evidence) is named
    cause = engine.diagnose.run(tmp_path).causes[0]
    assert ("aborted inside all_reduce" in cause.problem) is named
    assert (cause.code == "XT-RANK-DIED") is named


CRASH = """
import faulthandler, os, sys
from xectool.runlog.storage import attempt_dir, slots_path
from xectool.runlog.worker_slots import stacks_path
from xectool.runlog.writer import RunWriter

writer = RunWriter(sys.argv[1])
dump = open(stacks_path(slots_path(attempt_dir(writer.run_dir, 1))), "w")
faulthandler.enable(dump)
writer.status.phase("backward")
os.abort()
"""


def test_a_single_process_that_aborts_has_no_ranks_to_differ(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], check=False, stderr=subprocess.DEVNULL)
    assert engine.diagnose.hang(tmp_path).findings[0].code == "XT-HANG-DEAD"
    assert [cause.code for cause in engine.diagnose.run(tmp_path).causes] == ["XT-KILLED"]


def test_a_single_process_that_was_interrupted_lost_no_rank(tmp_path: Path) -> None:
    with contextlib.closing(RunWriter(tmp_path)) as writer:
        writer.status.phase("validation")
        writer.event("interrupted", "KeyboardInterrupt: ", step=20)
        writer.status[Word.PID_START] += 1  # killed before its page could say "done"
        assert not any(cause.code == "XT-RANK-DIED" for cause in engine.diagnose.run(tmp_path).causes)
        assert engine.diagnose.hang(tmp_path).verdict == "the run has ended: interrupted"


@pytest.mark.parametrize(
    ("part", "slow"), [("forward_s", 1), ("data_wait_s", 0), ("between", 1), ("backward_s", 0), ("backward_s", None)]
)
def test_a_rank_that_keeps_the_others_waiting_is_named(tmp_path: Path, part: str, slow: int | None) -> None:
    with RunWriter(tmp_path) as first, RunWriter(tmp_path, attempt=1, rank=1) as second:
        for number in range(1, 31):
            for rank, writer in enumerate((first, second)):
                own = {"forward_s": 0.2, "backward_s": 0.3}
                # every third step is held up; the other rank waits for it in backward, as both do in a slow network
                where = part if rank == slow or slow is None else "backward_s"
                # late to its step, between two: the other one waits for its counts in the transfer
                where = "transfer_s" if part == "between" and rank != slow else where
                own[where] = own.get(where, 0.0) + 1.8 * (number % 3 == 0)
                step_s = sum(own.values())
                own.pop("between", None)
                waited_s = own["backward_s"] - 0.3 if rank != slow else 0.0
                record = StepRecord(1, number, float(number), float(number), 1.0, step_s=step_s, **own)
                record.gradient_wait_s = waited_s if slow is not None else 0.0
                writer.step(record)
    found = [cause for cause in engine.diagnose.run(tmp_path).causes if cause.code == "XT-UNEVEN-RANKS"]
    assert [cause.problem.split(":")[0] for cause in found] == (
        [] if slow is None else [f"rank {slow} keeps the others waiting"]
    )


@pytest.mark.parametrize(("skew", "stalls", "named"), [(1.0, 0, False), (1.9, 0, True), (1.0, 2, False)])
def test_a_rank_that_has_half_a_core_for_the_last_minute_is_named_and_a_stall_is_not(
    tmp_path: Path, skew: float, stalls: int, named: bool
) -> None:
    """Steps as measured: a third of each before the backward, in which the other rank waits."""
    with RunWriter(tmp_path) as first, RunWriter(tmp_path, attempt=1, rank=1) as second:
        for number in range(1, 241):
            slower = 0.07 * (skew if number > 180 else 1.0)
            slower += 3.0 * (stalls > 0 and number % 30 == 0 and number > 180)
            for rank, writer in enumerate((first, second)):
                own = slower if rank else 0.07
                parts = {"forward_s": own, "backward_s": 0.13 * slower / 0.07 + slower - own}
                writer.step(
                    StepRecord(1, number, float(number), float(number), 1.0, step_s=sum(parts.values()), **parts)
                )
    found = [cause.problem for cause in UnevenRanks().look(gather(tmp_path))]
    assert [problem.startswith("rank 1 keeps the others waiting") for problem in found] == [True] * named


@pytest.mark.parametrize("every", [10, 25, 40])
def test_a_rank_that_waits_at_every_window_of_its_reader_is_named(tmp_path: Path, every: int) -> None:
    """All its waiting is in a few of its steps, which are no accidents of the machine."""
    with RunWriter(tmp_path) as first, RunWriter(tmp_path, attempt=1, rank=1) as second:
        for number in range(1, 401):
            waits = 3.0 * (number % every == 0)
            for rank, writer in enumerate((first, second)):
                parts = {"data_wait_s": waits if rank else 0.0, "forward_s": 0.07, "backward_s": 0.13}
                parts["backward_s"] += 0.0 if rank else waits
                writer.step(
                    StepRecord(1, number, float(number), float(number), 1.0, step_s=sum(parts.values()), **parts)
                )
    found = [cause.problem for cause in UnevenRanks().look(gather(tmp_path))]
    assert [problem.startswith("rank 1 keeps the others waiting") for problem in found] == [True]

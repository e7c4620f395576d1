import os
import resource
import signal
import stat
import subprocess
import sys
import time

import pytest
from xectool.errors import DiskError, UsageError
from xectool.runlog.compact import PackedSegment
from xectool.runlog.json_lines import LineWriter, all_lines
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EventRecord, StepRecord
from xectool.runlog.step_log import Limits
from xectool.runlog.writer import RunWriter

LOOP = """
import sys, time
from xectool.runlog.records import StepRecord
from xectool.runlog.writer import RunWriter
writer = RunWriter(sys.argv[1])
print("ready", flush=True)
for step in range(1, 10**7):
    writer.step(StepRecord(1, step, time.time(), time.monotonic(), 1.0, {"energy": 0.5}))
    if step % 100 == 0:
        print(step, flush=True)
"""


def step(number: int, **values) -> StepRecord:
    return StepRecord(1, number, time.time(), time.monotonic(), 1.0, {"energy": 0.5}, **values)


@pytest.mark.parametrize("after", range(5))
def test_killed_writer_loses_no_step(tmp_path, after):
    child = subprocess.Popen([sys.executable, "-c", LOOP, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    said = [int(child.stdout.readline()) for _ in range(1 + 7 * after)][-1]
    child.send_signal(signal.SIGKILL)
    rest = child.communicate()[0].split()
    said = int(rest[-1]) if rest else said
    steps = [record.step for record in RunReader(tmp_path).steps()]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= said
    assert RunReader(tmp_path).status().state == "killed"
    with RunWriter(tmp_path) as writer:
        assert writer.attempt == 2


def test_record_is_private(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.step(step(1))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "rec").rglob("*")}
    assert modes.pop("a0001") == 0o700
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "rec" / "a0001").iterdir()} == {0o600}


FULL = """
import resource, sys, time
from xectool.runlog.records import StepRecord
from xectool.runlog.writer import RunWriter
writer = RunWriter(sys.argv[1])
for number in range(1, 31):
    if number == 11:
        soft = (writer.run_dir / "rec/a0001/events.jsonl").stat().st_size + 100
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
    if number == 21:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.event("note", step=number)
print(writer.dropped)
"""


def test_full_disk_costs_events_but_not_the_training(tmp_path):
    done = subprocess.run([sys.executable, "-B", "-c", FULL, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "10\n"
    assert done.stderr.count("training continues without it") == 1
    reader = RunReader(tmp_path)
    assert [event.step for event in reader.events() if event.kind == "note"] == [*range(1, 11), *range(21, 31)]
    assert [event.data["lost"] for event in reader.events() if event.kind == "recorder_gap"] == [10]
    assert reader.status().lost == 10
    assert reader.status().damaged == 0


def test_events_beyond_their_limit_are_no_fault_of_the_disk(tmp_path):
    writer = LineWriter(tmp_path / "events.jsonl", limit_bytes=1 << 20)
    for number in range(30):
        writer.append(EventRecord("note", 1.0, 1.0, number, message="x" * 100_000), number)
    writer.append(EventRecord("finished", 1.0, 1.0, 30), 30)
    writer.close()
    gap, last = [line.record for line in all_lines(tmp_path / "events.jsonl").lines][-2:]
    assert (gap.kind, gap.data["reason"], last.kind) == ("recorder_gap", "limit", "finished")
    assert gap.data["lost"] == 30 - 11  # eleven of 100 kB are the first to reach 1 MiB
    assert "disk" not in gap.message


LOST_AT_THE_END = """
import resource, sys, time
from xectool.runlog.records import StepRecord
from xectool.runlog.status_page import Word
from xectool.runlog.step_log import Limits
from xectool.runlog.writer import RunWriter
writer = RunWriter(sys.argv[1], limits=Limits(segment_bytes=1 << 14))
for number in range(1, 401):
    if number == 200:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, resource.RLIM_INFINITY))
    writer.step(StepRecord(1, number, time.time(), time.monotonic(), 1.0))
said = writer.status[Word.DROPPED]
writer.event("finished", step=400)
writer.close()
print(writer.dropped, said)
"""


def test_steps_that_are_lost_up_to_the_end_are_said(tmp_path):
    done = subprocess.run(
        [sys.executable, "-B", "-c", LOST_AT_THE_END, tmp_path], capture_output=True, text=True, check=True
    )
    lost, said = map(int, done.stdout.split())
    reader = RunReader(tmp_path)
    assert lost == said == reader.status().lost > 100
    assert [event.kind for event in reader.events()][-2:] == ["recorder_gap", "finished"]


def test_only_the_first_rank_thins_the_steps_of_all(tmp_path):
    limits = Limits(segment_bytes=1 << 14, packed_bytes=1)
    with RunWriter(tmp_path) as first, RunWriter(tmp_path, attempt=1, limits=limits, rank=1) as second:
        for number in range(1, 301):
            second.step(step(number))
            first.step(step(number))
    packed = sorted((tmp_path / "rec" / "a0001").glob("rank0001*.zst"))
    assert len(packed) > 1
    assert {PackedSegment.open(path).stride for path in packed} == {1}


def test_run_that_is_being_trained_refuses_a_second_writer(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", LOOP, tmp_path], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    with pytest.raises(UsageError, match=f"pid {child.pid}.*\n.*\nfix: .*--run-name"):
        RunWriter(tmp_path)
    child.kill()
    child.communicate()
    RunWriter(tmp_path).close()


def test_recorded_attempt_is_never_appended_to(tmp_path):
    RunWriter(tmp_path, attempt=1).close()
    with pytest.raises(UsageError, match="leave out the attempt number"):
        RunWriter(tmp_path, attempt=1)


def test_run_directory_that_cannot_be_made_names_the_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"checkpoint\.save_dir"):
        RunWriter(tmp_path / "file" / "run")


def test_forked_child_does_not_keep_the_run_locked(tmp_path):
    writer = RunWriter(tmp_path)
    ready, done = os.pipe()
    orphan = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=ready, close_fds=False)
    writer.close()
    try:
        RunWriter(tmp_path).close()
    finally:
        os.close(done)
        os.close(ready)
        orphan.kill()
        orphan.wait()


def test_one_step_costs_less_than_a_tenth_of_a_millisecond(tmp_path):
    record = step(1, lr=1e-4, grad_norm=1.25, forward_s=0.01234567, backward_s=0.0234567, step_s=0.04)
    with RunWriter(tmp_path) as writer:
        cost = []
        for _ in range(20):
            start = resource.getrusage(resource.RUSAGE_THREAD)
            for _ in range(50):
                writer.step(record)
            stop = resource.getrusage(resource.RUSAGE_THREAD)
            cost.append(stop.ru_utime + stop.ru_stime - start.ru_utime - start.ru_stime)
    assert sorted(cost)[len(cost) // 4] / 50 < 100e-6


@pytest.mark.parametrize(("error", "state"), [(ValueError("boom"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_error_that_ends_the_run_is_its_last_word(tmp_path, error, state):
    def train() -> None:
        with RunWriter(tmp_path):
            raise error

    with pytest.raises(type(error)):
        train()
    status = RunReader(tmp_path).status()
    assert (status.state, status.message) == (state, f"{type(error).__name__}: {error}")

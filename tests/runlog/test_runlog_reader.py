import os
import time
from pathlib import Path

import pytest
from xectool import engine
from xectool.errors import UsageError
from xectool.runlog.reader import Position, RunReader
from xectool.runlog.records import EpochRecord, EventRecord, StepRecord
from xectool.runlog.run_dirs import require_record
from xectool.runlog.storage import attempt_dir
from xectool.runlog.writer import RunWriter


def attempt(run_dir: Path, first: int, last: int, *, loss: float = 1.0, end: str = "", resume: bool = False) -> None:
    """Records steps ``first`` to ``last`` with an epoch every ten steps."""
    with RunWriter(run_dir) as writer:
        if resume:
            writer.resume(first - 1, (first - 1) // 10)
        for step in range(first, last + 1):
            writer.step(StepRecord((step - 1) // 10 + 1, step, time.time(), time.monotonic(), loss))
            if step % 10 == 0:
                writer.epoch(EpochRecord(step // 10, step, time.time(), time.monotonic(), {"val/loss": loss}))
        if end:
            writer.event(end, "the end")


def last_file(run_dir: Path, number: int = 1) -> Path:
    return attempt_dir(run_dir, number) / "events.jsonl"


def test_resumed_run_reads_as_one_run(tmp_path):
    attempt(tmp_path, 1, 27, loss=1.0)
    attempt(tmp_path, 16, 40, loss=2.0, resume=True, end="finished")
    reader = RunReader(tmp_path)
    steps = list(reader.steps())
    assert [record.step for record in steps] == list(range(1, 41))
    assert [record.loss for record in steps] == [1.0] * 15 + [2.0] * 25
    assert [(record.epoch, record.metrics["val/loss"]) for record in reader.epochs()] == [
        (1, 1),
        (2, 2),
        (3, 2),
        (4, 2),
    ]
    assert reader.status().state == "finished"
    assert (reader.status().attempts, reader.status().step, reader.status().epoch) == (2, 40, 4)


def test_third_attempt_may_go_back_before_the_second(tmp_path):
    attempt(tmp_path, 1, 30, loss=1.0)
    attempt(tmp_path, 25, 35, loss=2.0, resume=True)
    attempt(tmp_path, 11, 12, loss=3.0, resume=True)
    assert [(r.step, r.loss) for r in RunReader(tmp_path).steps()][9:] == [(10, 1.0), (11, 3.0), (12, 3.0)]
    assert [record.epoch for record in RunReader(tmp_path).epochs()] == [1]


def test_attempt_that_died_before_it_loaded_a_checkpoint_supersedes_nothing(tmp_path):
    attempt(tmp_path, 1, 5)
    RunWriter(tmp_path).close()
    assert [record.step for record in RunReader(tmp_path).steps()] == [1, 2, 3, 4, 5]


def test_epoch_validated_twice_counts_once(tmp_path):
    attempt(tmp_path, 1, 10, loss=1.0)
    with RunWriter(tmp_path) as writer:
        writer.resume(10, 1)
        writer.epoch(EpochRecord(1, 10, time.time(), time.monotonic(), {"val/loss": 5.0}))
    assert [record.metrics["val/loss"] for record in RunReader(tmp_path).epochs()] == [5.0]


def test_lines_cut_at_any_byte_read_up_to_the_last_whole_one(tmp_path):
    attempt(tmp_path, 1, 30)
    whole = last_file(tmp_path).read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(ends[0] + 1, len(whole), 7):
        last_file(tmp_path).write_bytes(whole[:size])
        reader = RunReader(tmp_path)
        assert len(reader.epochs()) == sum(end < size for end in ends) - 1
        assert reader.status().damaged == 0
    assert len(list(reader.steps())) == 30


def test_overwritten_line_is_counted_and_the_rest_is_read(tmp_path):
    attempt(tmp_path, 1, 50)
    lines = last_file(tmp_path).read_bytes().splitlines(keepends=True)
    lines[3] = b"\0" * 40 + b"\n"
    last_file(tmp_path).write_bytes(b"".join(lines))
    assert [record.epoch for record in RunReader(tmp_path).epochs()] == [1, 2, 4, 5]
    assert RunReader(tmp_path).status().damaged == 1


def test_follower_sees_each_record_once_across_writes_and_attempts(tmp_path):
    writer = RunWriter(tmp_path)
    reader = RunReader(tmp_path)
    seen: list[int] = []
    position = None
    for number in range(1, 8):
        writer.step(StepRecord(1, number, 0.0, 0.0, 1.0))
        if number % 2:
            records, position = reader.follow(position)
            seen += [record.step for record in records if isinstance(record, StepRecord)]
    writer.close()
    attempt(tmp_path, 8, 9, resume=True)
    for _ in range(3):
        records, position = reader.follow(position)
        seen += [record.step for record in records if isinstance(record, StepRecord)]
    assert seen == list(range(1, 10))
    assert reader.follow(position) == ([], position)
    assert reader.follow(Position(position.attempt, position.offset)) == ([], position)


def test_follower_leaves_an_unfinished_line_for_later(tmp_path):
    attempt(tmp_path, 1, 12, end="finished")
    whole = last_file(tmp_path).read_bytes()
    last_file(tmp_path).write_bytes(whole[:-10])
    reader = RunReader(tmp_path)
    first, position = reader.follow()
    assert reader.follow(position) == ([], position)
    last_file(tmp_path).write_bytes(whole)
    second, _ = reader.follow(position)
    assert [record.tag for record in first] == ["attempt", *["step"] * 10, "epoch", "step", "step"]
    assert [record.kind for record in second] == ["finished"]


def test_a_line_nested_without_end_is_one_damaged_line(tmp_path):
    attempt(tmp_path, 1, 2, end="finished")
    with last_file(tmp_path).open("ab") as stream:
        stream.write(b"[" * 200_000 + b"\n")
    status = RunReader(tmp_path).status()
    assert (status.state, status.damaged) == ("finished", 1)


@pytest.mark.parametrize("end", ["finished", "failed", "interrupted"])
def test_last_event_tells_how_the_run_ended(tmp_path, end):
    attempt(tmp_path, 1, 2, end=end)
    status = RunReader(tmp_path).status()
    assert (status.state, status.message) == (end, "the end")


def test_run_without_a_last_event_is_running_while_its_process_lives(tmp_path):
    writer = RunWriter(tmp_path)
    assert RunReader(tmp_path).status().state == "running"
    writer.close()


def test_pid_given_to_another_process_does_not_look_like_the_run(tmp_path):
    writer = RunWriter(tmp_path)
    text = last_file(tmp_path).read_text()
    start = text.index('"pid_start":') + len('"pid_start":')
    last_file(tmp_path).write_text(text[:start] + "7" + text[text.index(",", start) :])
    assert RunReader(tmp_path).status().state == "killed"
    writer.close()
    assert RunReader(tmp_path).status().state == "ended"  # its page says so, whatever the disk took


def test_run_on_another_host_is_unknown(tmp_path):
    attempt(tmp_path, 1, 1)
    text = last_file(tmp_path).read_text()
    start = text.index('"host":"') + len('"host":"')
    last_file(tmp_path).write_text(text[:start] + "far-away-" + text[start:])
    assert RunReader(tmp_path).status().state == "unknown"


def test_directory_without_a_record_is_refused(tmp_path):
    with pytest.raises(UsageError, match="xectool runs"):
        RunReader(tmp_path)


@pytest.mark.parametrize(
    "name", ["config.yaml", "tracking/state.json", "rec/a0001/events.jsonl", "rec/a0001/rank0000.status"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "terabyte", "directory"])
def test_what_would_be_read_for_ever_is_named(tmp_path, name, kind):
    """A pipe in place of `events.jsonl` hung every command that was given the run, or the directory of all runs."""
    attempt(tmp_path / "run", 1, 10, end="finished")
    place = tmp_path / "run" / name
    if kind in ("terabyte", "directory") and place.parent.name != "a0001":
        return
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        with place.open("wb") as stream:
            stream.truncate(1 << 40)
    for command in (RunReader, engine.watch, engine.diagnose.run):
        with pytest.raises(UsageError, match="in place of a record") as refused:
            command(tmp_path / "run")
        assert refused.value.where == str(place)
    assert [run.status for run in engine.runs.list_runs(tmp_path).runs] == ["unreadable"]


def test_what_is_closed_or_vanishes_meanwhile_is_no_reason_to_refuse_a_run(tmp_path, monkeypatch):
    """The directory of the tracker is private, and a live run replaces its files: both ended the list of all runs."""
    attempt(tmp_path / "run", 1, 10, end="finished")
    (tmp_path / "run" / "tracking").mkdir()
    listed, looked = Path.iterdir, Path.stat

    def closed(path):
        if path.name == "tracking":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    def vanished(path, **options):
        if path.name.endswith(".jsonl"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return looked(path, **options)

    monkeypatch.setattr(Path, "iterdir", closed)
    monkeypatch.setattr(Path, "stat", vanished)
    require_record(tmp_path / "run")


def test_record_of_a_newer_format_is_refused(tmp_path):
    attempt(tmp_path, 1, 1)
    text = last_file(tmp_path).read_text()
    last_file(tmp_path).write_text(text.replace('"format":2', '"format":99'))
    with pytest.raises(UsageError, match="pip install --upgrade xectool"):
        list(RunReader(tmp_path).steps())
    with pytest.raises(UsageError, match="pip install --upgrade xectool"):
        RunReader(tmp_path).follow()


def test_events_of_all_attempts_are_kept(tmp_path):
    attempt(tmp_path, 1, 2, end="failed")
    attempt(tmp_path, 1, 2, resume=True, end="finished")
    assert [event.kind for event in RunReader(tmp_path).events()] == ["failed", "resume", "finished"]
    assert all(isinstance(event, EventRecord) for event in RunReader(tmp_path).events())


def test_what_holds_no_record_names_the_run_that_was_meant(tmp_path, monkeypatch):
    """A file was 'no such directory', and a directory of runs led to another command."""
    monkeypatch.chdir(tmp_path)
    for name in ("older", "my first"):
        attempt(Path("artifacts") / name, 1, 1)
    Path("artifacts/my first/config.yaml").touch()
    meant = {
        "artifacts": ("holds no run record", "name 'artifacts/my first'"),  # the newest
        "artifacts/my first/plots": ("no such directory", "name 'artifacts/my first'"),
        "artifacts/my first/config.yaml": ("this is a file", "name 'artifacts/my first'"),
        "artifacts/oldr": ("no such directory", "name artifacts/older"),
        "artifacts/oldruns": ("no such directory", "xectool runs   # lists them; those elsewhere: --root DIR"),
        "older": ("no such directory", "name artifacts/older"),
        "nothing/like/it": ("no such directory", "xectool runs   # lists them; those elsewhere: --root DIR"),
    }
    for given, (problem, fix) in meant.items():
        with pytest.raises(UsageError, match=problem) as refused:
            RunReader(given)
        assert refused.value.fix == fix

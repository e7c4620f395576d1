import contextlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.engine.live import Watch
from xectool.errors import DiskError
from xectool.runlog import json_lines
from xectool.runlog.compact import PackedSegment, compact, keep_within
from xectool.runlog.layout import Layout, RowWriter, checked_rows
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord, EventRecord, StepRecord, encode
from xectool.runlog.segments import RawSegment, Segment, SegmentFull
from xectool.runlog.step_log import Limits, StepFiles
from xectool.runlog.storage import attempt_dir
from xectool.runlog.writer import RunWriter

SMALL = Limits(segment_bytes=1 << 14, packed_bytes=1 << 30)  # about thirty steps a segment
NAMES = ("energy", "timing", "uvwFI")

LOOP = """
import sys, time
from xectool.runlog.records import StepRecord
from xectool.runlog.step_log import Limits
from xectool.runlog.writer import RunWriter
writer = RunWriter(sys.argv[1], limits=Limits(segment_bytes=1 << 18))
print("ready", flush=True)
for step in range(1, 10**7):
    writer.step(StepRecord(1, step, time.time(), float(step), 1.0 / step, {"energy": step * 0.5}, grad_norm=2.0 * step))
    if step % 100 == 0:
        writer.event("note", step=step)
        print(step, flush=True)
"""


def step(number: int, **values) -> StepRecord:
    return StepRecord(1, number, 1e9 + number, float(number), 1.0 / number, {"energy": 0.5 * number}, **values)


def same(first: StepRecord, second: StepRecord) -> bool:
    # the order of the names in a map is that of the file, and means nothing
    return bool(json.loads(encode(first)) == json.loads(encode(second)))


def text_floats():
    return st.floats(allow_nan=True, allow_infinity=True)


def maps():
    return st.dictionaries(st.text(min_size=1, max_size=8), text_floats(), max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_row_gives_back_any_record(data):
    integer = st.integers(-(2**63), 2**63 - 1)
    record = StepRecord(
        epoch=data.draw(integer),
        step=data.draw(integer),
        time=data.draw(text_floats()),
        mono=data.draw(text_floats()),
        loss=data.draw(text_floats()),
        losses=data.draw(maps()),
        block_norms=data.draw(maps()),
        nonfinite=data.draw(st.booleans()),
        skipped=data.draw(st.booleans()),
        rng=data.draw(integer),
        queue_depth=data.draw(integer),
    )
    known = data.draw(st.lists(st.text(min_size=1, max_size=8), max_size=80, unique=True))
    names = {"losses": tuple(dict.fromkeys([*known, *record.losses])), "block_norms": tuple(record.block_norms)}
    layout = Layout.of(names)
    block = checked_rows(Layout.from_json(layout.to_json()), RowWriter(layout).row(record, 7))
    assert (block.damaged, block.seqs.tolist()) == (0, [7])
    (found,) = block.records()
    assert same(found, record)


def test_integer_beyond_64_bits_is_clamped_and_does_not_stop_the_training():
    layout = Layout.of({})
    (found,) = checked_rows(layout, RowWriter(layout).row(StepRecord(1, 2, 0.0, 0.0, 1.0, seed=2**80), 0)).records()
    assert found.seed == 2**63 - 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 359), st.integers(1, 255))
def test_any_changed_byte_of_a_row_is_noticed(place, change):
    layout = Layout.of({"losses": NAMES})
    row = bytearray(RowWriter(layout).row(step(3), 0))
    row[place % (len(row) - 4)] ^= change
    assert checked_rows(layout, bytes(row)).damaged == 1


def test_field_of_a_later_version_is_skipped_and_a_missing_one_has_its_default():
    older = Layout(
        ("epoch", "step"), ("skipped",), ("time", "mono", "loss", "colour"), {"losses": ("a",), "shades": ("b",)}
    )
    row = np.zeros((1, older.num_words), np.int64)
    row[0, 1:3] = 4, 9
    (record,) = type(checked_rows(older, b""))(older, row).records()
    assert (record.epoch, record.step, record.loss, record.queue_depth, record.losses) == (4, 9, 0.0, -1, {})
    assert math.isnan(record.grad_norm)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=60), st.integers(0, 2))
def test_packed_segment_gives_back_every_record(tmp_path_factory, numbers, kinds):
    path = tmp_path_factory.mktemp("packed") / "rank0000.steps-000000000005.seg"
    segment = Segment(path, 5, 1 << 16, {})
    records = [step(number, block_norms=dict.fromkeys(NAMES[:kinds], number / 3)) for number in numbers]
    for record in records:
        segment.append(record)
    segment.close()
    packed = PackedSegment.open(compact(path))
    assert not path.exists()
    assert (packed.first, packed.stop, packed.count) == (5, 5 + len(numbers), len(numbers))
    found = packed.load(0, 10**9).records()
    assert all(map(same, found, records))
    assert [same(*pair) for pair in zip(packed.load(6, 8).records(), records[1:3], strict=False)].count(False) == 0


def test_a_flipped_bit_in_a_packed_segment_is_noticed_and_files_without_a_checksum_are_read(tmp_path):
    path = tmp_path / "rank0000.steps-000000000000.seg"
    segment = Segment(path, 0, 1 << 16, {})
    for number in range(1, 41):
        segment.append(step(number, block_norms={"encoder": number / 3}))
    segment.close()
    packed = compact(path)
    sound = packed.read_bytes()
    size = int.from_bytes(sound[8:16], "little")
    facts = json.loads(sound[16 : 16 + size])
    del facts["crc32"]
    older = json.dumps(facts).encode()
    believed = 0
    for place in [*range(16, 16 + size, 7), *range(16 + size, len(sound), 7)]:
        flipped = bytearray(sound)
        flipped[place] ^= 4
        packed.write_bytes(flipped)
        with contextlib.suppress(ValueError):
            found = PackedSegment.open(packed).load(0, 40).records()
            believed += [record.block_norms for record in found] != [{"encoder": n / 3} for n in range(1, 41)]
    assert believed == 0
    packed.write_bytes(sound[:8] + len(older).to_bytes(8, "little") + older + sound[16 + size :])
    assert [record.step for record in PackedSegment.open(packed).load(0, 40).records()] == list(range(1, 41))
    keep_within([tmp_path], 1)
    assert PackedSegment.open(packed).count == 1
    packed.write_bytes(flipped)
    keep_within([tmp_path], 1)  # a damaged file cannot be thinned, and does not keep the others from it
    assert packed.read_bytes() == flipped


def test_steps_over_many_segments_read_as_one_sequence_while_written_and_after(tmp_path):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        for number in range(1, 1001):
            writer.step(step(number))
            if number % 100 == 0:
                writer.epoch(EpochRecord(number // 100, number, 0.0, 0.0))
        assert [record.step for record in RunReader(tmp_path).steps()] == list(range(1, 1001))
        assert len(list(attempt_dir(tmp_path, 1).glob("*.seg"))) >= 1
    reader = RunReader(tmp_path)
    assert all(map(same, reader.steps(), map(step, range(1, 1001))))
    assert not list(attempt_dir(tmp_path, 1).glob("*.seg"))
    records, position = reader.follow()
    while (more := reader.follow(position))[0]:
        records, position = [*records, *more[0]], more[1]
    tags = [record.tag for record in records]
    assert tags == ["attempt", *(["step"] * 100 + ["epoch"]) * 10]


@pytest.mark.parametrize("count", [1, 7, 40, 5000])
def test_the_last_steps_are_those_of_the_whole_record(tmp_path, count):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        for number in range(1, 501):
            writer.step(step(number))
        writer.event("rewind", step=480)
        for number in range(481, 511):
            writer.step(step(number))
    with RunWriter(tmp_path, limits=SMALL) as writer:
        writer.resume(500, 1)
        for number in range(501, 506):
            writer.step(step(number))
    reader = RunReader(tmp_path)
    found = np.concatenate([block.column("step") for block in reader.last_blocks(count)])
    assert found.tolist()[-count:] == [record.step for record in reader.steps()][-count:]
    assert found.tolist()[-1] == 505


def test_damaged_records_are_counted_while_a_file_is_packed(tmp_path, monkeypatch):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        writer.step(step(1))
        (path,) = attempt_dir(tmp_path, 1).glob("*.seg")
        opened = StepFiles._open

        def packed_meanwhile(files, name):
            found = opened(files, name)
            if path.exists():
                compact(path)
            return found

        monkeypatch.setattr(StepFiles, "_open", packed_meanwhile)
        assert StepFiles(path.parent).damaged() == 0
        assert path.with_suffix(".zst").exists()
        monkeypatch.undo()


def test_a_second_look_at_a_long_run_reads_what_is_new(tmp_path, monkeypatch):
    read = []
    load, lines = StepFiles._load, json_lines.read_lines
    monkeypatch.setattr(StepFiles, "_load", lambda self, *place: read.append(place) or load(self, *place))
    monkeypatch.setattr(
        json_lines, "read_lines", lambda path, start, most: read.append(start) or lines(path, start, most)
    )
    with RunWriter(tmp_path, limits=SMALL) as writer:
        for number in range(1, 1001):
            writer.step(step(number))
        writer.epoch(EpochRecord(1, 1000, 0.0, 0.0, {"val/loss": 1.0}))
        watching = Watch(tmp_path)
        first = watching.look()
        while len(list(attempt_dir(tmp_path, 1).glob("*.seg"))) > 1:  # those that wait to be packed are looked through
            time.sleep(0.01)
        writer.event("note", "new", step=1000)
        read.clear()
        second = watching.look()
    assert len(list(attempt_dir(tmp_path, 1).glob("*steps*"))) > 20
    assert (first.events, second.events) == ((), ("step 1000 note: new",))
    assert second.metrics == {"val/loss": 1.0}
    assert min(place for place in read if isinstance(place, int)) > 0  # nothing from the beginning of the lines
    assert len({place[0] for place in read if isinstance(place, tuple)}) < 15  # few of the files


def test_names_that_come_and_go_share_one_layout(tmp_path):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        for number in range(1, 21):
            writer.step(step(number, block_norms={NAMES[number % 3]: 1.0}))
        assert len(list(attempt_dir(tmp_path, 1).glob("*.steps-*"))) <= 6
    assert [list(record.block_norms) for record in RunReader(tmp_path).steps()] == [
        [NAMES[number % 3]] for number in range(1, 21)
    ]


def test_step_with_more_names_than_a_segment_holds_is_lost_and_said(tmp_path, caplog):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        writer.step(step(1))
        writer.step(step(2, block_norms={f"block {number}": 1.0 for number in range(5000)}))
        assert writer.dropped == 1
    assert "too many values" in caplog.text
    assert [record.step for record in RunReader(tmp_path).steps()] == [1]


def test_a_torn_segment_is_told_once_however_often_it_is_looked_at(tmp_path, caplog):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        for number in range(1, 101):
            writer.step(step(number))
    torn = sorted(attempt_dir(tmp_path, 1).glob("*.steps-*.zst"))[0]
    content = bytearray(torn.read_bytes())
    content[len(content) // 2] ^= 0x55
    torn.write_bytes(content)
    for _ in range(3):
        assert len(list(RunReader(tmp_path).steps())) < 100
    assert caplog.text.count("steps are missing") == 1


def test_a_segment_whose_description_is_no_text_is_named(tmp_path, caplog):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        writer.step(step(1))
    (torn,) = attempt_dir(tmp_path, 1).glob("*.steps-*.zst")
    content = bytearray(torn.read_bytes())
    content[100] = 0xFF
    torn.write_bytes(content)
    assert list(RunReader(tmp_path).steps()) == []
    assert f"steps are missing: {torn} is damaged" in caplog.text
    assert "codec" not in caplog.text


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_fifty_killed_writers_lose_no_step_and_damage_none(tmp_path, first):
    chance = random.Random(first)
    for run in range(10):
        place = tmp_path / str(run)
        child = subprocess.Popen([sys.executable, "-c", LOOP, place], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.12))
        child.send_signal(signal.SIGKILL)
        said = [int(text) for text in child.communicate()[0].split()] or [0]
        reader = RunReader(place)
        steps = list(reader.steps())
        assert [record.step for record in steps] == list(range(1, len(steps) + 1))
        assert len(steps) >= said[-1]
        assert all(record.mono == record.step and record.grad_norm == 2.0 * record.step for record in steps)
        status = reader.status()
        assert (status.state, status.step, status.damaged) == ("killed", len(steps), 0)
        notes = [event.step for event in reader.events() if event.kind == "note"]
        assert notes == list(range(100, 100 * (len(notes) + 1), 100))
        assert len(notes) >= len(steps) // 100 - (len(steps) % 100 == 0)


def test_live_reader_never_sees_a_half_written_or_reordered_record(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", LOOP, tmp_path], stdout=subprocess.DEVNULL)
    try:
        while not (attempt_dir(tmp_path, 1) / "rank0000.status").exists():
            time.sleep(0.01)
        reader, position, seen = RunReader(tmp_path), None, []
        began = time.monotonic()
        while len(seen) < 1500 or time.monotonic() < began + 3.0:
            assert time.monotonic() < began + 200.0
            records, position = reader.follow(position)
            seen += [record for record in records if record.tag != "attempt"]
            assert reader.status().damaged == 0
    finally:
        child.kill()
        child.wait()
    steps = [record for record in seen if isinstance(record, StepRecord)]
    assert len(steps) > 1000
    assert [record.step for record in steps] == list(range(1, len(steps) + 1))
    assert all(record.loss == 1.0 / record.step and record.losses == {"energy": record.step * 0.5} for record in steps)
    before = {event.step: seen[place - 1].step for place, event in enumerate(seen) if isinstance(event, EventRecord)}
    assert all(before[number] == number for number in before)


FULL = """
import resource, sys, time
from xectool.runlog.records import StepRecord
from xectool.runlog.step_log import Limits
from xectool.runlog.writer import RunWriter
writer = RunWriter(sys.argv[1], limits=Limits(segment_bytes=1 << 14))
for number in range(1, 1001):
    if number in (200, 600):
        soft = 5000 if number == 200 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
    writer.step(StepRecord(1, number, time.time(), time.monotonic(), 1.0))
writer.close()
print(writer.dropped)
"""


def test_disk_that_fills_up_costs_steps_but_never_the_training(tmp_path):
    done = subprocess.run([sys.executable, "-B", "-c", FULL, tmp_path], capture_output=True, text=True, check=True)
    lost = int(done.stdout)
    assert done.stderr.count("training continues without it") == 1
    reader = RunReader(tmp_path)
    steps = [record.step for record in reader.steps()]
    assert steps == sorted(set(steps))
    assert len(steps) == 1000 - lost
    assert steps[-1] == 1000
    assert 300 < lost < 500
    assert reader.status().lost == lost
    assert reader.status().damaged == 0


@pytest.fixture
def tiny_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], check=False, capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small disk needs privileges")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


TINY = """
import sys
from xectool.runlog.records import StepRecord
from xectool.runlog.step_log import Limits
from xectool.runlog.writer import RunWriter
writer = RunWriter(sys.argv[1], limits=Limits(segment_bytes=1 << 16, packed_bytes=1 << 30))
for number in range(1, 20001):
    writer.step(StepRecord(1, number, 0.1 * number, 0.3 * number, number ** 0.5, {"a": number ** 0.3}))
    if number % 100 == 0:
        writer.event("note", "x" * 100, step=number)
print("trained", writer.dropped > 0)
"""


def test_full_disk_raises_no_sigbus(tiny_disk):
    done = subprocess.run(
        [sys.executable, "-B", "-c", TINY, tiny_disk / "run"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "trained True\n"
    steps = [record.step for record in RunReader(tiny_disk / "run").steps()]
    assert steps[:100] == list(range(1, 101))
    assert RunReader(tiny_disk / "run").status().damaged == 0


def test_disk_without_room_for_a_segment_is_said_before_training(tiny_disk):
    # the first segment of a run takes 512 KiB
    with pytest.raises(DiskError, match=r"No space left.*\n.*\nfix: .*checkpoint\.save_dir"):
        RunWriter(tiny_disk / "run")
    assert not list((tiny_disk / "run" / "rec").glob("a*"))
    RunWriter(tiny_disk / "run", limits=SMALL).close()


def test_directory_deleted_in_the_middle_costs_records_only(tmp_path):
    with RunWriter(tmp_path / "run", limits=SMALL) as writer:
        for number in range(1, 500):
            if number == 100:
                while (tmp_path / "run").exists():  # finished segments are packed meanwhile
                    shutil.rmtree(tmp_path / "run", ignore_errors=True)
            writer.step(step(number))
            writer.status.phase("forward")
        assert writer.dropped > 300


def test_rewind_takes_back_the_steps_that_are_trained_again(tmp_path):
    with RunWriter(tmp_path, limits=SMALL) as writer:
        for number in range(1, 31):
            writer.step(step(number))
        writer.epoch(EpochRecord(1, 30, 0.0, 0.0, {"val/loss": 1.0}))
        writer.event("rewind", step=20, from_step=30, to_step=20)
        for number in range(21, 41):
            writer.step(step(number, lr=0.5))
        writer.epoch(EpochRecord(1, 40, 0.0, 0.0, {"val/loss": 2.0}))
    reader = RunReader(tmp_path)
    steps = list(reader.steps())
    assert [record.step for record in steps] == list(range(1, 41))
    assert [record.lr == 0.5 for record in steps] == [False] * 20 + [True] * 20
    assert [record.metrics["val/loss"] for record in reader.epochs()] == [2.0]
    columns = np.concatenate([block.column("step") for _, block in reader.step_blocks()])
    assert columns.tolist() == list(range(1, 41))


def test_rewind_whose_counter_goes_on_takes_nothing_back(tmp_path):
    with RunWriter(tmp_path) as writer:
        for number in range(1, 11):
            writer.step(step(number))
        writer.event("rewind", step=10, from_step=10, to_step=5)
        writer.step(step(11))
    assert [record.step for record in RunReader(tmp_path).steps()] == list(range(1, 12))


@pytest.mark.slow
def test_a_million_steps_stay_within_the_budget_and_recent_ones_are_whole(tmp_path):
    budget = 8 << 20
    noise = random.Random(1)
    values = [noise.gauss(1.0, 0.3) for _ in range(1000)]
    with RunWriter(tmp_path, limits=Limits(packed_bytes=budget)) as writer:
        for number in range(1, 1_000_001):
            value = values[number % 1000] / number
            writer.step(
                StepRecord(
                    1, number, 1e9 + value, value, value, {"a": value, "b": value}, nonfinite=number % 200_000 == 77
                )
            )
    files = [path for path in (tmp_path / "rec").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if path.suffix == ".zst") <= budget
    assert sum(path.stat().st_size for path in files) <= budget + (1 << 20)
    steps = np.concatenate([block.column("step") for _, block in RunReader(tmp_path).step_blocks()])
    assert (np.diff(steps) > 0).all()
    assert np.isin(np.arange(980_000, 1_000_001), steps).all()
    assert np.isin(np.arange(77, 1_000_000, 200_000), steps).all()
    gaps = [np.diff(steps[(steps > low) & (steps < low + 100_000)]).mean() for low in (0, 450_000, 900_000)]
    assert gaps[0] > gaps[1] > gaps[2]
    began = time.process_time()
    assert RunReader(tmp_path).status().step == 1_000_000
    assert time.process_time() - began < 1.0


def test_budget_is_kept_over_attempts_too(tmp_path):
    limits = Limits(segment_bytes=1 << 16, packed_bytes=40_000)
    for attempt in range(4):
        with RunWriter(tmp_path, limits=limits) as writer:
            writer.resume(attempt * 500, 1)
            for number in range(attempt * 500 + 1, attempt * 500 + 501):
                writer.step(step(number, lr=math.sin(number), grad_norm=math.cos(number)))
    assert sum(path.stat().st_size for path in (tmp_path / "rec").rglob("*.zst")) <= limits.packed_bytes
    steps = [record.step for record in RunReader(tmp_path).steps()]
    assert steps == sorted(set(steps))
    assert steps[-100:] == list(range(1901, 2001))


def test_segments_of_a_killed_attempt_are_packed_by_the_next(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", LOOP, tmp_path], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    child.stdout.readline()
    child.kill()
    child.communicate()
    assert list(attempt_dir(tmp_path, 1).glob("*.seg"))
    before = [record.step for record in RunReader(tmp_path).steps()]
    RunWriter(tmp_path).close()
    assert not list((tmp_path / "rec").rglob("*.seg"))
    assert [record.step for record in RunReader(tmp_path).steps()] == before


def old_attempt(run_dir: Path, number: int, records: list) -> None:
    directory = attempt_dir(run_dir, number)
    directory.mkdir(parents=True)
    first = f'{{"r":"attempt","attempt":{number},"time":1.0,"mono":1.0,"pid":1,"host":"x","format":1}}\n'
    (directory / "record.jsonl").write_bytes(first.encode() + b"".join(encode(record) for record in records))


def test_run_of_format_one_is_read_and_goes_on_in_the_new_format(tmp_path):
    old_attempt(tmp_path, 1, [*map(step, range(1, 11)), EpochRecord(1, 10, 0.0, 0.0, {"val/loss": 3.0})])
    reader = RunReader(tmp_path)
    assert all(map(same, reader.steps(), map(step, range(1, 11))))
    assert (reader.status().step, reader.status().state) == (10, "unknown")
    with RunWriter(tmp_path) as writer:
        assert writer.attempt == 2
        writer.resume(8, 1)
        writer.step(step(9, lr=0.5))
    assert [(record.step, record.lr == 0.5) for record in reader.steps()] == [
        *((number, False) for number in range(1, 9)),
        (9, True),
    ]
    assert reader.status().step == 9
    records, position = reader.follow()
    more, _ = reader.follow(position)
    assert [record.step for record in [*records, *more] if isinstance(record, StepRecord)] == [*range(1, 9), 9]


def test_segment_that_cannot_be_made_leaves_nothing(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(FileExistsError):
        Segment(tmp_path / "taken", 0, 1 << 14, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            Segment(tmp_path / "big", 0, 1 << 14, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "big").exists()
    empty = Segment(tmp_path / "empty", 0, 1 << 14, {})
    assert RawSegment.open(tmp_path / "empty") is None
    for _ in range(10):
        empty.append(step(empty.count + 1))
    with pytest.raises(SegmentFull):
        [empty.append(step(number)) for number in range(1, 1000)]
    assert RawSegment.open(tmp_path / "empty").stop == empty.count

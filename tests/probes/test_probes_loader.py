"""The stage that is slow is the one that is named, settings only change beyond the noise, and an epoch is predicted."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uproot
from xectool import engine
from xectool.config.load import load_config
from xectool.data.cache import deciding
from xectool.engine.diagnose import loading_speed
from xectool.probes.loading import epoch_time
from xectool.probes.loading.epoch_time import StepTime, core_share, epoch_range, measure_step, predict_epoch
from xectool.probes.loading.events import LoadingSubject, Setting, events_per_basket, whole_basket_chunk
from xectool.probes.loading.findings import LoaderFacts, findings_of
from xectool.probes.loading.race import grid, race, reader_start_s, reading_rate
from xectool.probes.loading.stages import StageReport, _core_s, _report, _Round, measure_stages
from xectool.rootio.inflate import inflate_range, inflated_bytes
from xectool.rootio.source import LocalSource
from xectool.rootio.stages import DECOMPRESS, READ, StageClock, clocked, timed
from xectool.training.process.device import plan_execution

Write = Callable[..., Path]
EVENTS = 96


@pytest.fixture(scope="session")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The columns of some simulated events."""
    path = tmp_path_factory.mktemp("loader") / "train.root"
    engine.simulate(str(path), events=EVENTS, seed=7)
    with uproot.open(path) as file:
        return file["tree"].arrays(library="np")


def write_tree(directory: Path, columns: dict[str, Any], compression: Any, basket: int, name: str = "train_0") -> Path:
    """Write events with a compression and so many events a basket."""
    directory.mkdir(parents=True, exist_ok=True)
    with uproot.recreate(directory / f"{name}.root", compression=compression) as file:
        tree = file.mktree("tree", {key: (value.dtype, value.shape[1:]) for key, value in columns.items()})
        for start in range(0, len(columns["npho"]), basket):
            tree.extend({key: value[start : start + basket] for key, value in columns.items()})
    return directory


@pytest.fixture
def subject_of(write_config: Write, one_file: dict[str, Any], tmp_path: Path) -> Callable[..., LoadingSubject]:
    def make(compression: Any = None, basket: int = 32, **data: Any) -> LoadingSubject:
        train = write_tree(tmp_path / "files", one_file, compression, basket)
        config = load_config(write_config(train=train, data={"chunksize": 64, **data})).config
        return LoadingSubject.of(config)

    return make


def stages(subject: LoadingSubject, rounds: int = 2) -> StageReport:
    return measure_stages(subject, torch.device("cpu"), EVENTS, 5.0, rounds)


def test_clock_counts_only_while_it_is_in_place() -> None:
    clock = StageClock()
    assert timed(READ, lambda size: bytes(size), 5) == bytes(5)
    with clocked(clock):
        timed(READ, lambda size: bytes(size), 7)
    timed(READ, lambda size: bytes(size), 9)
    assert (clock.calls[READ], clock.read_bytes) == (1, 7)


@pytest.mark.parametrize(("compression", "name"), [(uproot.LZMA(4), "XZ"), (uproot.ZLIB(9), "ZL")])
def test_slow_codec_makes_decompression_dominant(
    subject_of: Callable[..., LoadingSubject], compression: Any, name: str
) -> None:
    report = stages(subject_of(compression, num_shards=1))
    # libdeflate takes hardly longer than the other stages
    assert report.dominant == "decompress" or name == "ZL"
    assert next(iter(report.algorithms)) == name
    assert 0 < report.limit_events_per_s < report.decompress_events_per_s


def test_slow_storage_makes_reading_dominant_and_a_fast_one_does_not(
    subject_of: Callable[..., LoadingSubject], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(uproot.ZLIB(1))
    assert stages(subject).dominant != "read"
    read = LocalSource.read

    def throttled(self: LocalSource, start: int, num_bytes: int) -> bytes:
        time.sleep(num_bytes / 2e6)
        return read(self, start, num_bytes)

    monkeypatch.setattr(LocalSource, "read", throttled)
    report = stages(subject, rounds=1)
    assert report.dominant == "read"
    assert report.read_bytes_per_s < 2e6
    found = {finding.code: finding for finding in findings_of(facts_of(subject, report, 1e-6), ())}
    assert {"XT-LOADER-SLOW", "XT-LOADER-STORAGE"} <= found.keys()


def test_slow_storage_leads_to_a_copy_on_a_disk_of_this_machine_as_a_whole_line(
    subject_of: Callable[..., LoadingSubject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said in words to copy the files; training does that itself where a key says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(deciding, "is_local_disk", lambda kind: True)
    subject = subject_of(uproot.ZLIB(1), cache="off")
    report = stages(subject, rounds=1)
    read = dataclasses.replace(report.stages["read"], us_per_event=1e6)
    facts = facts_of(subject, dataclasses.replace(report, stages=report.stages | {"read": read}), 1e-6)

    def line(subject: LoadingSubject) -> str:
        copying = loading_speed._copying(subject, tmp_path / "c.yaml", ["data.chunksize=64"])
        found = {item.code: item.fix for item in findings_of(dataclasses.replace(facts, copying=copying), ())}
        return found["XT-LOADER-STORAGE"]

    word, setting = shlex.split(line(subject), comments=True)
    assert (word, setting) == ("--set", f"data.cache={tmp_path}/home/xectool/events")
    data = subject.config.data.model_copy(update={"cache": setting.partition("=")[2]})
    copying = LoadingSubject.of(subject.config.model_copy(update={"data": data}))
    assert copying.copied, "the control: what the line says has training make the copy"
    assert line(copying).startswith(f"xectool prepare {tmp_path}/c.yaml --set data.chunksize=64   # ")
    monkeypatch.setattr(deciding, "is_local_disk", lambda kind: False)
    assert line(subject).startswith("xectool explain XT-LOADER-STORAGE   # no disk")


def facts_of(subject: LoadingSubject, report: StageReport, batch_s: float) -> LoaderFacts:
    setting = Setting.of(subject.config)
    rate = 1e6 / report.reading_us
    return LoaderFacts(
        stages=report,
        epoch=predict_epoch(subject, setting, rate, report, StepTime(batch_s), 1),
        num_files=len(subject.source.files),
        num_events=subject.source.num_events,
        file_bytes=subject.file_bytes,
        cached_share=1.0,
        events_per_basket=events_per_basket(subject),
        window_events=subject.plan(setting.chunksize).window_events,
        whole_basket_chunk=whole_basket_chunk(subject),
        memory_bytes=10**10,
        example=subject.source.files[0].path,
    )


def test_tiny_baskets_are_named_and_large_ones_are_not(subject_of: Callable[..., LoadingSubject]) -> None:
    for basket, named in ((1, True), (32, False)):
        subject = subject_of(uproot.ZLIB(1), basket)
        facts = facts_of(subject, stages(subject), 1e-6)
        assert facts.events_per_basket == basket
        assert ("XT-LOADER-BASKETS" in {finding.code for finding in findings_of(facts, ())}) == named


def test_windows_smaller_than_baskets_are_named_with_the_chunk_that_cures_it(
    subject_of: Callable[..., LoadingSubject],
) -> None:
    small = subject_of(uproot.ZLIB(1), EVENTS, num_shards=4, chunksize=EVENTS // 6)
    report = stages(small)
    assert report.repeats > 2
    found = {finding.code: finding for finding in findings_of(facts_of(small, report, 10.0), ())}
    assert found["XT-LOADER-WINDOW"].fix == f"--set data.chunksize={EVENTS}"
    assert stages(subject_of(uproot.ZLIB(1), EVENTS, num_shards=4, chunksize=EVENTS)).repeats < 1.5


def test_thousands_of_small_files_show_as_opening(
    write_config: Write, one_file: dict[str, Any], tmp_path: Path
) -> None:
    for number in range(80):  # more than stay open
        piece = {key: value[number : number + 1] for key, value in one_file.items()}
        write_tree(tmp_path / "many", piece, None, 1, f"train_{number:03d}")
    config = load_config(write_config(train=tmp_path / "many")).config
    subject = LoadingSubject.of(config)
    report = measure_stages(subject, torch.device("cpu"), 80, 20.0, 5)
    assert report.dominant == "read"
    assert report.open_us > 0.5 * report.stages["read"].us_per_event
    facts = loading_speed._facts(subject, report, 1.0, facts_of(subject, report, 10.0).epoch)
    (told,) = [found.fix for found in findings_of(facts, ()) if found.code == "XT-LOADER-FILES"]
    assert told == f"hadd merged.root {tmp_path}/many/train_0*.root   # then --set data.train_path=merged.root"


def test_rntuple_is_measured_too(write_config: Write, tmp_path: Path) -> None:
    engine.simulate(str(tmp_path / "train_0.root"), events=32, seed=1, format="rntuple")
    report = stages(LoadingSubject.of(load_config(write_config(train=tmp_path)).config), 1)
    assert report.stages["decompress"].us_per_event > 0
    assert report.reads_per_event > 0
    assert sum(stage.share for stage in report.stages.values()) == pytest.approx(1)


@pytest.mark.parametrize(("entry", "inflated"), [(0, 1), (31, 32)])
def test_inflated_bytes_are_those_up_to_what_is_wanted(
    subject_of: Callable[..., LoadingSubject], entry: int, inflated: int
) -> None:
    subject, clock = subject_of(uproot.ZLIB(1)), StageClock(keep=True)
    with clocked(clock):
        subject.source.event_file(0).read_column("npho", entry, entry + 1)
    body, begin, end = next(arguments for work, arguments in clock.kept if work is inflate_range)
    assert clock.calls[DECOMPRESS] == 1
    assert end - begin == 4760 * 4
    assert inflated_bytes(body, begin, end) == inflated * 4760 * 4


def test_the_limit_is_that_of_the_machine_whatever_else_it_does() -> None:
    packed, cores = (
        zlib.compress(np.random.default_rng(5).integers(0, 9, 10**7, np.uint8).tobytes()),
        os.sched_getaffinity(0),
    )
    spinners: list[subprocess.Popen[bytes]] = []
    os.sched_setaffinity(0, {min(cores)})
    try:
        with ThreadPoolExecutor(2) as pool:
            alone = _core_s(pool, zlib.decompress, [packed] * 8)
            spinners += [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
            began = time.perf_counter()
            beside = _core_s(pool, zlib.decompress, [packed] * 8)
            wall = time.perf_counter() - began
    finally:
        os.sched_setaffinity(0, cores)
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
    assert beside < 0.8 * wall
    assert beside < 2.0 * alone


def test_a_quota_of_cores_lowers_the_limit(subject_of: Callable[..., LoadingSubject], tmp_path: Path) -> None:
    subject, found = subject_of(uproot.ZLIB(1)), list[StageReport]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xectool.config.cgroups._MOUNT", tmp_path)
        for quota in ("max", "5000"):
            (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
            found.append(stages(subject))
    cores = len(os.sched_getaffinity(0))
    for name in ("limit_events_per_s", "copy_events_per_s", "decompress_events_per_s"):
        # one thread has more of the caches than many, and a busy machine is noisy: 20 to 1280 times less is the quota
        assert getattr(found[0], name) > 4 * cores * getattr(found[1], name)


def test_the_limit_is_that_of_the_fastest_round_and_no_less_than_was_read(
    write_config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine 11 800 events/s were read where a limit of 10 500 was told."""
    rounds = [_Round(1, StageClock(), 1.0, (1.0, 1.0), limit, limit) for limit in (100.0, 400.0, 200.0)]
    report = _report(rounds)
    assert (report.limit_events_per_s, report.copy_events_per_s) == (200.0, 400.0)
    told = []
    for rate in (1e9, 1.0):
        monkeypatch.setattr(loading_speed, "reading_rate", lambda *given, rate=rate: lambda setting, number: rate)
        result = engine.diagnose.loader(write_config(), seconds=1, step_ms=1.0, device="cpu")
        assert result.limit_events_per_s >= result.events_per_s == rate
        told.append([note for note in result.notes if "is given as the limit" in note])
    assert (len(told[0]), told[1]) == (1, [])


# -- races


CURRENT = Setting(8192, 0, 2)


def raced(rates: Callable[[Setting, int], float], needs: Callable[[Setting], int] = lambda setting: 1) -> Any:
    return race([CURRENT, Setting(8192, 2, 1), Setting(32768, 0, 2)], needs, 10, rates, 5.0)


def test_faster_setting_wins_by_pairs() -> None:
    noise = np.random.default_rng(0)
    verdict = raced(lambda setting, number: (200 if setting.num_workers else 100) * noise.uniform(0.9, 1.1))
    assert verdict.best == Setting(8192, 2, 1)
    assert 1.6 < verdict.gain < 2.5
    assert CURRENT.differing(verdict.best) == {"data.num_workers": 2, "data.num_threads": 1}


def test_a_lucky_round_of_a_setting_that_had_no_other_takes_no_time_of_the_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast, lucky, now = Setting(8192, 2, 1), Setting(32768, 0, 2), [0.0]
    monkeypatch.setattr("xectool.probes.loading.race.time.perf_counter", lambda: now[0])

    def rate(setting: Setting, number: int) -> float:
        now[0] += 1
        return {CURRENT: 100.0, fast: 150.0, lucky: 90.0 if number else 900.0}[setting]

    # Rounds have 4 s of 10, at most 4.8: the second one ends before its third setting.
    verdict = race([CURRENT, fast, lucky], lambda setting: 1, 10, rate, 10.0)
    assert verdict.reason == f"{fast} may be faster, but the time was up after 3 of 5 pairs"
    assert race([CURRENT, fast, lucky], lambda setting: 1, 10, rate, 20.0).best == fast
    assert race([CURRENT], lambda setting: 1, 10, rate, 10.0).best == CURRENT


def test_equal_settings_keep_the_current_one_whatever_the_noise() -> None:
    kept = 0
    for seed in range(40):
        noise = np.random.default_rng(seed)
        verdict = raced(lambda setting, number, noise=noise: 100 * noise.uniform(0.6, 1.4))
        kept += verdict.best == CURRENT
        assert verdict.best != CURRENT or verdict.gain == 1
    assert kept >= 36


def test_without_pairs_the_luckiest_setting_would_win() -> None:
    luckiest = 0
    for seed in range(40):
        noise = np.random.default_rng(seed)
        verdict = raced(lambda setting, number, noise=noise: 100 * noise.uniform(0.6, 1.4))
        luckiest += verdict.timings[0].setting != CURRENT
    assert luckiest > 12  # against at most 4 above


def test_setting_beyond_the_memory_is_left_out_with_its_need() -> None:
    verdict = raced(lambda setting, number: 100.0, lambda setting: 100 if setting.chunksize > 8192 else 1)
    left_out = next(timing for timing in verdict.timings if timing.setting.chunksize > 8192)
    assert "needs" in left_out.skipped
    assert left_out.rates == ()


@pytest.mark.parametrize("cores", [1, 2, 16, 72])
def test_grid_starts_with_the_current_setting_and_holds_none_twice(cores: int) -> None:
    settings = grid(CURRENT, cores, 10**6, 3512)
    assert settings[0] == CURRENT
    assert len(set(settings)) == len(settings) <= 16
    assert all(max(setting.num_workers, 1) * setting.num_threads <= max(cores, 2) for setting in settings)
    assert any(setting.chunksize > CURRENT.chunksize for setting in settings)
    # a chunk beyond the data set changes nothing
    assert all(setting.chunksize <= CURRENT.chunksize for setting in grid(CURRENT, cores, 100, 3512))


@pytest.mark.parametrize("events", [3000, 10**6])
def test_one_chunk_of_all_events_is_tried_before_other_threads(events: int) -> None:
    settings = grid(Setting(512, 0, 2), 2, events, 439)
    chunks = [setting.chunksize for setting in settings]
    assert chunks[: chunks.index(512, 1)] == [512, events, 2048]


@pytest.mark.parametrize("workers", [0, 1])
def test_rate_of_a_real_reader_is_measured(subject_of: Callable[..., LoadingSubject], workers: int) -> None:
    subject = subject_of(uproot.ZLIB(1), num_shards=2)
    assert reading_rate(subject, EVENTS)(Setting(64, workers, 1), 0) > 10


# -- the epoch


def test_waits_are_what_reading_takes_beyond_the_steps(subject_of: Callable[..., LoadingSubject]) -> None:
    subject = subject_of(None, num_shards=1, chunksize=16)
    report = dataclasses.replace(stages(subject, 1), gather_us=0.0)
    setting, batches = Setting.of(subject.config), EVENTS / subject.config.data.batch_size
    bound = predict_epoch(subject, setting, 100.0, report, StepTime(1e-6), 1)
    assert bound.train_s == pytest.approx(EVENTS / 100.0, rel=1e-3)
    assert bound.data_wait_share > 0.99
    free = predict_epoch(subject, setting, 1e9, report, StepTime(0.5), 1)
    assert free.train_s == pytest.approx(0.5 * batches)
    assert free.data_wait_share < 1e-3


def test_a_whole_cache_is_what_is_measured_and_one_to_come_is_told(
    write_config: Write, one_file: dict[str, Any], tmp_path: Path
) -> None:
    train, cache = write_tree(tmp_path / "files", one_file, uproot.ZLIB(1), 32), tmp_path / "cache"
    path = write_config(train=train, data={"chunksize": 64, "cache": str(cache)})
    config = load_config(path).config
    before = LoadingSubject.of(config)
    assert (before.source.cache, before.copied) == (None, f"{cache} (data.cache)")
    result = engine.diagnose.loader(path, seconds=1, step_ms=1e-3, device="cpu")
    assert result.later_epoch_s is not None
    assert result.later_epoch_s < result.epoch_s
    assert any("copies the events in its first epoch" in note for note in result.notes)
    measure_step(config, plan_execution(config.training, "cpu"), 0.0)
    assert not cache.exists()  # a diagnosis does not begin the copy
    engine.prepare(path)
    after = LoadingSubject.of(config)
    assert (after.source.cache is None, after.copied) == (False, "")
    assert stages(after, 1).stages["decompress"].us_per_event == 0
    assert stages(before, 1).stages["decompress"].us_per_event > 0


def test_what_the_first_epoch_takes_beside_is_told(
    write_config: Write, subject_of: Callable[..., LoadingSubject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch of eight batches took 1.3 s more than was told: its reading process had to start."""
    subject = subject_of(uproot.ZLIB(1), num_shards=1)
    readers = {workers: reader_start_s(subject, Setting(64, workers, 1)) for workers in (0, 1)}
    assert readers[1] > max(0.03, 2 * readers[0])
    clocked = iter([0.3, *[0.1] * 20])
    monkeypatch.setattr(epoch_time, "_step", lambda *given: next(clocked))
    path = write_config(data={"num_workers": 1})
    config = load_config(path).config
    step = measure_step(config, plan_execution(config.training, "cpu"), 0.0)
    assert step.start_s == pytest.approx(0.2)
    monkeypatch.setattr(loading_speed, "measure_step", lambda *given: step)
    monkeypatch.setattr(loading_speed, "reader_start_s", lambda *given: 1.3)
    result = engine.diagnose.loader(path, seconds=1, device="cpu")
    assert result.start_s == pytest.approx(1.5)
    assert any("its readers start (1.3 s), and its first step is longer by 0.2 s" in note for note in result.notes)
    monkeypatch.setattr(loading_speed, "reader_start_s", lambda *given: 0.0)
    calm = engine.diagnose.loader(path, seconds=1, step_ms=1e3, device="cpu")
    assert calm.start_s == 0
    assert not any("readers start" in note for note in calm.notes)


def told_and_measured(path: Path, run_name: str) -> tuple[float, float, float]:
    """Seconds of an epoch: the smaller and the larger prediction, before a training and after it, and its own."""
    config = load_config(path).config
    subject, execution = LoadingSubject.of(config), plan_execution(config.training, "cpu")
    steps = [measure_step(config, execution, 3.0)]
    result = engine.train(path, run_name=run_name, device="cpu")
    steps.append(measure_step(config, execution, 3.0))
    rows = engine.diagnose.query(str(result.run_dir), "SELECT seconds FROM epochs ORDER BY epoch").rows
    report = stages(subject)
    rate = reading_rate(subject, EVENTS)(Setting.of(config), 0)
    low, high = sorted(predict_epoch(subject, Setting.of(config), rate, report, step, 1).train_s for step in steps)
    return low, high, float(np.median([row[0] for row in rows]))


@pytest.mark.slow
def test_predicted_epoch_is_that_of_the_training(write_config: Write, one_file: dict[str, Any], tmp_path: Path) -> None:
    path = write_config(train=write_tree(tmp_path / "files", one_file, uproot.ZLIB(1), 32), training={"epochs": 3})
    # the load of the machine changes meanwhile, so the training may lie anywhere between before and after; where the
    # machine was busy with the training alone, or stood still in it, the comparison is made again
    tries = (told_and_measured(path, f"try{number}") for number in range(4))
    assert any(low / 1.3 < real < high * 1.3 for low, high, real in tries)


def test_time_that_other_processes_took_is_told(write_config: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cores = write_config(), os.sched_getaffinity(0)
    config = load_config(path).config
    os.sched_setaffinity(0, {min(cores)})
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # on the same core
    try:
        step, share = measure_step(config, plan_execution(config.training, "cpu"), 1.0), core_share()
    finally:
        spinner.kill()
        spinner.wait()
        os.sched_setaffinity(0, cores)
    assert 0 < step.core_share < 0.8
    assert 0 < share < 0.8
    monkeypatch.setattr(loading_speed, "measure_step", lambda *given: step)
    monkeypatch.setattr(loading_speed, "core_share", lambda: share)
    result = engine.diagnose.loader(path, seconds=1, device="cpu")
    assert any(f"{step.core_share * result.epoch_s:.3g} s" in note for note in result.notes)
    given = engine.diagnose.loader(path, seconds=1, step_ms=1e3, device="cpu")
    assert any("all rates are higher" in note for note in given.notes)
    low, high = result.epoch_range_s
    assert low < step.core_share * result.epoch_s < result.epoch_s < high


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (StepTime(1.0, spread=0.1, on_host=True, core_share=0.5), (40.0, 120.0)),
        (StepTime(1.0, spread=0.1, on_host=False, core_share=0.5), (80.0, 120.0)),
        (StepTime(1.0, spread=0.4, on_host=True, core_share=1.0), (60.0, 140.0)),
    ],
    ids=["beside others", "on a GPU", "noisy steps"],
)
def test_range_of_an_epoch(step: StepTime, expected: tuple[float, float]) -> None:
    assert epoch_range(100.0, step) == pytest.approx(expected)

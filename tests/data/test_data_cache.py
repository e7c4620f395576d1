"""The cache changes how fast events come, and nothing else."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.data.cache import building
from xectool.data.cache.building import build_missing
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.codec import BLOCK_ROWS, NPHO, TIME, Compact, Lossless
from xectool.data.cache.layout import cache_bytes
from xectool.data.cache.store import CacheStore
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.errors import DiskError

TASKS = ("energy", "timing", "uvwFI")
DEAD = np.float32(1e10)
POISON = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e10, -5.0, 99.99999, 100.0, -1e-9, 0.0], np.float32)


def events_like(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Readings as the detector gives them, half of them nothing, most times not recorded, and the poisoned ones."""
    npho = np.where(rng.random((size, 4760)) < 0.5, 0, rng.gamma(0.5, 60, (size, 4760))).astype(np.float32)
    time_s = rng.normal(0, 3e-8, (size, 4760)).astype(np.float32)
    time_s[rng.random((size, 4760)) < 0.8] = DEAD
    npho[:, 40:60] = DEAD
    npho[0, : len(POISON)] = POISON
    time_s[0, : len(POISON)] = POISON
    return npho, time_s


@pytest.fixture(scope="module")
def files(tmp_path_factory, make_events, write_events) -> Path:
    directory = tmp_path_factory.mktemp("cached")
    rng = np.random.default_rng(5)
    for index, size in enumerate((1, 7, 150, 0, 60)):
        events = make_events(size, index, 1000 + index)
        if size:
            events["npho"], events["relative_time"] = events_like(rng, size)
        write_events(directory / f"part{index}.root", events)
    return directory


def opened(files: Path, dataset, store: CacheStore | None, codec=None, **changes):
    config = dataset.config(**changes).model_copy(update={"train_path": str(files)})
    root = open_source(config, "train", TASKS)
    cache = CachedEvents(root, codec or Lossless(), store, builds=False)
    return cache, EventSource(root.files, root.branches, (), cache)


def store_in(directory: Path, **options) -> CacheStore:
    store = CacheStore(directory, **options)
    store.prepare()
    return store


def batches(source, epoch=1, world_size=1, rank=0, start_step=0, seed=3, batch_size=16, **options):
    plan = DataPlan(source.files, batch_size, seed, num_shards=4, chunksize=64, world_size=world_size)
    with EventLoader(source, plan, rank=rank, options=LoaderOptions(**options)) as loader:
        return list(loader.epoch(epoch, start_step))


def assert_same(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert (a.epoch, a.step) == (b.epoch, b.step)
        for name in ("npho", "time", "weight"):
            assert getattr(a, name).numpy().tobytes() == getattr(b, name).numpy().tobytes(), name
        for name in ("file_index", "entry", "run", "event"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        for task, target in a.targets.items():
            assert torch.equal(target, b.targets[task])


@pytest.mark.parametrize("codec", [Lossless(), Compact([100.0])], ids=["lossless", "compact"])
@pytest.mark.parametrize("cut", [False, True], ids=["all", "fiducial"])
def test_batches_are_the_same_before_between_and_after_building(files, dataset, tmp_path, codec, cut):
    store = store_in(tmp_path)
    changes = {"fiducial": {"enabled": True, "u_max": 15.0}} if cut else {}
    cache, source = opened(files, dataset, store, codec, **changes)
    plain = batches(source)
    rank = batches(source, world_size=3, rank=1, start_step=2, num_workers=1, num_threads=1)
    build_missing(cache)
    store.path(str(cache.digests[2])).unlink()
    cache, source = opened(files, dataset, store, codec, **changes)
    assert cache.missing() == [2]
    assert_same(plain, batches(source))
    build_missing(cache)
    assert cache.is_complete
    assert_same(plain, batches(source, num_threads=3))
    assert cache.maps_readings
    cache.maps_readings = False
    cache.close()
    assert_same(plain, batches(source, num_threads=3))
    assert_same(rank, batches(source, world_size=3, rank=1, start_step=2))
    if isinstance(codec, Lossless):
        assert_same(plain, batches(cache.source))
    for index in range(len(source.files)):
        for task in TASKS:
            np.testing.assert_array_equal(source.truth(index, task), cache.source.truth(index, task))
        np.testing.assert_array_equal(source.run_event_numbers(index), cache.source.run_event_numbers(index))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), thresholds=st.lists(st.floats(0.015625, 1000, width=32), max_size=3))
def test_codes_are_far_finer_than_a_sensor_and_carry_poison_exactly(seed, thresholds):
    rng = np.random.default_rng(seed)
    values = rng.gamma(0.4, 10 ** rng.uniform(0, 5), (BLOCK_ROWS + 1, 50)).astype(np.float32)
    values[rng.random(values.shape) < 0.2] *= -1
    values[3, : len(POISON)] = POISON
    values[:, 40:43] = np.asarray(thresholds[:1] or [100.0], np.float32)
    codec, kept = Compact(thresholds), values.copy()
    codec.round_trip(NPHO, kept)
    odd = ~(np.abs(values) < 51_100)
    assert kept[odd].tobytes() == values[odd].tobytes()
    statistics = np.sqrt(8.3 * np.maximum(np.abs(values), 1e-3))
    assert (np.abs(kept[~odd] - values[~odd]) <= 0.01 * statistics[~odd]).all()
    for threshold in (0.0, *thresholds):
        np.testing.assert_array_equal(kept >= np.float32(threshold), values >= np.float32(threshold))
    twice = kept.copy()
    codec.round_trip(NPHO, twice)
    assert twice.tobytes() == kept.tobytes()
    times = rng.normal(0, 10 ** rng.uniform(-10, -6), (5, 50)).astype(np.float32)
    times[1, : len(POISON)] = POISON
    kept = times.copy()
    codec.round_trip(TIME, kept)
    far = ~(np.abs(times) < 1.64e-7)
    assert kept[far].tobytes() == times[far].tobytes()
    assert (np.abs(kept[~far] - times[~far]) <= 2.6e-12).all()


def test_a_file_whose_readings_no_code_carries_is_kept_as_it_is(dataset, tmp_path, make_events, write_events):
    events = make_events(40, 1, 1)
    events["relative_time"] = events["relative_time"] + 1.0  # a second, where codes end at 164 ns
    write_events(tmp_path / "far.root", events)
    cache, source = opened(tmp_path, dataset, store_in(tmp_path / "cache"), Compact())
    assert isinstance(cache.codec_of(0), Lossless)
    assert_same(batches(cache.source), batches(source))
    build_missing(cache)
    assert_same(batches(cache.source), batches(source))


def test_a_changed_source_is_another_file(files, dataset, tmp_path):
    store = store_in(tmp_path / "cache")
    copied = tmp_path / "data"
    copied.mkdir()
    target = copied / "a.root"
    target.write_bytes((files / "part2.root").read_bytes())
    first = opened(copied, dataset, store)[0].digests
    assert opened(copied, dataset, store)[0].digests == first
    os.utime(target, (1, 1))
    touched = opened(copied, dataset, store)[0].digests
    cut = opened(copied, dataset, store, fiducial={"enabled": True, "u_max": 15.0})[0].digests
    compact = opened(copied, dataset, store, Compact([100.0]))[0].digests
    assert len({first[0], touched[0], cut[0], compact[0]}) == 4


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["reading", "header", "checksum", "short", "long", "empty"])
def test_a_damaged_file_is_found_said_and_built_again(files, dataset, tmp_path, damage, caplog):
    cache, source = opened(files, dataset, store_in(tmp_path))
    plain = batches(cache.source)
    build_missing(cache)
    path = cache.store.path(cache.digests[2])
    size = path.stat().st_size
    if damage in ("reading", "header", "checksum"):
        flip(path, {"reading": 16_384 + 30 * 19_040 + 5_000, "header": 40, "checksum": size - 4_000}[damage])
    elif damage == "long":
        path.write_bytes(path.read_bytes() + b"0")
    else:
        os.truncate(path, size // 2 if damage == "short" else 0)
    cache, source = opened(files, dataset, cache.store)
    assert_same(plain, batches(source))
    assert "XT-CACHE-DAMAGED" in caplog.text
    assert "is damaged" in caplog.text
    assert cache.missing() == [2]
    assert build_missing(cache).built == 1
    assert_same(plain, batches(source))
    assert cache.is_complete


def test_of_a_damaged_file_the_sound_events_are_still_served(files, dataset, tmp_path, monkeypatch):
    cache, source = opened(files, dataset, store_in(tmp_path))
    plain = batches(cache.source)
    build_missing(cache)
    flip(cache.store.path(cache.digests[2]), 16_384 + 30 * 19_040 + 5_000)
    cache, source = opened(files, dataset, cache.store)
    read, read_root = [], type(cache.source).read_root
    monkeypatch.setattr(
        type(cache.source),
        "read_root",
        lambda self, piece, window: (
            read.append((piece.file_index, piece.entry_start)),
            read_root(self, piece, window),
        ),
    )
    assert_same(plain, batches(source))
    assert read == [(2, 30)]  # each one read so inflates a basket: an epoch took minutes
    assert cache.missing() == [2]
    assert [Path(path).name for path in cache.unusable()] == ["part2.root"]


def test_without_the_checksum_the_damage_would_be_served(files, dataset, tmp_path):
    cache, source = opened(files, dataset, store_in(tmp_path))
    plain = batches(cache.source)
    build_missing(cache)
    flip(cache.store.path(cache.digests[2]), 16_384 + 30 * 19_040 + 5_000)
    cache, source = opened(files, dataset, cache.store)
    for index in range(len(source.files)):
        found = cache.file(index)
        if found is not None:
            found.verified[:] = True
    with pytest.raises(AssertionError):
        assert_same(plain, batches(source))


BUILDER = """
import sys, time
from xectool.config.data import DataConfig
from xectool.data.cache import building
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.codec import Lossless
from xectool.data.cache.store import CacheStore
from pathlib import Path
from xectool.data.source import open_source
from xectool.errors import DiskError
building.BLOCK_EVENTS = 16
root = open_source(DataConfig(train_path=sys.argv[1]), "train", ("energy", "timing", "uvwFI"))
def told(count):
    print("block", flush=True)
    time.sleep(float(sys.argv[3]))
cache = CachedEvents(root, Lossless(), CacheStore(Path(sys.argv[2])))
print(building.build_missing(cache, advanced=told), flush=True)
"""


@pytest.mark.slow
def test_a_builder_killed_in_the_middle_leaves_nothing_that_is_read_and_no_lock(files, dataset, tmp_path):
    cache, source = opened(files, dataset, store_in(tmp_path))
    plain = batches(cache.source)
    command = [sys.executable, "-c", BUILDER, str(files), str(tmp_path)]
    killed = subprocess.Popen([*command, "60"], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    killed.stdout.readline()
    with cache.store.building(cache.digests[0]) as mine:
        assert not mine  # it is being built
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    left = sorted(path.suffix for path in tmp_path.iterdir())
    assert ".part" in left
    assert_same(plain, batches(source))
    cache.store.clean()
    assert not list(tmp_path.glob("*.part"))
    both = [subprocess.Popen([*command, "0.05"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    counts = [int(text.split("built=")[1].split(",")[0]) for text in said]
    assert sum(counts) == 4
    assert not list(tmp_path.glob("*.lock"))
    assert_same(plain, batches(source))


@pytest.mark.parametrize(("total", "left"), [(5 * 10**9, 5 * 10**8), (10**14, 10**10)])
def test_a_cache_leaves_a_tenth_of_a_disk_free_and_of_a_large_one_10_gb(
    files, dataset, tmp_path, monkeypatch, total, left
):
    needed = cache_bytes(150, 4, 5)
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(total=total, free=left + needed - 1))
    (reason,) = build_missing(opened(files, dataset, store_in(tmp_path / "b"))[0]).failed.values()
    assert f"on the disk of '{tmp_path}/b'" in reason
    assert f"{left / 1e9:.3g} GB are left free" in reason
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(total=total, free=left + needed))
    assert not build_missing(opened(files, dataset, store_in(tmp_path / "c"))[0]).failed


def test_a_full_disk_or_limit_leaves_the_root_files_to_be_read(files, dataset, tmp_path, caplog, monkeypatch):
    needed = cache_bytes(150, 4, 5)
    cache, source = opened(files, dataset, store_in(tmp_path / "a", limit_bytes=needed - 1))
    plain = batches(cache.source)
    result = build_missing(cache)
    assert result.failed
    assert cache.store.used_bytes() < needed
    assert "below data.cache_limit_gb: 0.000369 of" in caplog.text
    assert_same(plain, batches(source))
    cache, source = opened(files, dataset, store_in(tmp_path / "c"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert len(build_missing(cache).failed) == 4
    monkeypatch.undo()
    assert list((tmp_path / "c").glob("*.events*")) == []
    cache.store.clean()
    assert list(tmp_path.glob("*/*.lock")) == []
    assert_same(plain, batches(source))


def test_the_file_unused_for_longest_makes_room_but_never_one_in_use(files, dataset, tmp_path):
    store = store_in(tmp_path)
    cache, _ = opened(files, dataset, store)
    build_missing(cache)
    paths = [store.path(digest) for digest in cache.digests if digest]
    for age, path in enumerate(paths):
        os.utime(path, (1000 - age, 1000 - age))
    tight = CacheStore(tmp_path, store.used_bytes())
    held = cache.file(4)
    assert held is not None
    os.utime(paths[-1], (0, 0))
    assert tight.make_room(1, keep=())
    assert [path.exists() for path in paths] == [True, True, False, True]
    assert not tight.make_room(10**9, keep=())
    assert [path.exists() for path in paths] == [False, False, False, True]


def test_a_cache_built_while_training_serves_the_next_epoch(files, dataset, tmp_path):
    cache, source = opened(files, dataset, store_in(tmp_path))
    cache.builds = True
    plan = DataPlan(source.files, 16, 3, num_shards=4, chunksize=64)
    with EventLoader(source, plan) as loader:
        first = list(loader.epoch(0))
        deadline = time.monotonic() + 300
        while cache.missing() and time.monotonic() < deadline:
            time.sleep(0.02)
        second = list(loader.epoch(1))
        assert loader.queue_depth == -1
    assert cache.is_complete
    assert_same(first, batches(cache.source, epoch=0))
    assert_same(second, batches(cache.source, epoch=1))
    assert building.builder_bytes(38_000, 10**6) < 10**8


def test_the_cache_travels_to_worker_processes(files, dataset, tmp_path):
    cache, source = opened(files, dataset, store_in(tmp_path), Compact([100.0]))
    plain = batches(source)
    build_missing(cache)
    travelled = pickle.loads(pickle.dumps(source))
    assert travelled.cache.is_complete
    assert_same(plain, batches(travelled))
    assert copy.copy(cache).digests == cache.digests


def test_memory_of_a_kept_batch_is_not_used_again(files, dataset, tmp_path):
    cache, source = opened(files, dataset, store_in(tmp_path))
    build_missing(cache)
    plan = DataPlan(source.files, 16, 3, num_shards=4, chunksize=64)
    with EventLoader(source, plan) as loader:
        kept = [(batch.npho[:2], batch.npho[:2].clone()) for batch in loader.epoch(0)]
    assert all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in kept)


@pytest.mark.parametrize("looks", [False, True])
def test_a_directory_that_no_file_system_takes_is_refused_by_who_only_looks_too(tmp_path: Path, looks: bool) -> None:
    """A name that is too long ended a dry run in a sentence about another thing, an unreadable place in a traceback."""
    (tmp_path / "file").touch()
    for place in (tmp_path / ("a" * 300), tmp_path / "file" / "cache"):
        with pytest.raises(DiskError) as refused:
            CacheStore(place, None).prepare(looks)
        assert refused.value.code == "XT-CACHE-PLACE"
    CacheStore(tmp_path / "new", None).prepare(looks)
    assert (tmp_path / "new").is_dir() is not looks

"""A copy of which some events are damaged serves the others to everybody until it is built again."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xectool.data.cache import store as stores
from xectool.data.cache.building import build_missing
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.codec import Lossless
from xectool.data.cache.store import CacheStore
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.data.window import WindowArrays
from xectool.runlog.lock import ProcessLock

TASKS = ("energy",)
EVENTS, DAMAGED = 64, 30

Opened = Callable[..., CachedEvents]


@pytest.fixture
def opened(tmp_path: Path, dataset: Any, make_events: Any, write_events: Any) -> Opened:
    """Opens the one file of a data set as another process would, its copy whole at first."""
    write_events(tmp_path / "data" / "a.root", make_events(EVENTS, 1, 1))
    config = dataset.config().model_copy(update={"train_path": str(tmp_path / "data")})

    def open_it(limit_bytes: int | None = None) -> CachedEvents:
        store = CacheStore(tmp_path / "cache", limit_bytes)
        store.prepare()
        return CachedEvents(open_source(config, "train", TASKS), Lossless(), store)

    assert build_missing(open_it()).built == 1
    return open_it


def place(cache: CachedEvents) -> Path:
    assert cache.store is not None
    return cache.store.path(str(cache.digests[0]))


def flip(cache: CachedEvents, event: int = DAMAGED) -> None:
    with place(cache).open("r+b") as file:
        file.seek(16_384 + event * 19_040 + 5_000)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


def served(cache: CachedEvents) -> list[int]:
    """Return the events that do not come from the copy, each asked for by itself."""
    out = WindowArrays.empty(1, cache.source.widths)
    return [row for row in range(EVENTS) if not cache.fill(0, np.array([row]), out)]


def test_other_processes_and_a_later_epoch_are_served_from_it(opened: Opened) -> None:
    cache = opened()
    flip(cache)
    assert served(cache) == [DAMAGED]
    assert not place(cache).exists()
    cache.close()
    assert served(cache) == [DAMAGED]
    other = opened()
    assert served(other) == [DAMAGED]
    assert other.missing() == [0]
    assert len(other.unusable()) == 1
    assert build_missing(opened()).built == 1
    assert served(cache) == served(other) == []
    assert [path.suffix for path in place(cache).parent.iterdir()] == [".events"]


def test_who_still_maps_the_old_one_leaves_the_new_one_where_it_is(opened: Opened) -> None:
    flip(opened())
    late, other = opened(), opened()
    assert late.file(0) is not None
    assert served(other) == [DAMAGED]
    build_missing(other)
    inode = place(other).stat().st_ino
    served(late)
    assert place(other).stat().st_ino == inode
    assert served(late) == []


@pytest.mark.parametrize("writable", [True, False])
def test_another_file_at_its_place_that_is_no_copy_leaves_it_served(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    cache = opened()
    flip(cache)
    assert served(cache) == [DAMAGED]
    place(cache).write_bytes(b"no copy")
    if not writable:
        monkeypatch.setattr(Path, "unlink", refused)
    assert served(cache) == [DAMAGED]


def refused(*_: object, **__: object) -> None:
    raise OSError(30, os.strerror(30))


def test_a_sound_one_that_cannot_be_opened_stays(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        assert [cache.file(0), cache.file(0)] == [None, None]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (told,) = caplog.messages
    assert told.startswith("XT-CACHE-PLACE")
    assert "Too many open files" in told
    assert served(cache) == served(opened()) == []


def test_to_ask_who_builds_gives_no_lock_away_and_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CacheStore(tmp_path)
    lock, asks = (
        tmp_path / "abc.lock",
        f"import sys, {ProcessLock.__module__} as l; print(l.ProcessLock(l.Path(sys.argv[1])).acquire())",
    )
    with store.building("abc") as mine:
        assert mine
        assert not store.is_built_elsewhere("abc")
        asked = subprocess.run([sys.executable, "-c", asks, str(lock)], capture_output=True, text=True, check=True)
        assert asked.stdout == "False\n"
    lock.write_text("1\n")  # left behind by a builder that was killed
    assert not store.is_built_elsewhere("abc")
    assert not lock.exists()
    lock.write_text("1\n")
    monkeypatch.setattr(ProcessLock, "acquire", refused)
    assert not store.is_built_elsewhere("abc")


@pytest.mark.parametrize("damage", ["event", "header"])
def test_what_may_not_be_removed_is_opened_and_said_once(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    cache, finds, find = opened(), [], CacheStore.find
    monkeypatch.setattr(CacheStore, "find", lambda *given: (finds.append(1), find(*given))[1])
    monkeypatch.setattr(stores.os, "replace", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    if damage == "event":
        flip(cache)
    else:
        os.truncate(place(cache), 100)
    bad = [DAMAGED] if damage == "event" else list(range(EVENTS))
    assert served(cache) == served(cache) == bad
    assert len(finds) == 1  # 345 us each, under the lock
    assert caplog.text.count("XT-CACHE-DAMAGED") == 1
    cache.close()
    assert served(cache) == bad


def test_one_that_is_built_under_the_number_of_the_removed_one_is_served(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_inode", lambda path: int(path.exists()))  # as file systems give numbers again
    cache = opened()
    os.truncate(place(cache), 100)
    assert cache.file(0) is None
    assert build_missing(opened()).built == 1
    assert served(cache) == []


def test_it_makes_room_for_the_one_that_is_built_in_its_place(opened: Opened) -> None:
    cache = opened()
    flip(cache)
    tight = opened(place(cache).stat().st_size)
    assert served(tight) == [DAMAGED]
    assert build_missing(tight).built == 1
    assert served(tight) == []


def test_what_a_killed_builder_left_beside_the_new_one_is_removed(opened: Opened) -> None:
    cache = opened()
    place(cache).with_suffix(".damaged").write_bytes(b"old")
    assert cache.store is not None
    cache.store.clean()
    assert [path.suffix for path in place(cache).parent.iterdir()] == [".events"]


def test_damage_met_after_the_builder_has_run_is_built_again_in_the_same_run(opened: Opened) -> None:
    cache = opened()
    place(cache).unlink()
    source = EventSource(cache.source.files, cache.source.branches, (), cache)
    plan = DataPlan(source.files, 16, 3, num_shards=4, chunksize=64)
    with EventLoader(source, plan) as loader:
        for epoch, missing_after in ((0, []), (1, [0]), (2, [])):
            assert len(list(loader.epoch(epoch))) == EVENTS // 16
            deadline = time.monotonic() + 60
            while cache.missing() != missing_after and time.monotonic() < deadline:
                time.sleep(0.02)
            assert cache.missing() == missing_after
            if epoch == 0:
                flip(cache)
                cache.close()
                cache._verified.clear()

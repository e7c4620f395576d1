"""``xectool prepare``: built once, used by every later training, checked each time."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from xectool.config.file_systems import is_network
from xectool.config.load import load_config
from xectool.config.platform import Platform
from xectool.data.cache import deciding
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.deciding import choose_cache, codec_of, planned_cache
from xectool.data.cache.tables import PreparedTables
from xectool.data.prepared import event_weights
from xectool.data.source import open_source
from xectool.engine import preparing
from xectool.rootio.reader import EventFile
from xectool.training.stepping.build import open_data


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(deciding, "is_local_disk", lambda file_system: not is_network(file_system))
    return tmp_path / "home" / "xectool" / "events"


def settings(files: Path, *overrides: str):
    return load_config(files / "config.yaml", ["reweighting.energy.enabled=true", *overrides]).config


def test_help_says_what_it_builds(xectool):
    outcome = xectool("prepare", "--help")
    assert outcome.code == 0
    assert "event cache" in outcome.out


def test_a_second_call_finds_everything_there(files, xectool, tmp_path):
    options = (files / "config.yaml", "--set", f"data.cache={tmp_path}/c", "--set", "reweighting.energy.enabled=true")
    first = xectool("prepare", *options, "--json").document["result"]
    assert (first["built"], first["files"], first["events"], first["failed"]) == (2, 2, 32, {})
    assert sorted({name.split("-")[0] for name in first["tables"]}) == ["index", "overlap", "weights"]
    size = sum(path.stat().st_size for path in Path(tmp_path, "c").glob("*.events"))
    assert size == first["cache_bytes"]
    again = xectool("prepare", *options)
    assert again.code == 0
    assert "0 of 2 files copied" in again.out + again.err
    assert not [path for path in Path(tmp_path, "c").iterdir() if path.suffix in (".part", ".lock")]


@pytest.fixture
def held(files, xectool, tmp_path):
    """Prepare, remove one copy, and let another process hold the right to build it until its input is closed."""
    options = ("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/c")
    xectool(*options)
    first, _ = sorted(Path(tmp_path, "c").glob("*.events"))
    first.rename(tmp_path / "copied")
    holder = (
        f"import sys, xectool.runlog.lock as l; l.ProcessLock(l.Path({str(first.with_suffix('.lock'))!r})).acquire()"
    )
    program = [sys.executable, "-c", f"{holder}; print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        yield options, first, other


@pytest.mark.parametrize("finishes", [True, False])
def test_files_that_another_process_copies_are_waited_for(held, xectool, tmp_path, finishes):
    options, missing, other = held
    seen = []

    def end():
        seen.append(missing.exists())
        if finishes:
            (tmp_path / "copied").rename(missing)
        other.stdin.close()

    threading.Timer(2.0, end).start()
    meanwhile = xectool(*options)
    said = meanwhile.out + meanwhile.err
    done = (
        "0 of 2 files copied, 1 by another process meanwhile, 1 there" if finishes else "1 of 2 files copied, 1 there"
    )
    assert (meanwhile.code, seen, missing.exists()) == (0, [False], True)
    assert "waiting for another process, which is copying 1 file" in said
    assert done in said
    again = xectool(*options)
    assert "0 of 2 files copied, 2 there before" in again.out + again.err


def test_two_data_sets_of_which_one_fits_throw_nothing_of_each_other_away(files, xectool, tmp_path):
    options = ("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/c")
    xectool(*options)
    sizes = sorted(path.stat().st_size for path in Path(tmp_path, "c").glob("*.events"))
    shutil.rmtree(tmp_path / "c")
    outcome = xectool(*options, "--set", f"data.cache_limit_gb={1.2e-9 * sizes[-1]}", "--json")
    result = outcome.document["result"]
    assert (outcome.code, result["built"], len(result["failed"]), result["elsewhere"]) == (1, 1, 1, 0)
    assert "do not fit" in next(iter(result["failed"].values()))
    assert len(list(Path(tmp_path, "c").glob("*.events"))) == 1


def test_copies_that_are_gone_again_are_told_and_not_made_for_ever(files, xectool, tmp_path, monkeypatch):
    build = preparing._build

    def build_and_lose(cache, *options):
        result = build(cache, *options)
        for path in Path(tmp_path, "c").glob("*.events"):
            path.unlink()
        return result

    monkeypatch.setattr(preparing, "_build", build_and_lose)
    outcome = xectool("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/c", "--json")
    assert outcome.code == 1
    assert {reason.split(":")[0] for reason in outcome.document["result"]["failed"].values()} == {
        "its copy is gone again"
    }


def _in_its_place_a_directory(path, _):
    path.unlink()
    path.mkdir()


def _cut_and_kept(path, monkeypatch):
    """Root may remove anything: the refusal of a directory of another user is made here."""
    os.truncate(path, 40)
    monkeypatch.setattr(Path, "unlink", _refuse)


def _refuse(path, missing_ok=False):
    raise PermissionError(13, "Permission denied", str(path))


def test_a_damaged_file_is_built_again(files, xectool, tmp_path):
    options = ("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/c", "--json")
    xectool(*options)
    damaged = max(Path(tmp_path, "c").glob("*.events"), key=lambda path: path.stat().st_size)
    os.truncate(damaged, 50_000)
    table = next(Path(tmp_path, "c").glob("index-*.npz"))
    table.write_bytes(table.read_bytes()[:-100])
    assert xectool(*options).document["result"]["built"] == 1
    assert np.load(table, allow_pickle=False).files


@pytest.mark.parametrize("make_useless", [_in_its_place_a_directory, _cut_and_kept], ids=["directory", "header"])
def test_a_copy_that_is_of_no_use_and_stays_is_not_there_before(files, xectool, tmp_path, monkeypatch, make_useless):
    options = ("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/c")
    xectool(*options)
    make_useless(max(Path(tmp_path, "c").glob("*.events"), key=lambda path: path.stat().st_size), monkeypatch)
    outcome = xectool(*options)
    assert outcome.code == 3
    assert f"the copy of {files / 'train.root'} is damaged or cannot be read, and cannot be removed" in outcome.err
    assert "there before" not in outcome.out + outcome.err


def test_one_changed_number_in_a_copy_is_found_and_only_that_file_built_again(files, xectool, tmp_path):
    options = ("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/c")
    xectool(*options)
    kept = {path: path.read_bytes() for path in Path(tmp_path, "c").glob("*.events")}
    changed = max(kept, key=lambda path: len(kept[path]))
    content = bytearray(kept[changed])
    content[len(content) // 2] ^= 1  # in a reading, which no header covers
    changed.write_bytes(content)
    result = (outcome := xectool(*options, "--json")).document["result"]
    assert (outcome.code, result["built"], result["damaged"]) == (0, 1, [str(files / "train.root")])
    assert {path: path.read_bytes() for path in kept} == kept
    changed.write_bytes(content)
    again = xectool(*options)
    assert "1 of 2 files copied (1 of them had a damaged copy), 1 there before" in again.out + again.err


def test_a_start_with_prepared_files_opens_no_root_file(files, tmp_path, monkeypatch, xectool):
    xectool(
        "prepare",
        files / "config.yaml",
        "--set",
        f"data.cache={tmp_path}/c",
        "--set",
        "reweighting.energy.enabled=true",
    )
    plain = open_data(settings(files, "data.cache=off"))
    weights = event_weights(plain.config, plain.train, plain.tables)

    def refuse(*_):
        raise AssertionError("a ROOT file is opened")

    monkeypatch.setattr(EventFile, "__init__", refuse)
    data = open_data(settings(files, f"data.cache={tmp_path}/c"))
    assert data.config.tasks == plain.config.tasks
    assert data.train.num_events == plain.train.num_events
    for one, other in zip(data.train.files, plain.train.files, strict=True):
        assert (one.path, one.num_entries, one.cluster_starts) == (other.path, other.num_entries, other.cluster_starts)
    found = event_weights(data.config, data.train, data.tables)
    assert weights is not None
    assert found is not None
    truth = {"energy": np.linspace(0.04, 0.06, 50, dtype=np.float32)[:, None], "uvwFI": np.zeros((50, 3), np.float32)}
    np.testing.assert_array_equal(weights.weights(truth, np.empty(0)), found.weights(truth, np.empty(0)))
    with pytest.raises(AssertionError, match="is opened"):
        open_data(settings(files, "data.cache=off"))


@pytest.mark.parametrize("how", ["denied", "immutable"])
def test_a_whole_cache_that_cannot_be_written_is_used(files, xectool, tmp_path, monkeypatch, how):
    cache = tmp_path / "c"
    options = ("prepare", files / "config.yaml", "--set", f"data.cache={cache}", "--json")
    xectool(*options)
    Path(cache, f"{'0' * 32}.events.part").write_text("of a killed builder")
    kept = sorted(cache.iterdir())

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        if how == "denied":  # root may write anywhere
            access = os.access
            patched.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
            for module, name in ((Path, "unlink"), (os, "utime"), (os, "unlink"), (os, "replace")):
                patched.setattr(module, name, refuse)
        elif subprocess.run(["chattr", "+i", cache, *kept], capture_output=True, check=False).returncode:
            subprocess.run(["chattr", "-i", cache, *kept], capture_output=True, check=False)
            pytest.skip("no file can be made immutable here")
        try:
            again = xectool(*options)
            lacking = xectool(*options, "--set", "data.cache_precision=compact")
            source = open_data(settings(files, f"data.cache={cache}")).train
            served = source.cache.file(0)
        finally:
            if how == "immutable":
                subprocess.run(["chattr", "-i", cache, *kept], check=True)
    assert (again.code, again.document["result"]["built"], sorted(cache.iterdir())) == (0, 0, kept)
    assert served is not None
    (refused,) = lacking.document["findings"]
    assert (lacking.code, refused["code"]) == (3, "XT-CACHE-PLACE")
    assert f"no sound copy is there of {files}/train.root" in refused["problem"]


def test_off_and_a_place_that_cannot_be_made_say_what_to_do(files, xectool, tmp_path):
    off = xectool("prepare", files / "config.yaml", "--set", "data.cache=off", "--json")
    assert off.code == 2
    assert "data.cache=auto" in off.document["findings"][0]["fix"]
    (tmp_path / "file").write_text("")
    place = xectool("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/file/c", "--json")
    assert (place.code, place.document["findings"][0]["code"]) == (3, "XT-CACHE-PLACE")
    small = ("--set", f"data.cache={tmp_path}/c", "--set", "data.cache_limit_gb=0.0001", "--json")
    limit = xectool("prepare", files / "config.yaml", *small)
    assert limit.code == 1
    assert {found["code"] for found in limit.document["findings"]} == {"XT-CACHE-NOT-BUILT"}
    assert set(limit.document["result"]["failed"]) == {f"{files}/train.root", f"{files}/val.root"}


@pytest.mark.parametrize(("written", "read"), [("off", "off"), ("auto", "auto"), ("./c", "./c"), ("~/c", "~/c")])
def test_yaml_reads_a_bare_off_as_it_is_meant(files, written, read):
    assert settings(files, f"data.cache={written}").data.cache == read


def test_a_bare_word_is_no_directory(files, xectool):
    outcome = xectool("prepare", files / "config.yaml", "--set", "data.cache=atuo", "--json")
    assert outcome.code == 2
    assert "./cache" in json.dumps(outcome.document["findings"])


def test_auto_caches_where_it_saves_time_and_has_a_local_disk(files, home, monkeypatch):
    config = settings(files, "training.epochs=3")
    sources = [open_source(config.data, which, ("energy",)) for which in ("train", "val")]
    few = choose_cache(config, sources)
    assert (few.directory, few.builds) == (None, False)
    assert "would save 0 s" in few.note
    monkeypatch.setattr(deciding, "_SAVED_S", 2.0)
    many = choose_cache(config, sources)
    assert (many.directory, many.builds) == (home, True)
    assert choose_cache(config, sources, Platform(mounts={"/": "lustre"})).directory is None
    disk = shutil.disk_usage(files)
    for free, place in ((1.0e10, None), (1.01e10, home)):  # of a large disk the builder leaves 10 GB free
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: disk._replace(total=10**12, free=int(free)))
        assert choose_cache(config, sources).directory == place
    assert choose_cache(settings(files, "data.cache=off"), sources).directory is None
    assert choose_cache(settings(files, "data.cache_limit_gb=0.0001"), sources).directory is None


def test_auto_uses_what_was_prepared_however_little_it_saves(files, home, xectool, monkeypatch):
    xectool("prepare", files / "config.yaml")
    data = open_data(load_config(files / "config.yaml").config)
    assert "prepared" in data.cache
    assert isinstance(data.train.cache, CachedEvents)
    assert data.train.cache.is_complete
    assert not data.train.cache.builds
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    assert open_data(load_config(files / "config.yaml").config).cache == data.cache  # in a place to read from


def test_thresholds_of_the_configuration_reach_the_codes(files):
    codec = codec_of(settings(files, "data.cache_precision=compact", "normalization.npho_threshold=37"))
    assert 37.0 in codec.thresholds


def test_a_table_is_made_once_and_again_when_it_is_damaged(tmp_path, caplog):
    made = []

    def make():
        made.append(1)
        return {"a": np.arange(5.0), "b": np.array([[np.nan, np.inf]])}

    tables = PreparedTables(tmp_path, True)
    for _ in range(2):
        np.testing.assert_array_equal(tables.get("x", {"k": 1}, make)["b"], [[np.nan, np.inf]])
    assert len(made) == 1
    tables.get("x", {"k": 2}, make)
    assert len(made) == 2
    for path in tmp_path.glob("x-*.npz"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    tables.get("x", {"k": 1}, make)
    assert len(made) == 3
    assert "XT-CACHE-DAMAGED" in caplog.text
    PreparedTables(tmp_path, False).get("x", {"k": 3}, make)
    assert len(list(tmp_path.glob("x-*.npz"))) == 2


def test_the_estimate_of_the_disk_is_what_is_written(files, xectool, tmp_path):
    xectool("prepare", files / "config.yaml", "--set", f"data.cache={tmp_path}/c")
    largest = max(path.stat().st_size for path in Path(tmp_path, "c").glob("*.events"))
    config = settings(files, f"data.cache={tmp_path}/c")
    assert planned_cache(config, 24)[0] == pytest.approx(largest, rel=0.01)
    assert planned_cache(settings(files, "data.cache=off"), 10**9) == (0, "off (data.cache)")
    needed, reason = planned_cache(settings(files), 24)
    assert (needed, reason.startswith("off, it would save 0 s of CPU")) == (0, True)


@pytest.mark.parametrize(
    ("kind", "local"), [("ext4", True), ("wekafs", False), ("glusterfs", False), ("9p", True), ("tmpfs", False)]
)
def test_a_copy_is_made_on_no_disk_of_others(tmp_path, monkeypatch, kind, local):
    """The copy knew ten file systems of a network, the look at the machine fourteen: here it went to the others'."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    platform = Platform(mounts={"/": kind})
    assert bool(list(deciding._local_places(platform))) == local

"""A written file is whole or absent, and reads back as it was given."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
import uproot
from xectool.errors import DiskError, UsageError
from xectool.rootio import writer as writer_module
from xectool.rootio.reader import EventFile
from xectool.rootio.recorded import sidecar
from xectool.rootio.writer import TreeWriter

FORMATS = ("ttree", "rntuple")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compression", ["zlib:1", "zlib", "lz4", "zstd:3", "lzma:1", "none"])
def test_rows_come_back_in_every_format_and_compression(tmp_path, rows, write_rows, format, compression):
    small = {name: values[:6] for name, values in rows.items()}
    path = write_rows(tmp_path / "a.root", small, format=format, compression=compression)
    with EventFile(path) as file:
        assert file.is_ntuple == (format == "rntuple")
        for name, values in small.items():
            np.testing.assert_array_equal(file.read_column(name), values)
    for name, values in uproot.open({str(path): "tree"}).arrays(library="np").items():
        np.testing.assert_array_equal(np.stack(values) if values.dtype == object else values, small[name])


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_clusters_do_not_depend_on_how_rows_are_handed_over(tmp_path, rows, format, overlapped, monkeypatch):
    monkeypatch.setattr(writer_module, "CLUSTER_BYTES", 10 * 38_080)
    columns = {"npho": ("f4", (4760,)), "run": ("i4", ())}
    layouts = []
    for step in (1, 7, 24):
        path = tmp_path / f"{step}.root"
        with TreeWriter(path, columns, format=format, overlapped=overlapped) as writer:
            for start in range(0, 24, step):
                writer.extend({name: rows[name][start : start + step] for name in columns})
        assert writer.num_entries == 24
        with EventFile(path) as file:
            layouts.append(file.column("npho").boundaries())
            np.testing.assert_array_equal(file.read_column("npho"), rows["npho"])
    assert layouts[0] == layouts[1] == layouts[2]
    assert len(layouts[0]) == 3


def test_a_tree_without_entries_is_written(tmp_path):
    for format in FORMATS:
        with TreeWriter(tmp_path / f"{format}.root", {"npho": ("f4", (4760,))}, format=format):
            pass
        with EventFile(tmp_path / f"{format}.root") as file:
            assert file.num_entries == 0
            assert file.branch_names == ("npho",)


def test_another_tree_name_is_used(tmp_path, rows, write_rows):
    path = write_rows(tmp_path / "a.root", {"run": rows["run"]}, tree="events")
    assert EventFile(f"{path}:events").num_entries == 24


def test_an_aborted_write_leaves_the_old_file_and_no_part(tmp_path, rows, write_rows):
    path = write_rows(tmp_path / "a.root", {"run": rows["run"]})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="unknown branches"), TreeWriter(path, {"run": ("i4", ())}) as writer:
        writer.extend({"run": rows["run"]} | {"more": rows["run"]})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.root"]


@pytest.mark.parametrize("format", FORMATS)
def test_recorded_hashes_go_with_the_file_they_are_of_and_not_before_it(tmp_path, rows, write_rows, format):
    """Each branch of the new file was told as damage by the hashes of the one before."""
    path = write_rows(tmp_path / "a.root", {"run": rows["run"]})
    hashes = sidecar(path)
    hashes.write_text("{}")
    with pytest.raises(ValueError, match="unknown branches"), TreeWriter(path, {"run": ("i4", ())}) as writer:
        writer.extend({"run": rows["run"]} | {"more": rows["run"]})
    assert hashes.exists(), "the old file stands"
    with TreeWriter(path, {"run": ("i4", ())}, format=format) as writer:
        writer.extend({"run": rows["run"]})
        assert hashes.exists(), "the old file stands still"
    assert os.listdir(tmp_path) == ["a.root"]


def test_hashes_that_cannot_be_removed_undo_no_file(tmp_path, rows, write_rows):
    sidecar(tmp_path / "a.root").mkdir()
    assert EventFile(write_rows(tmp_path / "a.root", {"run": rows["run"]})).num_entries == 24


def test_the_final_name_appears_only_at_the_end(tmp_path, rows):
    path = tmp_path / "new" / "a.root"
    with TreeWriter(path, {"run": ("i4", ())}) as writer:
        writer.extend({"run": rows["run"]})
        assert not path.exists()
        assert writer.part_path.exists()
    assert path.exists()
    assert not writer.part_path.exists()


@pytest.mark.parametrize("overlapped", [False, True])
def test_memory_does_not_grow_with_the_file(tmp_path, overlapped, monkeypatch):
    monkeypatch.setattr(writer_module, "CLUSTER_BYTES", 40 * 19_040)
    block = np.zeros((100, 4760), np.float32)
    peaks = []
    for repeats in (2, 12):
        tracemalloc.start()
        with TreeWriter(tmp_path / "a.root", {"npho": ("f4", (4760,))}, overlapped=overlapped) as writer:
            for _ in range(repeats):
                writer.extend({"npho": block})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


_FULL_DISK = """
import resource, signal, sys
import numpy as np
from xectool.errors import DiskError
from xectool.rootio.writer import TreeWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
BRANCHES = {"npho": ("f4", (4760,))}
try:
    with TreeWriter(sys.argv[1], BRANCHES, sys.argv[2], sys.argv[3], "none", bool(sys.argv[4])) as writer:
        for _ in range(int(sys.argv[5])):
            writer.extend({"npho": np.ones((100, 4760), np.float32)})
except DiskError as error:
    sys.exit(f"{error.exit_code} {error.problem}")
"""


@pytest.mark.parametrize(("format", "overlapped"), [("ttree", ""), ("rntuple", ""), ("ttree", "overlapped")])
@pytest.mark.parametrize("repeats", ["3", "30"])
def test_a_full_disk_is_a_disk_error_and_leaves_nothing(tmp_path, format, overlapped, repeats):
    path = tmp_path / "a.root"
    argv = [sys.executable, "-B", "-c", _FULL_DISK, path, "tree", format, overlapped, repeats]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(f"3 cannot write '{path}'")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def held(monkeypatch):
    """Writing waits for this event; what is being written, and most at once."""
    gate, now, most = threading.Event(), [], []
    write = TreeWriter._write

    def waiting(writer, rows):
        now.append(rows)
        most.append(len(now))
        assert gate.wait(60)
        write(writer, rows)
        now.pop()

    monkeypatch.setattr(TreeWriter, "_write", waiting)
    monkeypatch.setattr(writer_module, "CLUSTER_BYTES", 4 * 10)
    return gate, most


def test_rows_are_collected_while_a_cluster_is_written_and_only_one_waits(tmp_path, held):
    gate, most = held
    with TreeWriter(tmp_path / "a.root", {"run": ("i4", ())}, overlapped=True) as writer:
        writer.extend({"run": np.arange(19, dtype=np.int32)})  # would wait for ever without a thread
        threading.Timer(0.2, gate.set).start()
        writer.extend({"run": np.arange(19, 95, dtype=np.int32)})
    assert most == [1] * 10
    with EventFile(tmp_path / "a.root") as file:
        np.testing.assert_array_equal(file.read_column("run"), np.arange(95))


def test_an_interrupt_waits_for_the_cluster_and_leaves_no_thread(tmp_path, held):
    gate, _ = held

    def interrupted():
        with TreeWriter(tmp_path / "a.root", {"run": ("i4", ())}, overlapped=True) as writer:
            writer.extend({"run": np.arange(15, dtype=np.int32)})
            threading.Timer(0.2, gate.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [thread for thread in threading.enumerate() if thread.name.startswith("root-writer")] == []
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_it_is_opened_leaves_no_file(tmp_path, monkeypatch):
    seen = []

    def interrupt(*args, **options):
        seen.extend(path.name for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(uproot, "recreate", interrupt)
    with pytest.raises(KeyboardInterrupt), TreeWriter(tmp_path / "a.root", {"run": ("i4", ())}):
        pass
    assert seen == ["a.root.part"]
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_names_the_path(tmp_path):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(DiskError, match="name another place"),
        TreeWriter(tmp_path / "file" / "a.root", {"a": ("f4", ())}),
    ):
        pass


@pytest.mark.parametrize("text", ["zlip", "zlib:10", "zlib:x", "none:1", "lz4:-1"])
def test_an_unknown_compression_says_which_are_known(tmp_path, text):
    with pytest.raises(UsageError, match=r"--compression (zlib|lz4)"):
        TreeWriter(tmp_path / "a.root", {"a": ("f4", ())}, compression=text)


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--format ttree"):
        TreeWriter(tmp_path / "a.root", {"a": ("f4", ())}, format="parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": None}, "missing branches"),
        ({"more": np.zeros(24)}, "unknown branches"),
        ({"run": np.zeros(3, np.int32)}, "different numbers of entries"),
        ({"npho": np.zeros((24, 5), np.float32)}, "holds entries of shape"),
        ({"run": np.zeros(24)}, "holds int32, got float64"),
    ],
)
def test_rows_of_another_shape_are_refused(tmp_path, rows, change, message):
    given = {name: rows[name] for name in ("npho", "run")} | change
    given = {name: values for name, values in given.items() if values is not None}
    columns = {"npho": ("f4", (4760,)), "run": ("i4", ())}
    with pytest.raises(ValueError, match=message), TreeWriter(tmp_path / "a.root", columns) as writer:
        writer.extend(given)

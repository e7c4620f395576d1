"""Entry ranges come back exactly, whatever wrote the file and however it is laid out."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import struct
import subprocess
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import awkward as ak
import cramjam
import numpy as np
import pytest
import uproot
import xxhash
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uproot.interpretation import numerical
from xectool.errors import DataFileError
from xectool.rootio import inflate
from xectool.rootio.baskets import LooseColumn
from xectool.rootio.columns import WrongLengthError
from xectool.rootio.inflate import inflate_range
from xectool.rootio.reader import EventFile
from xectool.rootio.schema import ExpectedBranch, check_schema
from xectool.rootio.source import LocalSource
from xectool.rootio.writer import TreeWriter

COMPRESSIONS = {
    "zlib": uproot.ZLIB(1),
    "lz4": uproot.LZ4(4),
    "zstd": uproot.ZSTD(3),
    "lzma": uproot.LZMA(1),
    "none": None,
}


def assert_reads(file: EventFile, rows):
    """Compare whole columns and ranges that start and stop inside storage units."""
    for name, values in rows.items():
        np.testing.assert_array_equal(file.read_column(name), values)
        if values.dtype.kind == "f":
            values = values.astype(np.float32)
        for start, stop in ((0, 1), (3, 11), (5, len(values)), (7, 7)):
            out = np.full((stop - start, *values.shape[1:]), -5, values.dtype)
            file.read_into(name, start, stop, out)
            np.testing.assert_array_equal(out, values[start:stop])


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("per_basket", [1, 5, 24])
def test_trees_of_another_writer_are_read(tmp_path, rows, compression, per_basket):
    path = tmp_path / "a.root"
    with uproot.recreate(path, compression=COMPRESSIONS[compression]) as file:
        tree = file.mktree("tree", {name: np.dtype((v.dtype, v.shape[1:])) for name, v in rows.items()})
        for start in range(0, 24, per_basket):
            tree.extend({name: values[start : start + per_basket] for name, values in rows.items()})
    with EventFile(path) as file:
        assert_reads(file, rows)
        assert file.column("npho").boundaries() == [*range(0, 24, per_basket), 24]


def test_float64_sensors_are_read_as_float32(tmp_path, rows):
    path = tmp_path / "a.root"
    wide = rows["npho"].astype(np.float64) + 1e-9
    wide[0, 0], wide[0, 1], wide[0, 2] = 1e300, np.nan, 1e10
    with uproot.recreate(path) as file:
        file.mktree("tree", {"npho": np.dtype((np.float64, (4760,)))}).extend({"npho": wide})
    out = np.empty((24, 4760), np.float32)
    with EventFile(path) as file:
        file.read_into("npho", 0, 24, out)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, wide.astype(np.float32))
    assert np.isinf(out[0, 0])


def write_vectors(path, rows, lengths, ntuple=False):
    values = ak.unflatten(rows["npho"].ravel()[: sum(lengths)], lengths)
    with uproot.recreate(path) as file:
        data = {"npho": values, "run": rows["run"][: len(lengths)]}
        if ntuple:
            file.mkrntuple("tree", ak.Array(data))
        else:
            file.mktree("tree", {"npho": values.type.content, "run": "int32"}).extend(data)


@pytest.mark.parametrize("ntuple", [False, True])
def test_vectors_of_the_right_length_are_read(tmp_path, rows, ntuple):
    write_vectors(tmp_path / "a.root", rows, [4760] * 12, ntuple)
    with EventFile(tmp_path / "a.root") as file:
        assert file.column("npho").width is None
        assert_reads(file, {"npho": rows["npho"][:12]})
        check_schema(file, [ExpectedBranch("npho", 4760, "photons of each sensor", "data.npho_branch")])


@pytest.mark.parametrize("name", ["sub/npho", "sub.npho", "npho"])
def test_a_field_of_an_rntuple_may_be_called_like_a_path(tmp_path, rows, name) -> None:
    """The file was called damaged: looked up by its name, the field was sought in another one."""
    with TreeWriter(tmp_path / "a.root", {name: ("f4", (4760,)), "run": ("i4", ())}, format="rntuple") as writer:
        writer.extend({name: rows["npho"], "run": rows["run"]})
    with EventFile(tmp_path / "a.root") as file:
        assert_reads(file, {name: rows["npho"], "run": rows["run"]})


def test_all_numbers_of_an_entry_of_pairs_are_counted() -> None:
    """x[n][2] with n = 3 holds six numbers, not three: a reader that counts three fails where it copies them."""
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)

    class Branch:
        def array(self, **_: Any) -> ak.Array:
            return ak.from_regular(ak.Array(values), axis=1)

    column = LooseColumn(Branch(), np.dtype(np.float32), None)
    out = np.empty((4, 6), np.float32)
    column.read(0, 4, out)
    np.testing.assert_array_equal(out, values.reshape(4, 6))
    with pytest.raises(WrongLengthError, match="holds 6 values, expected 3"):
        column.read(0, 4, np.empty((4, 3), np.float32))


@pytest.mark.parametrize("ntuple", [False, True])
def test_a_vector_of_another_length_is_named_with_its_entry(tmp_path, rows, ntuple):
    write_vectors(tmp_path / "a.root", rows, [4760, 4760, 4759, 4760], ntuple)
    with EventFile(tmp_path / "a.root") as file:
        out = np.empty((4, 4760), np.float32)
        with pytest.raises(DataFileError, match="4759 values an event in entry 2, expected 4760"):
            file.read_into("npho", 0, 4, out)
        file.read_into("npho", 0, 2, out[:2])


@pytest.mark.parametrize("format", ["ttree", "rntuple"])
def test_a_damaged_range_names_branch_and_entries_and_spares_the_rest(tmp_path, rows, write_rows, format, monkeypatch):
    from xectool.rootio import writer

    monkeypatch.setattr(writer, "CLUSTER_BYTES", 8 * 38_112)
    path = write_rows(tmp_path / "a.root", rows, format=format)
    with EventFile(path) as file:
        column = file.column("relative_time")
        assert column.boundaries() == [0, 8, 16, 24]
        if format == "ttree":
            seek = int(column._seeks[1]) + 200
        else:
            seek = column._ntuple.page_link_list[1][column._value_column].pages[0].locator.offset + 200
    with open(path, "r+b") as stream:
        stream.seek(seek)
        stream.write(b"\xff" * 100)
    with EventFile(path) as file:
        with pytest.raises(DataFileError, match="branch 'relative_time', entries 8 to 16 cannot be read") as caught:
            file.read_column("relative_time")
        assert caught.value.where.endswith("entries [8, 16)")
        assert caught.value.code == "XT-DATA-DAMAGED"
        np.testing.assert_array_equal(file.read_column("relative_time", 16, 24), rows["relative_time"][16:])
        np.testing.assert_array_equal(file.read_column("npho"), rows["npho"])


@pytest.mark.parametrize("how", ["written over", "moved"])
def test_a_file_that_is_written_over_while_it_is_read_is_not_called_damaged(tmp_path, rows, write_rows, how):
    """Its user was told to copy it again, and `check-data` then found nothing wrong with it."""
    path = write_rows(tmp_path / "a.root", rows)
    with EventFile(path) as file:
        file.column("npho")
        os.truncate(path, 3000)
        if how == "moved":
            path.rename(tmp_path / "b.root")
        with pytest.raises(DataFileError, match="was written over, moved or deleted while it was read") as caught:
            file.read_column("npho")
    assert caught.value.code == "XT-DATA-CHANGED"
    assert caught.value.fix.startswith(f"xectool check-data {path}:tree ")


@pytest.fixture(scope="module")
def large_basket(tmp_path_factory):
    """A file of one basket of 152 MB, in ten compressed blocks, and its numbers."""
    path = tmp_path_factory.mktemp("large") / "a.root"
    values = np.arange(8000, dtype=np.float32)[:, None] + np.zeros((1, 4760), np.float32)
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        file.mktree("tree", {"npho": np.dtype((np.float32, (4760,)))}).extend({"npho": values})
    return path, values


@pytest.fixture
def inflated(monkeypatch):
    """Bytes of every block, or beginning of a block, that is inflated."""
    found, original = [], inflate._inflate_block

    def counted(algorithm, data, size, wanted):
        block = original(algorithm, data, size, wanted)
        found.append(len(block))
        return block

    monkeypatch.setattr(inflate, "_inflate_block", counted)
    return found


def test_a_part_of_a_large_basket_inflates_only_its_blocks(large_basket, inflated):
    path, values = large_basket
    with EventFile(path) as file:
        assert file.column("npho").boundaries() == [0, len(values)]
        out = np.empty((10, 4760), np.float32)
        tracemalloc.start()
        file.read_into("npho", 7900, 7910, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    np.testing.assert_array_equal(out, values[7900:7910])
    assert sum(inflated) <= inflate.BLOCK_BYTES
    assert peak < 2 * inflate.BLOCK_BYTES


def test_several_blocks_are_joined_in_the_callers_array(large_basket, inflated):
    """Beside it there are the compressed bytes and one block, no buffer for all of them."""
    path, values = large_basket
    first, stop = 100, 5100
    with EventFile(path) as file:
        out = np.empty((stop - first, 4760), np.float32)
        tracemalloc.start()
        file.read_into("npho", first, stop, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    np.testing.assert_array_equal(out, values[first:stop])
    assert len(inflated) > 5
    assert peak < os.path.getsize(path) + 2 * inflate.BLOCK_BYTES


def test_a_large_basket_read_at_its_starts_inflates_each_byte_once(large_basket, inflated):
    path, values = large_basket
    with EventFile(path) as file:
        starts = [*file.cluster_starts("npho"), len(values)]
        assert len(starts) == 11
        for first, stop in itertools.pairwise(starts):
            np.testing.assert_array_equal(file.read_column("npho", first, stop), values[first:stop])
    assert values.nbytes <= sum(inflated) < 1.01 * values.nbytes
    inflated.clear()
    with EventFile(path) as file:  # cut elsewhere, most blocks are needed twice
        for first in range(0, len(values), 882 + 441):
            file.read_column("npho", first, min(first + 882 + 441, len(values)))
    assert sum(inflated) > 1.3 * values.nbytes


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 700), st.data())
def test_any_part_of_a_row_of_blocks_is_inflated_exactly(content, block, data):
    packed = b""
    for start in range(0, len(content), block):
        part = content[start : start + block]
        small = zlib.compress(part, 1)
        packed += b"ZL\x08" + len(small).to_bytes(3, "little") + len(part).to_bytes(3, "little") + small
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    room = np.empty(stop - start, np.uint8)
    assert bytes(inflate_range(packed, start, stop)) == content[start:stop]
    assert bytes(inflate_range(packed, start, stop, out=room)) == content[start:stop]


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"ZL\x08\x05\x00\x00\x05\x00\x00abcde", "Decompression failed"),
        (b"QQ\x08\x05\x00\x00\x05\x00\x00abcde", "no algorithm of ROOT"),
        (b"ZL\x08\xff\x00\x00\x05\x00\x00abcde", "longer than its data"),
        (b"L4\x01\x0d\x00\x00\x05\x00\x0012345678abcde", "checksum of an LZ4 block"),
        (b"ZL", "ends early"),
    ],
)
def test_broken_blocks_are_told_apart(packed, message):
    with pytest.raises(inflate.INFLATE_ERRORS, match=message):
        inflate_range(packed, 0, 5)


def _zstd_block(body: bytes, size: int) -> bytes:
    return b"ZS\x01" + len(body).to_bytes(3, "little") + size.to_bytes(3, "little") + body


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda good, content: _zstd_block(good, len(content) - 1),
        lambda good, content: _zstd_block(good, len(content) + 1),
        lambda good, content: _zstd_block(good[:-6], len(content)),
        lambda good, content: _zstd_block(good + b"more", len(content)),
        lambda good, content: _zstd_block(good[:-1] + bytes([good[-1] ^ 1]), len(content)),
        lambda good, content: _zstd_block(b"", len(content)),
    ],
    ids=["holds more", "holds less", "cut", "followed", "checksum", "empty"],
)
@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("sized", [True, False])
def test_a_zstd_block_is_what_it_says(spoiled, num_blocks, sized):
    """With the size in its header, and as a stream without; alone, and between others in a shared buffer."""
    content = np.random.default_rng(3).integers(0, 5, 300_000, np.uint8).tobytes()
    parameters = {"write_checksum": True, "write_content_size": sized}
    good = zstandard.ZstdCompressor(level=5, **parameters).compress(content)
    whole = _zstd_block(good, len(content)) * num_blocks
    assert bytes(inflate_range(whole, 0, num_blocks * len(content))) == content * num_blocks
    with pytest.raises(inflate.INFLATE_ERRORS):
        inflate_range(spoiled(good, content) + whole, 0, num_blocks * len(content))
    assert bytes(inflate_range(whole, 0, num_blocks * len(content))) == content * num_blocks


def _lz4_block(content: bytes) -> bytes:
    small = cramjam.lz4.compress_block(content, store_size=False)
    body = xxhash.xxh64_digest(small) + bytes(small)
    return b"L4\x01" + len(body).to_bytes(3, "little") + len(content).to_bytes(3, "little") + body


def test_an_lz4_block_is_inflated_in_the_rows_of_the_caller():
    content = np.random.default_rng(3).integers(0, 5, 300_000, np.uint8).tobytes()
    packed = _lz4_block(content)
    room = np.empty(len(content), np.uint8)
    found = np.frombuffer(inflate_range(packed, 0, len(content), out=room), np.uint8)
    assert np.shares_memory(found, room)
    assert found.tobytes() == content
    assert bytes(inflate_range(packed, 7, 1000, out=room[:993])) == content[7:1000]


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("algorithm", ["lz4", "zstd"])
def test_inflated_bytes_lie_where_the_docstring_says(algorithm, num_blocks, has_room, start):
    content = np.random.default_rng(3).integers(0, 5, 3000, np.uint8).tobytes()
    block = _lz4_block(content) if algorithm == "lz4" else _zstd_block(zstandard.compress(content), len(content))
    stop = num_blocks * len(content)
    room = np.full(stop - start, 9, np.uint8) if has_room else None
    found = np.frombuffer(inflate_range(block * num_blocks, start, stop, out=room), np.uint8)
    in_room = num_blocks == 2 or (algorithm == "lz4" and start == 0)
    assert has_room is False or np.shares_memory(found, room) is in_room
    inflate_range(_lz4_block(bytes(3000)) * 2, 0, 6000)  # the next call writes over the buffer of the thread
    is_kept = found.tobytes() == (content * num_blocks)[start:]
    assert is_kept is (has_room or num_blocks == 1)


@pytest.mark.parametrize("compression", ["lz4", "zlib", "none"])
@pytest.mark.parametrize("per_basket", [700, 2000])  # 2.7 MB in one block, 22 MB in two
def test_every_pattern_of_bits_survives_the_swap_of_bytes(tmp_path, compression, per_basket):
    bits = np.random.default_rng(4).integers(0, 2**32, (2100, 960), np.uint32)
    bits[:, 500:] = 0x7F800001  # a signalling NaN, which arithmetic would make a quiet one
    values = bits.view(np.float32) if per_basket == 700 else np.tile(bits.view(np.float32), (1, 3))
    path = tmp_path / "a.root"
    with uproot.recreate(path, compression=COMPRESSIONS[compression]) as file:
        tree = file.mktree("tree", {"npho": np.dtype((np.float32, values.shape[1:]))})
        for start in range(0, 2100, per_basket):
            tree.extend({"npho": values[start : start + per_basket]})
    with EventFile(path) as file:
        assert file.read_column("npho").tobytes() == values.tobytes()
        assert file.read_column("npho", 650, 2050).tobytes() == values[650:2050].tobytes()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 26), min_size=5, max_size=5), st.integers(0, 24), st.integers(0, 24))
@example([3, 5, 10, 15, 20], 0, 24)
@example([0, 10, 5, 15, 20], 10, 12)
def test_entries_are_never_left_out_where_those_of_baskets_are_damaged(tmp_path_factory, damaged, start, stop):
    path = tmp_path_factory.getbasetemp() / "damaged_entries.root"
    values = np.arange(72, dtype=np.float32).reshape(24, 3)
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        tree = file.mktree("tree", {"npho": np.dtype((np.float32, (3,)))})
        for first in range(0, 24, 5):
            tree.extend({"npho": values[first : first + 5]})
    body = path.read_bytes()
    assert body.count(struct.pack(">5q", 0, 5, 10, 15, 20)) == 1
    path.write_bytes(body.replace(struct.pack(">5q", 0, 5, 10, 15, 20), struct.pack(">5q", *damaged)))
    out = np.full((abs(stop - start), 3), -1, np.float32)
    try:
        with EventFile(path) as file:
            file.read_into("npho", min(start, stop), max(start, stop), out)
    except DataFileError as error:
        assert "damaged" in str(error)  # noqa: PT017  sound entries before the damage may be read
    else:
        assert (out >= 0).all()


def _single_events(path, values):
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        tree = file.mktree("tree", {name: np.dtype((np.float32, (values.shape[1],))) for name in ("npho", "time")})
        for row in values:
            tree.extend({"npho": row[None], "time": -row[None]})


@pytest.mark.parametrize("order", [1, -1], ids=["as they come", "backwards"])
def test_small_baskets_are_read_together_wherever_they_lie(tmp_path, order, monkeypatch):
    values = np.random.default_rng(2).normal(size=(300, 960)).astype(np.float32)
    _single_events(tmp_path / "a.root", values)
    reads = []
    read = LocalSource.read
    monkeypatch.setattr(LocalSource, "read", lambda self, *place: reads.append(place) or read(self, *place))
    with EventFile(tmp_path / "a.root") as file:
        column = file.column("npho")
        column._seeks, column._sizes = column._seeks[::order], column._sizes[::order]
        assert (file.read_column("npho", 7, 290) == values[::order][7:290]).all()
        assert (len(reads) < 60) == (order == 1)
        assert all(size <= LocalSource.bulk_bytes for _, size in reads)
        assert (file.read_column("time") == -values).all()


def test_of_baskets_read_together_the_one_that_is_cut_off_is_named(tmp_path):
    values = np.random.default_rng(2).normal(size=(60, 960)).astype(np.float32)
    _single_events(tmp_path / "a.root", values)
    with EventFile(tmp_path / "a.root") as file:
        end = int(file.column("npho")._seeks[41]) + 100
        os.truncate(tmp_path / "a.root", end)  # while it is open: as a disk that is full, or a copy that goes on
        with pytest.raises(DataFileError, match=r"entries 41 to 42 "):
            file.read_column("npho")
        assert (file.read_column("npho", 0, 41) == values[:41]).all()


def test_several_threads_read_one_file(tmp_path, rows, write_rows):
    path = write_rows(tmp_path / "a.root", rows)
    with EventFile(path) as file, ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda at: file.read_column("npho", at % 24, at % 24 + 1), range(96)))
    np.testing.assert_array_equal(np.concatenate(parts), np.tile(rows["npho"], (4, 1)))


def test_an_open_file_goes_to_another_process(tmp_path, rows, write_rows):
    path = write_rows(tmp_path / "a.root", rows)
    with EventFile(path) as file, pickle.loads(pickle.dumps(file)) as again:
        np.testing.assert_array_equal(again.read_column("run"), rows["run"])


def test_clusters_of_single_events_are_joined(tmp_path, rows):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        tree = file.mktree("tree", {"run": "int32"})
        for at in range(200):
            tree.extend({"run": np.array([at], np.int32)})
    with EventFile(path) as file:
        assert file.cluster_starts("run") == (0, 64, 128, 192)
        np.testing.assert_array_equal(file.read_column("run"), np.arange(200))


NPHO = ExpectedBranch("npho", 4760, "photons of each sensor", "data.npho_branch")


def test_a_missing_branch_names_the_nearest_and_the_option(tmp_path, rows, write_rows):
    with EventFile(write_rows(tmp_path / "a.root", {"npho": rows["npho"]})) as file:
        expected = ExpectedBranch("nphoo", 4760, "photons of each sensor", "data.npho_branch")
        with pytest.raises(DataFileError, match=r"no branch 'nphoo'[\s\S]*--set data\.npho_branch=npho"):
            check_schema(file, [expected])
        other = ExpectedBranch("nphoTruth", 1, "truth of task energy", "data.truth_branches.energy")
        with pytest.raises(DataFileError, match=r"energy=NAME$"):  # npho is near in name, and of another width
            check_schema(file, [other])
        task = replace(other, without="tasks.energy.enabled=false")
        first = (
            r"--set tasks\.energy\.enabled=false   # or name what holds it: --set data\.truth_branches\.energy=NAME$"
        )
        with pytest.raises(DataFileError, match=first):  # what can be pasted comes before what is to be filled in
            check_schema(file, [task])
        with pytest.raises(DataFileError, match="nearest there: npho"):
            file.read_column("nphoo")


def test_all_missing_branches_are_named_at_once(tmp_path, rows, write_rows):
    time, missing = ExpectedBranch("zeit", 4760, "time of each sensor", "data.time_branch"), r"no branch 'npho'"
    with (
        EventFile(write_rows(tmp_path / "a.root", {"run": rows["run"]})) as file,
        pytest.raises(DataFileError, match=rf"{missing}.*neither are there 'zeit' \(time of each sensor\)") as caught,
    ):
        check_schema(file, [NPHO, time])
    assert caught.value.fix.endswith("--set data.npho_branch=NAME --set data.time_branch=NAME")


def test_a_branch_of_another_width_names_one_that_fits(tmp_path, rows, write_rows):
    with EventFile(write_rows(tmp_path / "a.root", rows)) as file:
        expected = ExpectedBranch("uvwTruth", 4760, "photons of each sensor", "data.npho_branch")
        with pytest.raises(DataFileError, match=r"holds 3 values[\s\S]*--set data\.npho_branch=npho"):
            check_schema(file, [expected])
        with pytest.raises(DataFileError, match="holds 3 values an event, expected 4760"):
            file.read_into("uvwTruth", 0, 2, np.empty((2, 4760), np.float32))


def test_a_branch_that_another_role_has_is_not_offered(tmp_path, rows, write_rows):
    time = ExpectedBranch("relative_time", 4760, "time of each sensor", "data.time_branch")
    narrow = ExpectedBranch("uvwTruth", 4760, "photons of each sensor", "data.npho_branch")
    columns = {name: rows[name] for name in ("uvwTruth", "relative_time")}
    with EventFile(write_rows(tmp_path / "a.root", columns)) as file:
        with pytest.raises(DataFileError, match="no other branch has that width") as caught:
            check_schema(file, [time, narrow])
        assert "relative_time" not in caught.value.fix


def test_a_branch_of_text_is_refused(tmp_path):
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("tree", {"npho": "string"}).extend({"npho": ["a", "b"]})
    with EventFile(tmp_path / "a.root") as file, pytest.raises(DataFileError, match="not plain numbers"):
        check_schema(file, [NPHO])


def test_integers_are_read_as_floats(tmp_path, rows):
    counts = rows["npho"].astype(np.int32)
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("tree", {"npho": np.dtype((np.int32, (4760,)))}).extend({"npho": counts})
    with EventFile(tmp_path / "a.root") as file:
        check_schema(file, [NPHO])
        out = np.empty((24, 4760), np.float32)
        file.read_into("npho", 0, 24, out)
    np.testing.assert_array_equal(out, rows["npho"])


# Real ROOT, where a Python that has it is named: XECTOOL_ROOT_PYTHON=/path/to/venv/bin/python ---------------------

ROOT_PYTHON = os.environ.get("XECTOOL_ROOT_PYTHON", "")
needs_root = pytest.mark.skipif(not ROOT_PYTHON, reason="XECTOOL_ROOT_PYTHON names no Python with ROOT")

_ROOT_WRITES = r"""
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleWriter.hxx>
#include <ROOT/RNTupleWriteOptions.hxx>
#include <TFile.h>
#include <TTree.h>
template <class T> T value(int event, int sensor) { return T(event) + T(sensor % 97) / 64; }
template <class T> void tree(const char* path, int compression, int flush, const char* leaf, int size) {
  TFile file(path, "RECREATE", "", compression);
  TTree tree("tree", "");
  static T npho[4760]; Double_t energy; Int_t run = 7; Long64_t number; std::vector<float> extra(3);
  tree.Branch("npho", npho, (std::string("npho[4760]/") + leaf).c_str());
  tree.Branch("energyTruth", &energy, "energyTruth/D");
  tree.Branch("run", &run, "run/I");
  tree.Branch("event", &number, "event/L");
  tree.Branch("extra", &extra);
  if (flush >= 0) tree.SetAutoFlush(flush);
  for (number = 0; number < size; number++) {
    for (int s = 0; s < 4760; s++) npho[s] = value<T>(number, s);
    for (int k = 0; k < 3; k++) extra[k] = number + k;
    energy = number * 0.5;
    tree.Fill();
  }
  tree.Write();
}
template <class T, size_t N> void fit(std::array<T, N>&) {}
template <class T> void fit(std::vector<T>& v) { v.resize(4760); }
template <class T, class C> void ntuple(const char* path, int compression, int cluster, int size) {
  auto model = ROOT::RNTupleModel::Create();
  auto npho = model->MakeField<C>("npho");
  auto energy = model->MakeField<double>("energyTruth");
  auto run = model->MakeField<std::int32_t>("run");
  auto number = model->MakeField<std::int64_t>("event");
  auto extra = model->MakeField<std::array<float, 3>>("extra");
  ROOT::RNTupleWriteOptions options;
  options.SetCompression(compression);
  auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), "tree", path, options);
  fit(*npho);
  for (int event = 0; event < size; event++) {
    for (int s = 0; s < 4760; s++) (*npho)[s] = value<T>(event, s);
    for (int k = 0; k < 3; k++) (*extra)[k] = event + k;
    *energy = event * 0.5; *run = 7; *number = event;
    writer->Fill();
    if (cluster && event % cluster == cluster - 1) writer->CommitCluster();
  }
}
"""

_ROOT_CALLS = r"""
import sys, ROOT
ROOT.gInterpreter.Declare(open(sys.argv[1]).read())
d = sys.argv[2]
for code in (0, 101, 207, 404, 505):
    ROOT.tree["float"](f"{d}/tree_{code}.root", code, -30_000_000, "F", 60)
    ROOT.ntuple["float", "std::array<float,4760>"](f"{d}/ntuple_{code}.root", code, 0, 60)
ROOT.tree["float"](f"{d}/tree_tiny.root", 101, 0, "F", 60)
ROOT.tree["float"](f"{d}/tree_flush.root", 101, 13, "F", 60)
ROOT.tree["double"](f"{d}/tree_double.root", 505, 20, "D", 60)
ROOT.ntuple["double", "std::array<double,4760>"](f"{d}/ntuple_double.root", 505, 7, 60)
ROOT.ntuple["float", "std::vector<float>"](f"{d}/ntuple_vector.root", 404, 17, 60)
ROOT.tree["float"](f"{d}/float16.tree", 101, 20, "f", 20)
"""


@pytest.fixture(scope="module")
def root_files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("root")
    (directory / "write.cxx").write_text(_ROOT_WRITES)
    call = [ROOT_PYTHON, "-W", "ignore", "-c", _ROOT_CALLS, str(directory / "write.cxx"), str(directory)]
    subprocess.run(call, check=True, capture_output=True, timeout=300)
    return directory


@needs_root
def test_files_of_real_root_are_read(root_files):
    files = sorted(root_files.glob("*.root"))
    assert len(files) == 15
    event = np.arange(60)
    npho = (event[:, None] + (np.arange(4760) % 97) / 64).astype(np.float32)
    extra = (event[:, None] + np.arange(3)).astype(np.float32)
    for path in files:
        with EventFile(path) as file:
            out = np.empty((60, 4760), np.float32)
            file.read_into("npho", 0, 60, out)
            np.testing.assert_array_equal(out, npho, err_msg=str(path))
            file.read_into("npho", 13, 41, out[:28])
            np.testing.assert_array_equal(out[:28], npho[13:41], err_msg=str(path))
            np.testing.assert_array_equal(file.read_column("extra"), extra)
            np.testing.assert_array_equal(file.read_column("event"), event)
            np.testing.assert_array_equal(file.read_column("energyTruth"), event * 0.5)
            assert set(file.read_column("run")) == {7}


@needs_root
def test_a_type_that_uproot_stumbles_over_is_a_wrong_type_and_no_damage(root_files):
    with EventFile(root_files / "float16.tree") as file:
        with pytest.raises(DataFileError, match="holds TLeafF16, not plain numbers"):
            file.column("npho")
        np.testing.assert_array_equal(file.read_column("event"), np.arange(20))


_ROOT_READS = r"""
import sys, json, ROOT
frame = ROOT.RDataFrame("tree", sys.argv[1]).Define("s", "Sum(npho)").Define("w", "uvwTruth[2]")
names = ("s", "w", "energyTruth", "run", "event")
print("RESULT", json.dumps([frame.Count().GetValue(), *(frame.Sum(name).GetValue() for name in names)]))
"""


def test_a_branch_is_read_under_the_name_that_the_tree_gives_it(tmp_path, monkeypatch):
    """uproot looks for some names of Delphes in vain, which it gives itself; a structure has no type in C++ terms."""
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file.mktree("tree", {"E": np.float64}).extend({"E": np.arange(3.0)})
    with EventFile(path) as events:

        def vain(tree, name):
            raise uproot.KeyInFileError(name)

        monkeypatch.setattr(type(events._tree), "__getitem__", vain)
        assert events.read_column("E").tolist() == [0.0, 1.0, 2.0]
        assert (events.type_name("E"), events.counter("E")) == ("double", None)
        monkeypatch.delitem(numerical._dtype_kind_itemsize_to_typename, ("f", 8))
        assert events.type_name("E") == "TLeafD"


@needs_root
@pytest.mark.parametrize("format", ["ttree", "rntuple"])
@pytest.mark.parametrize("compression", ["zlib:1", "lz4", "zstd", "lzma:1", "none"])
def test_our_files_open_in_real_root(tmp_path, rows, write_rows, format, compression):
    path = write_rows(tmp_path / "a.root", rows, format=format, compression=compression)
    call = [ROOT_PYTHON, "-W", "ignore", "-c", _ROOT_READS, str(path)]
    output = subprocess.run(call, check=True, capture_output=True, text=True, timeout=300).stdout
    count, *sums = json.loads(output.split("RESULT", 1)[1])
    assert count == 24
    wanted = [
        rows["npho"].sum(),
        rows["uvwTruth"][:, 2].sum(),
        *(rows[n].sum() for n in ("energyTruth", "run", "event")),
    ]
    np.testing.assert_allclose(sums, wanted, rtol=1e-5)

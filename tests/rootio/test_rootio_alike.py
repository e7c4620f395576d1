"""Small baskets that are alike are decoded together, and give what each by itself gives, or says."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.errors import DataFileError
from xectool.rootio import alike
from xectool.rootio.baskets import BasketColumn
from xectool.rootio.reader import EventFile
from xectool.rootio.source import LocalSource
from xectool.rootio.stages import StageClock, clocked

ZLIB = uproot.ZLIB(9)
TYPES = ("float32", "float64", "int32", "int64", "uint8")


def write(path: Path, values: dict[str, np.ndarray], baskets: list[int], compression: Any = None) -> Path:
    with uproot.recreate(path, compression=compression) as file:
        tree = file.mktree("tree", {name: np.dtype((v.dtype, v.shape[1:])) for name, v in values.items()})
        start = 0
        for count in baskets:
            tree.extend({name: v[start : start + count] for name, v in values.items()})
            start += count
    return path


def numbers(size: int, dtype: str, width: int) -> np.ndarray:
    values = np.random.default_rng(1).integers(0, 200, (size, width)).astype(dtype)
    return values[:, 0] if width == 1 else values


def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that gets the number of each basket that is decoded by itself."""
    found: list[int] = []
    read = BasketColumn._read_basket
    monkeypatch.setattr(BasketColumn, "_read_basket", lambda self, *a: found.append(a[1]) or read(self, *a))
    return found


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that gets the bytes of each read of a file."""
    found: list[int] = []
    read = LocalSource.read
    monkeypatch.setattr(LocalSource, "read", lambda self, *place: found.append(place[1]) or read(self, *place))
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3).flatmap(lambda n: st.lists(st.just(n), min_size=1, max_size=14)), max_size=5),
    st.sampled_from(TYPES),
    st.integers(1, 5),
    st.booleans(),
    st.data(),
)
def test_any_part_of_any_row_of_baskets_is_read(tmp_path_factory, runs, dtype, width, packed, data):
    baskets = [count for run in runs for count in run] or [1]
    values = numbers(sum(baskets), dtype, width)
    path = tmp_path_factory.getbasetemp() / "alike.root"
    write(path, {"x": values, "other": values}, baskets, uproot.ZLIB(9) if packed else None)
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    with EventFile(path) as file:
        for name in ("x", "other"):
            out = np.full((stop - start, width), -1, np.float64)
            file.read_into(name, start, stop, out)
            assert (out == values[start:stop].reshape(-1, width)).all()


def test_baskets_of_one_event_are_decoded_together_up_to_those_of_another_size(tmp_path, monkeypatch):
    values = numbers(140, "float32", 3)
    path = write(tmp_path / "a.root", {"x": values}, [1] * 40 + [50, 50], uproot.ZLIB(1))
    found = alone(monkeypatch)
    with EventFile(path) as file:
        assert (file.read_column("x") == values).all()
        assert found == [40, 41]
        found.clear()
        assert (file.read_column("x", 35, 60) == values[35:60]).all()
        assert found == [35, 36, 37, 38, 39, 40]  # five are not worth it


@pytest.mark.parametrize(("offset", "told"), [(0, "does not agree"), (6, "compressed block"), (18, "belongs at byte")])
def test_a_damaged_header_among_them_is_named_and_spares_the_others(tmp_path, offset, told):
    values = numbers(40, "float32", 3)
    path = write(tmp_path / "a.root", {"x": values}, [1] * 40)
    with EventFile(path) as file:
        place = int(file.column("x")._seeks[17]) + offset
    body = bytearray(path.read_bytes())
    body[place] ^= 0x40
    path.write_bytes(body)
    with EventFile(path) as file:
        with pytest.raises(DataFileError, match=rf"entries 17 to 18 .*{told}"):
            file.read_column("x")
        assert (file.read_column("x", 0, 17) == values[:17]).all()
        assert (file.read_column("x", 18, 40) == values[18:]).all()


def test_where_the_file_ends_among_them_the_basket_is_named(tmp_path):
    values = numbers(40, "int64", 1)
    path = write(tmp_path / "a.root", {"x": values, "far": numbers(40, "float64", 400)}, [1] * 40)
    with EventFile(path) as file:
        os.truncate(path, int(file.column("x")._seeks[23]) + 10)  # while it is open, as a disk that is full
        with pytest.raises(DataFileError, match=r"entries 23 to 24 "):
            file.read_column("x")


@pytest.mark.parametrize("count", [11, 14, 40])
def test_compressed_baskets_of_one_size_are_told_from_plain_ones(tmp_path, monkeypatch, count):
    values = np.tile(np.arange(count, dtype=np.int32), (30, 1))  # of 11 and 14 they become few bytes fewer
    path = write(tmp_path / "a.root", {"x": values, "sensors": np.zeros((30, 9000), np.float32)}, [1] * 30)
    packed = write(tmp_path / "b.root", {"x": values, "sensors": np.zeros((30, 9000), np.float32)}, [1] * 30, ZLIB)
    found, reads = alone(monkeypatch), counted(monkeypatch)
    for place, num_alone in ((path, 0), (packed, 30)):
        found.clear()
        reads.clear()
        with EventFile(place) as file:
            assert (file.read_column("x") == values).all()
        assert len(found) == num_alone
        assert len(reads) <= 31  # what is told from the first one is not read twice


def test_far_from_each_other_they_cost_a_small_read_each(tmp_path, monkeypatch):
    values = {"x": numbers(300, "float32", 1), "sensors": np.zeros((300, 9000), np.float32)}
    path = write(tmp_path / "a.root", values, [1] * 300)
    sizes = counted(monkeypatch)
    with EventFile(path) as file, clocked(StageClock()) as clock:
        assert (file.read_column("x", 200, 300) == values["x"][200:]).all()  # uproot puts the first ones side by side
    assert len(sizes) == 101  # the first one tells whether they are compressed
    assert max(sizes) < 200
    assert clock.calls["read"] == len(sizes)


def test_side_by_side_behind_one_that_is_far_they_come_with_one_read(tmp_path, monkeypatch):
    values = numbers(100, "float32", 1)
    path = write(tmp_path / "a.root", {"x": values}, [1] * 100)
    with EventFile(path) as file:
        column = file.column("x")
        place, size = int(column._seeks[0]), int(column._sizes[0])
        body = bytearray(path.read_bytes())
        far = len(body) + 100_000
        basket = bytearray(body[place : place + size])
        basket[18:26] = far.to_bytes(8, "big")  # uproot writes places of 64 bits
        path.write_bytes(bytes(body).ljust(far, b"\0") + basket)
        column._seeks = np.array([far, *column._seeks[1:]])
        sizes = counted(monkeypatch)
        assert (file.read_column("x") == values).all()
        assert len(sizes) <= 5


@pytest.mark.parametrize("entries", [3000, 300_000])
def test_memory_is_bounded_whatever_the_row(tmp_path, entries):
    values = numbers(entries, "float64", 1)
    path = write(tmp_path / "a.root", {"x": values, "y": values}, [500] * (entries // 500))  # 4 kB, 600 at most
    out = np.empty((entries, 1))
    with EventFile(path) as file:
        file.read_into("x", 0, 500, out[:500])
        tracemalloc.start()
        file.read_into("x", 0, entries, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (out[:, 0] == values).all()
    assert peak < 6 * LocalSource.bulk_bytes


@pytest.mark.parametrize("name", ["stored", "key", "object", "place"])
def test_a_header_that_differs_leaves_each_to_be_read_by_itself(name: str) -> None:
    keys = np.zeros(9, alike._KEY)
    keys["stored"], keys["key"], keys["object"], keys["place"] = 40, 32, 8, np.arange(9)
    data = b"".join(key.tobytes().ljust(40, b"x") for key in keys)
    assert alike.decode_alike(data, np.arange(9), 8) is not None
    assert alike.decode_alike(data, np.arange(9), 9) is None  # more than there is
    keys[name][5] += 2
    changed = b"".join(key.tobytes().ljust(40, b"x") for key in keys)
    assert alike.decode_alike(changed, np.arange(9), 8) is None


@pytest.mark.parametrize(
    ("counts", "sizes", "found"),
    [
        ([1] * 20, [82] * 20, 20),
        ([1] * 12 + [2] + [1] * 7, [82] * 20, 12),
        ([1] * 20, [82] * 9 + [83] * 11, 9),
        ([1] * 20, [82] * 15, 15),
        ([1] * 7, [82] * 7, 0),
        ([1] * 20, [], 0),
        ([0] * 20, [82] * 20, 0),
        ([-1] * 20, [82] * 20, 0),
        ([15] * 20, [82] * 20, 0),  # 60 bytes and a key of 26 at least are more than 82: compressed
        ([1] * 20, [5000] * 20, 0),
        ([1] * 20, [0] * 20, 0),
        ([1] * 2000, [82] * 2000, 100),
    ],
)
def test_baskets_that_are_alike_are_counted(counts: list[int], sizes: list[int], found: int) -> None:
    edges = np.cumsum([7, *counts])
    assert alike.count_alike(edges, np.array(sizes, np.int64), 4, 8200) == found


def test_places_beyond_two_gigabytes_are_read_as_such() -> None:
    place = 5 << 32
    key = np.zeros(1, alike._KEY)
    key["stored"], key["version"], key["object"], key["key"], key["far_place"] = 40, 1004, 8, 32, place
    basket = key.tobytes().ljust(32, b"\0") + b"abcdefgh"
    assert (found := alike.decode_alike(basket * 2, np.array([place, place]), 8)) is not None
    assert found.tobytes() == b"abcdefgh" * 2
    assert alike.decode_alike(basket * 2, np.array([place, place + 1]), 8) is None

"""Small baskets that are alike are decoded together, and give what each by itself gives, or says."""

from __future__ import annotations

import os
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


def test_compressed_baskets_of_one_size_are_told_from_plain_ones(tmp_path, monkeypatch):
    values = np.tile(np.arange(60, dtype=np.int32), (20, 1))  # 240 bytes that become fewer, the same in all
    path = write(tmp_path / "a.root", {"x": values}, [1] * 20, uproot.ZLIB(9))
    found = alone(monkeypatch)
    with EventFile(path) as file:
        assert (file.read_column("x") == values).all()
        assert len(found) == 20


def test_far_from_each_other_they_cost_a_small_read_each(tmp_path, monkeypatch):
    values = {"x": numbers(300, "float32", 1), "sensors": np.zeros((300, 9000), np.float32)}
    path = write(tmp_path / "a.root", values, [1] * 300)
    sizes: list[int] = []
    read = LocalSource.read
    monkeypatch.setattr(LocalSource, "read", lambda self, *a: sizes.append(a[1]) or read(self, *a))
    with EventFile(path) as file:
        assert (file.read_column("x", 200, 300) == values["x"][200:]).all()  # uproot puts the first ones side by side
    assert len(sizes) == 100
    assert max(sizes) < 200


def test_places_beyond_two_gigabytes_are_read_as_such() -> None:
    place = 5 << 32
    key = np.zeros(1, alike._KEY)
    key["stored"], key["version"], key["object"], key["key"], key["far_place"] = 40, 1004, 8, 32, place
    basket = key.tobytes().ljust(32, b"\0") + b"abcdefgh"
    assert (found := alike.decode_alike(basket * 2, np.array([place, place]), 8)) is not None
    assert found.tobytes() == b"abcdefgh" * 2
    assert alike.decode_alike(basket * 2, np.array([place, place + 1]), 8) is None

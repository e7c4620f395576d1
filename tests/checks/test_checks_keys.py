"""Bytes of a header, a basket's key or a block's that no value hangs on, but that ROOT reads: found without hashes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from uproot.writing._cascadetree import Tree
from xectool.checks.probing import probe

Rows = dict[str, np.ndarray]
Edit = Callable[[bytearray, int], None]


def flip(step: int, mask: int) -> Edit:
    def edit(data: bytearray, basket: int) -> None:
        data[basket + step] ^= mask

    return edit


def flip_text(text: bytes) -> Edit:
    def edit(data: bytearray, basket: int) -> None:
        data[data.index(text, basket)] ^= 0x20

    return edit


def flip_method(data: bytearray, basket: int) -> None:
    (key_bytes,) = struct.unpack_from(">H", data, basket + 14)
    data[basket + key_bytes + 2] ^= 0x02


EDITS: dict[str, tuple[Edit, str]] = {
    "version": (flip(4, 0x40), "version 17388"),
    "length_of_content": (flip(9, 0x04), "compressed block"),
    "class": (flip_text(b"TBasket"), "it is a b'tBasket'"),
    "name": (flip_text(b"npho"), "it is of b'Npho'"),
    "method": (flip_method, "which ROOT does not read"),
}


def baskets(path: Path, rows: Rows, compression: Any) -> Path:
    """Write rows in three baskets of 40."""
    with uproot.recreate(path, compression=compression) as file:
        tree = file.mktree("tree", {name: (values.dtype, values.shape[1:]) for name, values in rows.items()})
        for start in (0, 40, 80):
            tree.extend({name: values[start : start + 40] for name, values in rows.items()})
    return path


@pytest.mark.parametrize("compression", [uproot.ZLIB(1), uproot.ZSTD(3), uproot.LZ4(1)], ids=["zlib", "zstd", "lz4"])
@pytest.mark.parametrize("name", EDITS)
def test_a_key_that_values_do_not_hang_on_is_found_and_located(
    tmp_path: Path, good_rows: Rows, check: Callable[..., Any], name: str, compression: Any
) -> None:
    path = baskets(tmp_path / "a.root", good_rows, compression)
    data = bytearray(path.read_bytes())
    edit, told = EDITS[name]
    edit(data, int(probe(str(path)).branches["npho"].units.offset[1]))
    path.write_bytes(data)
    result = check(path, deep=True)
    assert result.is_bad
    found = [found for found in result.findings if found.where == f"{path}:tree branch npho entries [40, 80)"]
    assert [(item.code, told in item.problem) for item in found] == [("DAT-02", True)], found


def test_sizes_of_places_that_contradict_the_version_are_found(
    tmp_path: Path, good_rows: Rows, check: Callable[..., Any]
) -> None:
    path = baskets(tmp_path / "a.root", good_rows, uproot.ZLIB(1))
    data = bytearray(path.read_bytes())
    assert data[32] == 4
    data[32] = 12
    path.write_bytes(data)
    assert any("other sizes than its version" in found.problem for found in check(path).findings)


def test_a_branch_that_was_renamed_is_no_damage(tmp_path: Path, good_rows: Rows, check: Callable[..., Any]) -> None:
    """Its baskets keep the old name, all of them."""
    path = baskets(tmp_path / "a.root", good_rows, uproot.ZLIB(1))
    data = bytearray(path.read_bytes())
    for offset in probe(str(path)).branches["npho"].units.offset:
        flip_text(b"npho")(data, int(offset))
    path.write_bytes(data)
    assert not check(path, deep=True).is_bad


def test_a_file_that_was_once_beyond_2_gb_is_no_damage(
    tmp_path: Path, good_rows: Rows, check: Callable[..., Any]
) -> None:
    """ROOT 6.40 deletes a tree of 2.1 GB: the version is again one of small files, the size of places stays 8."""
    path = baskets(tmp_path / "a.root", good_rows, uproot.ZLIB(1))
    data = bytearray(path.read_bytes())
    data[32] = 8
    path.write_bytes(data)
    assert not check(path, deep=True).is_bad


def test_a_branch_that_was_renamed_and_filled_on_is_no_damage(
    tmp_path: Path, good_rows: Rows, check: Callable[..., Any]
) -> None:
    """ROOT 6.40 writes further baskets under the new name; the old ones keep theirs."""
    path = baskets(tmp_path / "a.root", good_rows, uproot.ZLIB(1))
    data = bytearray(path.read_bytes())
    for offset in probe(str(path)).branches["npho"].units.offset[:2]:
        at = data.index(b"npho", int(offset))
        data[at : at + 4] = b"lite"
    path.write_bytes(data)
    assert not check(path, deep=True).is_bad


@pytest.mark.parametrize(("name", "num_baskets", "bad"), [("E", 1, False), ("", 2, True)])
def test_one_letter_is_an_old_name_and_none_is_not(
    tmp_path: Path, good_rows: Rows, check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str,
    num_baskets: int, bad: bool,
) -> None:  # fmt: skip
    """Of baskets written under another name, in bytes that agree with it, the first one or two are of a branch."""
    write, rest = Tree.write_np_basket, [name] * num_baskets

    def named(self: Tree, sink: Any, branch: str, *values: Any) -> Any:
        return write(self, sink, rest.pop() if branch == "npho" and rest else branch, *values)

    monkeypatch.setattr(Tree, "write_np_basket", named)
    path = baskets(tmp_path / "a.root", good_rows, uproot.ZLIB(1))
    found = [item for item in check(path, deep=True).findings if item.code == "DAT-02"]
    assert (bool(found), rest) == (bad, []), found


def test_baskets_under_the_name_of_another_branch_are_damage(
    tmp_path: Path, good_rows: Rows, check: Callable[..., Any]
) -> None:
    path = baskets(tmp_path / "a.root", {**good_rows, "lite": good_rows["run"]}, uproot.ZLIB(1))
    data = bytearray(path.read_bytes())
    for offset in probe(str(path)).branches["npho"].units.offset[:2]:
        at = data.index(b"npho", int(offset))
        data[at : at + 4] = b"lite"
    path.write_bytes(data)
    assert any("it is of b'lite'" in found.problem for found in check(path, deep=True).findings)

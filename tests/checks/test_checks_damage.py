"""Damaged variants of good files: each is found and located; nothing is found in the good ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xectool.checks.facts import FileFacts
from xectool.checks.probing import probe
from xectool.engine.data_report import DataChecked, FileChecked
from xectool.errors import DataFileError
from xectool.rootio.reader import EventFile
from xectool.rootio.recorded import sidecar

Rows = dict[str, np.ndarray]
Damage = Callable[[Path, Rows, Callable[..., Path]], None]
COMPRESSIONS = ("none", "zlib:1", "lz4:4", "zstd:5", "lzma:1")
EXPONENT_TOP = 0x40


def unit_of(facts: FileFacts, branch: str, row: int = -1) -> tuple[int, int]:
    """Offset and size of one basket or page of a branch."""
    units = facts.branches[branch].units
    return int(units.offset[row]), int(units.num_bytes[row])


def flip(path: Path, offset: int, mask: int = 0x55) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def flip_in(branch: str, share: float, mask: int = 0x55, **options: Any) -> Damage:
    """Flip bits of a byte within the last basket of a branch."""

    def damage(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
        write(path, rows, **options)
        offset, size = unit_of(probe(str(path)), branch)
        flip(path, offset + int(share * size), mask)

    return damage


def flip_exponent(branch: str, row: int, sensor: int, **options: Any) -> Damage:
    """Flip the top bit of the exponent of one reading of a file that is not compressed."""

    def damage(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
        write(path, rows, compression="none", **options)
        value = struct.pack(">f", rows[branch][row, sensor])
        window = rows[branch][row, sensor : sensor + 4].astype(">f4").tobytes()
        data = path.read_bytes()
        at = data.find(window)
        assert at > 0
        assert data[at : at + 4] == value
        flip(path, at, EXPONENT_TOP)

    return damage


def cell(branch: str, row: int, sensor: int, value: float) -> Damage:
    def damage(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
        rows[branch][row, sensor] = value
        write(path, rows)

    return damage


def truncated(share: float, **options: Any) -> Damage:
    def damage(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
        write(path, rows, **options)
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])

    return damage


def without(*branches: str) -> Damage:
    return lambda path, rows, write: write(path, {k: v for k, v in rows.items() if k not in branches}) and None


def changed(**replaced: Callable[[Rows], np.ndarray]) -> Damage:
    def damage(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
        write(path, rows | {name: make(rows) for name, make in replaced.items()})

    return damage


def content(data: bytes) -> Damage:
    return lambda path, rows, write: path.write_bytes(data) and None


def other_tree(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
    write(path, rows, tree="events")


def zeroed(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
    write(path, rows)
    offset, size = unit_of(probe(str(path)), "relative_time")
    data = bytearray(path.read_bytes())
    data[offset + 100 : offset + size] = bytes(size - 100)
    path.write_bytes(data)


def entry_count(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
    write(path, rows)
    offset, _ = unit_of(probe(str(path)), "energyTruth")
    data = path.read_bytes()
    key_bytes = struct.unpack_from(">h", data, offset + 14)[0]
    at = offset + key_bytes - 9  # fNevBuf, fLast and a flag byte end the key
    assert struct.unpack_from(">i", data, at)[0] == len(rows["run"])
    path.write_bytes(data[:at] + struct.pack(">i", 7) + data[at + 4 :])


def swapped(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
    """Two whole baskets that change places: every number is sound, and every event has the light of another."""
    with uproot.recreate(path, compression=None) as file:
        tree = file.mktree("tree", {name: (values.dtype, values.shape[1:]) for name, values in rows.items()})
        for start in (0, 40, 80):
            tree.extend({name: values[start : start + 40] for name, values in rows.items()})
    (first, size), (second, _) = unit_of(probe(str(path)), "npho", 0), unit_of(probe(str(path)), "npho", 1)
    data = bytearray(path.read_bytes())
    data[first : first + size], data[second : second + size] = data[second : second + size], data[first : first + size]
    path.write_bytes(data)


def misplaced(field: int) -> Damage:
    """Flip a bit of a place that the header names: 19 ends that of the free list, 40 that of the class descriptions."""

    def damage(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
        flip(write(path, rows), field, 1)

    return damage


def put_together(path: Path, rows: Rows, write: Callable[..., Path]) -> None:
    path.write_bytes(2 * write(path, rows).read_bytes())


DAMAGES: dict[str, tuple[Damage, str, str]] = {
    # name: how, code, what its place has to name
    "zero_bytes": (content(b""), "DAT-01", ""),
    "nulls": (content(bytes(5000)), "DAT-01", ""),
    "html": (content(b"<html><body>please log in</body></html>"), "DAT-01", ""),
    "lfs": (content(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"), "DAT-01", ""),
    "hdf5": (content(b"\x89HDF\r\n\x1a\n" + bytes(200)), "DAT-01", ""),
    "text": (content(b"run,event,energy\n1,2,3\n"), "DAT-01", ""),
    "magic_only": (content(b"root"), "DAT-01", ""),
    "cut_200_bytes": (truncated(0.9999), "DAT-01", ""),
    "cut_half": (truncated(0.5), "DAT-01", ""),
    "cut_ntuple": (truncated(0.7, format="rntuple"), "DAT-01", ""),
    "other_tree": (other_tree, "DAT-03", ":tree"),
    "no_npho": (without("npho"), "DAT-04", "branch npho"),
    "no_time": (without("relative_time"), "DAT-04", "branch relative_time"),
    "no_run": (without("run"), "DAT-04", "branch run"),
    "integer_npho": (changed(npho=lambda rows: np.clip(rows["npho"], 0, 1e6).astype("i4")), "DAT-04", "branch npho"),
    "width_4759": (changed(npho=lambda rows: rows["npho"][:, :4759]), "DAT-05", "branch npho"),
    "time_4759": (changed(relative_time=lambda rows: rows["relative_time"][:, :4759]), "DAT-05", "relative_time"),
    "uvw_of_two": (changed(uvwTruth=lambda rows: rows["uvwTruth"][:, :2]), "DAT-05", "branch uvwTruth"),
    "empty": (lambda p, rows, w: w(p, {k: v[:0] for k, v in rows.items()}) and None, "DAT-06", ":tree"),
    "nan_cell": (cell("npho", 7, 11, np.nan), "DAT-07", "entry 7 run 5000 event 7 sensor 11 face inner"),
    "inf_cell": (cell("npho", 8, 4200, np.inf), "DAT-07", "entry 8 run 5000 event 8 sensor 4200 face outer"),
    "neginf_cell": (cell("npho", 9, 4310, -np.inf), "DAT-07", "entry 9 run 5000 event 9 sensor 4310 face us"),
    "blank_sector": (
        cell("relative_time", 5, slice(700, 1100), 0.0), "DAT-02", "entry 5 run 5000 event 5 sensor 700"
    ),
    "nan_time": (cell("relative_time", 3, 4600, np.nan), "DAT-07", "sensor 4600 face top"),
    "huge_npho": (cell("npho", 5, 6, 3e8), "DAT-02", "entry 5 run 5000 event 5 sensor 6 face inner"),
    "tiny_npho": (cell("npho", 5, 6, 1e-30), "DAT-02", "entry 5 run 5000 event 5 sensor 6 face inner"),
    "late_time": (cell("relative_time", 5, 6, 0.5), "DAT-02", "entry 5 run 5000 event 5 sensor 6 face inner"),
    "nan_truth": (cell("uvwTruth", 4, 1, np.nan), "DAT-16", "uvwTruth entry 4 run 5000 event 4"),
    "lonely_run": (
        changed(run=lambda rows: np.where(np.arange(len(rows["run"])) == 30, 5000 + 2**20, rows["run"]).astype("i4")),
        "DAT-02",
        "branch run entry 30",
    ),
    "zeroed_basket": (zeroed, "DAT-02", "branch relative_time entries [0, 120)"),
    "entry_count": (entry_count, "DAT-02", "branch energyTruth entries [0, 120)"),
    "exponent_npho": (flip_exponent("npho", 20, 100), "DAT-02", "branch npho entry 20"),
    "exponent_npho_ntuple": (cell("npho", 21, 101, 4e25), "DAT-02", "branch npho entry 21"),
    **{
        f"flip_{branch}_{name.split(':')[0]}": (
            flip_in(branch, 0.6, compression=name), "DAT-02", f"branch {branch} entries [0, 120)",
        )
        for name in ("zlib:1", "lz4:4", "lzma:1")
        for branch in ("npho", "relative_time")
    },
    **{
        f"flip_page_{name.split(':')[0]}": (
            flip_in("npho", 0.5, compression=name, format="rntuple"), "DAT-02", "branch npho entries",
        )
        for name in COMPRESSIONS[1:]
    },
    "swapped_baskets": (swapped, "DAT-02", "branch npho entries [0, 80)"),
    "free_list": (misplaced(19), "DAT-02", ":tree"),
    "class_descriptions": (misplaced(40), "DAT-02", ":tree"),
    "put_together": (put_together, "DAT-02", ":tree"),
}  # fmt: skip


@pytest.fixture(scope="session")
def damaged(
    tmp_path_factory: pytest.TempPathFactory, good_rows: Rows, write: Callable[..., Path], check: Callable[..., Any]
) -> dict[str, FileChecked]:
    """Every variant, all checked at once: one bad file must not hide another."""
    directory = tmp_path_factory.mktemp("damaged")
    paths = {name: directory / f"{name}.root" for name in DAMAGES}
    for number, (name, path) in enumerate(paths.items()):
        rows = {key: values.copy() for key, values in good_rows.items()}
        rows["npho"] = rows["npho"] + np.float32(number * 1e-3)  # copies of one event are another fault
        DAMAGES[name][0](path, rows, write)
    result = check(*paths.values(), deep=True)
    return {Path(file.path).stem: file for file in result.files}


def test_there_are_enough_variants() -> None:
    assert len(DAMAGES) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_found_and_located(damaged: dict[str, FileChecked], name: str) -> None:
    _, code, place = DAMAGES[name]
    found = [problem for problem in damaged[name].problems if problem["code"] == code]
    assert found, f"{name}: {damaged[name].problems}"
    assert any(place in problem["where"] for problem in found), [problem["where"] for problem in found]
    assert all(damaged[name].path in problem["where"] for problem in found)


def test_baskets_of_other_entries_are_not_read_as_events(
    tmp_path: Path, rows: Rows, write: Callable[..., Path]
) -> None:
    """A training reads no basket that says it lies elsewhere; uproot takes the numbers as they come (control)."""
    path = tmp_path / "swapped.root"
    swapped(path, rows, write)
    assert np.array_equal(uproot.open(path)["tree"]["npho"].array(entry_stop=40, library="np"), rows["npho"][40:80])
    with EventFile(str(path)) as file, pytest.raises(DataFileError, match="entries 0 to 40") as caught:
        file.read_into("npho", 0, 40, np.empty((40, 4760), np.float32))
    assert caught.value.code == "XT-DATA-DAMAGED"


def test_what_a_deletion_leaves_behind_the_end_is_no_fault(
    good: Path, tmp_path: Path, check: Callable[..., DataChecked]
) -> None:
    """ROOT leaves the bytes of a tree that was deleted where it was the last one: seen with TFile::Delete, 256 kB."""
    path = tmp_path / "longer.root"
    path.write_bytes(good.read_bytes() + b"x" * 1000)
    result = check(path)
    assert not result.is_bad
    assert [item.severity.value for item in result.findings if "goes on for 1000 bytes" in item.problem] == ["info"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_plausible_flip_is_found_by_the_recorded_hashes(
    tmp_path: Path, good_rows: Rows, write: Callable[..., Path], check: Callable[..., DataChecked], compression: str
) -> None:
    path = write(
        tmp_path / "a.root", {name: values[:20] for name, values in good_rows.items()}, compression=compression
    )
    first = check(path, write_digest=True)
    assert first.digests == (str(sidecar(str(path))),)
    offset, size = unit_of(probe(str(path)), "relative_time")
    flip(path, offset + size // 2, 0x01)
    found = [found for found in check(path).findings if "recorded" in found.problem]
    assert [found.where for found in found] == [f"{path}:tree branch relative_time entries [0, 20)"]
    assert found[0].code == "DAT-02"


def test_without_recorded_hashes_a_plausible_flip_of_a_plain_basket_stays_unseen(
    tmp_path: Path, good_rows: Rows, write: Callable[..., Path], check: Callable[..., DataChecked]
) -> None:
    path = write(tmp_path / "a.root", {name: values[:20] for name, values in good_rows.items()}, compression="none")
    offset, size = unit_of(probe(str(path)), "npho")
    flip(path, offset + size // 2 + 3, 0x01)
    found = check(path, deep=True)
    assert not found.is_bad
    assert any("no recorded hashes" in reason for reason in found.why)
    assert check(path, write_digest=True, deep=True).next.startswith("xectool config init"), "no hashes are asked for"


@pytest.mark.parametrize("everywhere", [slice(300, 900), slice(0, 4760, 20)])
def test_zeros_in_every_event_are_no_damage(
    tmp_path: Path, good_rows: Rows, write: Callable[..., Path], check: Callable[..., DataChecked], everywhere: slice
) -> None:
    rows = {name: values[:20].copy() for name, values in good_rows.items()}
    rows["npho"][:, everywhere] = 0.0
    rows["npho"][3, 300:900] = 0.0
    assert "DAT-02" not in {found.code for found in check(write(tmp_path / "a.root", rows)).findings}


def with_hashes(good: Path, tmp_path: Path, check: Callable[..., DataChecked]) -> tuple[Path, Path]:
    """Return a copy of a good file whose hashes are recorded, and where they are."""
    path = tmp_path / "a.root"
    path.write_bytes(good.read_bytes())
    check(path, write_digest=True, max_events=1)
    return path, sidecar(str(path))


@pytest.mark.parametrize(
    "edit",
    [
        lambda stored: stored.pop("size_bytes"),
        lambda stored: stored["trees"]["tree"]["run"][0].pop(),
        lambda stored: stored["trees"]["tree"]["run"][0].__setitem__(2, -8),
        lambda stored: stored["trees"].__setitem__("tree", 3),
    ],
)
def test_damaged_hashes_are_told_and_no_traceback(
    good: Path, tmp_path: Path, check: Callable[..., DataChecked], edit: Callable[[Any], Any]
) -> None:
    path, place = with_hashes(good, tmp_path, check)
    stored = json.loads(place.read_text())
    edit(stored)
    place.write_text(json.dumps(stored))
    flip(path, 30, 0x01)
    assert any("recorded hashes" in found.problem for found in check(path, max_events=1).findings)


def test_hashes_that_do_not_fit_are_never_replaced(
    good: Path, tmp_path: Path, check: Callable[..., DataChecked]
) -> None:
    """Also not where the name of the file has a colon, as places in findings have."""
    path = tmp_path / "a:b.root"
    path.write_bytes(good.read_bytes())
    assert check(path, write_digest=True, max_events=1).digests
    before = sidecar(str(path)).read_text()
    flip(path, 30, 0x01)
    assert not check(path, write_digest=True, max_events=1).digests
    assert sidecar(str(path)).read_text() == before


def test_hashes_of_two_trees_of_one_file_are_kept_beside_each_other(
    good_rows: Rows, tmp_path: Path, check: Callable[..., DataChecked]
) -> None:
    """The second tree took the place of the first, whose damage was then told of the directory."""
    path = tmp_path / "both.root"
    with uproot.recreate(path, compression=None) as file:
        for tree in ("train", "val"):
            file[tree] = {name: values[:20] for name, values in good_rows.items()}
    for tree in ("train", "val"):
        assert check(f"{path}:{tree}", write_digest=True).digests
    offset, _ = unit_of(probe(f"{path}:train"), "npho")
    flip(path, offset + 1000, 0x01)
    for tree in ("train", "val"):  # neither tree may record the damage
        result = check(f"{path}:{tree}", write_digest=True)
        told = [found for found in result.findings if "XT-DATA-DIGEST" in " ".join(found.evidence)]
        assert [found.where.partition(" entries")[0] for found in told] == [f"{path}:train branch npho"]
        assert not result.digests


def test_the_check_that_records_hashes_again_is_of_the_first_tree_that_was_given(
    good: Path, tmp_path: Path, check: Callable[..., DataChecked]
) -> None:
    path, place = with_hashes(good, tmp_path, check)
    place.write_text("{}")
    result = check(f"{path}:tree", f"{path}:other", max_events=1)
    (found,) = (found for found in result.findings if "recorded hashes" in found.problem)
    assert found.fix.startswith(f"xectool check-data {path}:tree ")


def test_hashes_of_before_trees_were_told_apart_are_compared(
    good: Path, tmp_path: Path, check: Callable[..., DataChecked]
) -> None:
    path, place = with_hashes(good, tmp_path, check)
    stored = json.loads(place.read_text())
    old = stored | {"format": "xectool-digest-1", "tree": "tree", "units": stored.pop("trees")["tree"]}
    place.write_text(json.dumps(old))
    assert not any("recorded hashes" in found.problem for found in check(path, max_events=1).findings)
    flip(path, 30, 0x01)
    assert any("since its hashes were recorded" in found.problem for found in check(path, max_events=1).findings)


def test_a_change_outside_of_the_baskets_is_told_apart(good: Path, tmp_path: Path, check: Callable[..., Any]) -> None:
    path = tmp_path / "a.root"
    path.write_bytes(good.read_bytes())
    check(path, write_digest=True)
    flip(path, 30, 0x01)
    findings = check(path).findings
    assert any("recorded" in found.problem and found.severity.value == "error" for found in findings)


GOOD = [
    *(("ttree", compression, 120) for compression in COMPRESSIONS),
    *(("rntuple", compression, 120) for compression in ("none", "zlib:1", "zstd:5")),
    ("ttree", "zlib:1", 1),
    ("ttree", "zlib:1", 7),
    ("rntuple", "zlib:1", 7),
]


@pytest.mark.parametrize(("format", "compression", "size"), GOOD)
def test_good_files_have_nothing_above_a_note(
    tmp_path: Path, good_rows: Rows, write: Callable[..., Path], check: Callable[..., DataChecked],
    format: str, compression: str, size: int,
) -> None:  # fmt: skip
    rows = {name: values[:size] for name, values in good_rows.items()}
    path = write(tmp_path / "a.root", rows, format=format, compression=compression)
    result = check(path, deep=True)
    assert [found for found in result.findings if found.severity.value != "info"] == []
    assert (result.events, result.events_scanned, result.complete, result.is_bad) == (size, size, True, False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = good.read_bytes()
    length = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path / "cut.root"
    path.write_bytes(whole[:length])
    facts = probe(str(path))
    assert not facts.opened
    assert facts.troubles[0].check == "DAT-01"
    assert str(path) in facts.troubles[0].where

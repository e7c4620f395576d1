"""``xectool convert``: branches in another unit, markers and impossible truths, all else as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from xectool.rootio import converting

EVENTS = 60


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """A file with what files hold: vectors, single numbers, entries of any length, texts."""
    draw = np.random.default_rng(5)
    columns = {
        "energy": draw.uniform(20, 60, EVENTS).astype(np.float32),
        "uvw": draw.normal(0, 10, (EVENTS, 3)),
        "light": draw.integers(0, 1000, (EVENTS, 7), dtype=np.int32),
        "run": np.full(EVENTS, 7, np.int32),
        "hits": ak.Array([draw.normal(0, 1, number % 4).astype(np.float32) for number in range(EVENTS)]),
        "note": ak.Array([f"event {number}" for number in range(EVENTS)]),
    }
    columns["energy"][[3, 9]] = -999.0, 1e10
    columns["uvw"][[2, 4], [1, 2]] = np.nan, 5.0
    columns["uvw"][5, 1] = 5.0
    columns["light"][1, 2] = -999
    write(tmp_path / "own.root", columns)
    return columns


def write(path: Path, columns: dict[str, Any], tree: str = "ev") -> None:
    types = {
        name: (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else kind
        for (name, column), kind in zip(columns.items(), ["", "", "", "", "var * float32", "string"], strict=False)
    }
    with uproot.recreate(path) as file:
        file.mktree(tree, types)
        for start in range(0, EVENTS, 25):
            file[tree].extend({name: column[start : start + 25] for name, column in columns.items()})


def values(path: Path) -> dict[str, Any]:
    with uproot.open(f"{path}:ev") as tree:
        return {name: tree[name].array(library="ak") for name in tree.keys()}  # noqa: SIM118 - a tree is no dict


def test_help_says_what_becomes_1e10(xectool: Callable[..., Any]) -> None:
    outcome = xectool("convert", "--help")
    assert outcome.code == 0
    assert "--into" in outcome.out
    assert "becomes 1e10" in outcome.out


@pytest.mark.parametrize("at_once", [2000, 7])
def test_what_is_asked_is_changed_and_all_else_is_copied(
    own: dict[str, Any], xectool: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(converting, "MOST_EVENTS", at_once)
    target = tmp_path / "new.root"
    outcome = xectool(
        "convert", f"{tmp_path}/own.root:ev", "--into", target, "--scale", "energy=1e-3", "--marker", "energy=-999",
        "--marker", "uvw[1]=5", "--finite", "uvw", "--marker", "light=-999", "--within", "hits=-1:1", "--json",
    )  # fmt: skip
    result = outcome.document["result"]
    (file,) = result["files"]
    outside = np.asarray(ak.any(abs(own["hits"]) > 1, axis=1))
    counts = {"energy": EVENTS - 1, "uvw": 2, "light": 1, "hits": int(outside.sum())}
    assert (file["events"], file["changed"], file["tree"]) == (EVENTS, counts, "ev")
    assert result["next"] == f"xectool check-data {target}:ev --set data.truth_branches.energy=energy"
    found = values(target)
    assert set(found) == {*own, "nhits"}
    energy = np.where(own["energy"] < 9e9, own["energy"] * np.float32(1e-3), 1e10)
    energy[3] = 1e10
    np.testing.assert_array_equal(found["energy"], energy.astype(np.float32))
    uvw = own["uvw"].copy()
    uvw[[2, 5], 1] = 1e10
    np.testing.assert_array_equal(found["uvw"], uvw)
    light = own["light"].astype(float)
    light[1, 2] = 1e10
    np.testing.assert_array_equal(found["light"], light)
    hits = ak.where(abs(own["hits"]) > 1, np.float32(1e10), own["hits"])
    assert found["hits"].to_list() == hits.to_list()
    assert found["note"].to_list() == own["note"].to_list()
    np.testing.assert_array_equal(found["run"], own["run"])
    assert found["run"].type.content.primitive == "int32", "what is not changed keeps its type"


def test_ranges_are_judged_after_the_scale_and_by_component(
    own: dict[str, Any], xectool: Callable[..., Any], tmp_path: Path
) -> None:
    target = tmp_path / "new.root"
    words = ("--scale", "uvw=0.1", "--within", "uvw=-1:1,-1e3:1e3,0:0.5")
    assert xectool("convert", f"{tmp_path}/own.root:ev", "--into", target, *words).code == 0
    scaled = own["uvw"] * 0.1
    inside = (scaled >= [-1, -1e3, 0]) & (scaled <= [1, 1e3, 0.5])
    np.testing.assert_allclose(values(target)["uvw"], np.where(inside, scaled, 1e10))


def test_an_ntuple_stays_one(xectool: Callable[..., Any], tmp_path: Path) -> None:
    source, target = tmp_path / "n.root", tmp_path / "new.root"
    assert xectool("simulate", source, "--events", "12", "--format", "rntuple").code == 0
    assert xectool("convert", source, "--into", target, "--scale", "timeTruth=1e9").code == 0
    before, after = (uproot.open(f"{path}:tree") for path in (source, target))
    assert "RNTuple" in type(after).__name__
    for name in before.keys():  # noqa: SIM118
        expected = before[name].array(library="np") * (np.float32(1e9) if name == "timeTruth" else 1)
        np.testing.assert_array_equal(np.stack(after[name].array(library="np")), np.stack(expected))


def test_several_files_are_said_one_a_line_and_lead_to_their_check(
    own: dict[str, Any], xectool: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("two.root"), own)
    outcome = xectool(
        "convert",
        "own.root",
        "two.root",
        "--tree",
        "ev",
        "--into",
        "a b.root",
        "--into",
        "c.root",
        "--scale",
        "energy=2",
    )
    said = outcome.err.splitlines()[-3:]
    assert said[0] == f"wrote a b.root: 60 events of own.root, energy x 2 ({EVENTS - 1} changed)"
    assert said[1] == f"wrote c.root: 60 events of two.root, energy x 2 ({EVENTS - 1} changed)"
    assert said[2] == "Next: xectool check-data 'a b.root:ev' c.root:ev --set data.truth_branches.energy=energy"


@pytest.mark.parametrize(
    ("words", "problem", "fix"),
    [
        (("--into", "new.root"), "nothing is to be converted", "--scale energyTruth=1e-3"),
        (("--into", "new.root", "--scale", "energy"), "'energy' is not a branch, '=' and a value", "--scale"),
        (("--into", "new.root", "--scale", "energy=0"), "would make values 0", "--scale energy=1e-3"),
        (("--into", "new.root", "--scale", "energy=1e-60"), "would make values 0", "--scale energy=1e-3"),
        (("--into", "new.root", "--scale", "energy=-1e300"), "would make values infinite", "--scale energy=1e-3"),
        (("--into", "new.root:ev", "--scale", "energy=2"), "a tree keeps its name", "--into new.root"),
        (("--into", "new.root", "--scale", "energy=nan"), "'nan' is no finite number", "--scale"),
        (("--into", "new.root", "--scale", "energy=2", "--scale", "energy=3"), "two factors", "--scale"),
        (("--into", "new.root", "--marker", "energy=x"), "'x' is no finite number", "--marker"),
        (("--into", "new.root", "--within", "energy=3:2"), "the range '3:2' is empty", "--within"),
        (("--into", "new.root", "--within", "energy=3"), "'' is no finite number", "--within"),
        (("--into", "new.root", "--within", "uvw=0:1,0:1"), "2 ranges are given for 3 components", "'uvw', or 3 with"),
        (("--into", "new.root", "--within", "hits=0:1,0:1"), "entries of the branch are of any length", "--within"),
        (("--into", "new.root", "--marker", "uvw[3]=1"), "there is no component 3", "--marker 'uvw[2]=1'   # the"),
        (("--into", "new.root", "--scale", "enrgy=2"), "has no branch 'enrgy'", "--scale energy=2"),
        (("--into", "new.root", "--marker", "uv[1]=-9", "--finite", "uv"), "'uv'", "'uvw[1]=-9' --finite uvw"),
        (("--into", "new.root", "--scale", "note=2"), "holds", "name a branch of float or integer numbers"),
        (("--into", "new.root", "--scale", "nhits=2"), "cannot be copied", ""),
        (("--into", "own.root", "--scale", "energy=2"), "is there already, and nothing is written over", "own_2.root"),
        (("--into", ".", "--scale", "energy=2"), "is a directory", "--into converted.root"),
        (("--into", "a.root", "--into", "b.root", "--scale", "energy=2"), "1 file to read and 2 files", "--into once"),
        (("--into", "/proc/none/a.root", "--scale", "energy=2"), "cannot write", "ls -ld /proc/none   #"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    own: dict[str, Any],
    xectool: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    problem: str,
    fix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = Path("own.root").read_bytes()
    outcome = xectool("convert", "own.root:ev", *words, "--json")
    (found,) = outcome.document["findings"]
    assert (outcome.code, outcome.document["status"]) == (3 if "/proc" in words[1] else 2, "error")
    assert problem in found["problem"]
    assert fix in found["fix"]
    assert [path.name for path in tmp_path.iterdir()] == ["own.root"]
    assert Path("own.root").read_bytes() == before


def test_files_and_trees_that_are_not_there_and_outputs_that_meet_are_refused(
    own: dict[str, Any], xectool: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("two.root"), own)
    Path("x.root.part").write_bytes(Path("two.root").read_bytes())
    scale = ("--scale", "energy=2")
    for words, problem in (
        (("own.rot", "--into", "new.root"), "'own.rot' does not exist"),
        (("own.root:eve", "--into", "new.root"), "has no tree 'eve'"),
        (("own.root:ev", "two.root:ev", "--into", "n.root", "--into", "./n.root"), "'n.root' would be written twice"),
        (("x.root.part", "--tree", "ev", "--into", "x.root"), "'x.root.part' is read"),
    ):
        outcome = xectool("convert", *words, *scale)
        assert (outcome.code, problem in outcome.err) == (2, True), outcome.err
    unnamed = xectool("convert", "own.root", "--into", "new.root", *scale)
    assert "fix: --tree ev" in unnamed.err, "it was a setting, which this command has none of"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.root", "two.root", "x.root.part"]


def test_a_damaged_file_is_told_in_a_sentence_and_nothing_is_left_of_it(
    own: dict[str, Any], xectool: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("bad.root"), own)
    with uproot.open("bad.root:ev") as tree:
        begin, size = (int(tree["light"].member(key)[1]) for key in ("fBasketSeek", "fBasketBytes"))
    with open("bad.root", "r+b") as raw:
        raw.seek(begin + size // 2)
        raw.write(bytes(100))
    monkeypatch.setattr(converting, "MOST_EVENTS", 20)
    words = ("own.root:ev", "bad.root:ev", "--into", "a.root", "--into", "b.root", "--scale", "energy=2", "--json")
    outcome = xectool("convert", *words)
    (found,) = outcome.document["findings"]
    assert (outcome.code, found["code"]) == (2, "XT-DATA-DAMAGED")
    assert found["problem"].startswith("'bad.root' is damaged: branch 'light'")
    assert found["problem"].endswith("; no part of 'b.root' was kept; written before it, and whole: a.root")
    assert found["fix"] == "xectool check-data bad.root:ev --deep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.root", "bad.root", "own.root"]


def test_branches_of_objects_are_named_as_left_out(
    xectool: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "carried_branches", with_lost(converting.carried_branches))
    write(tmp_path / "own.root", {"energy": np.arange(EVENTS, dtype=np.float32)})
    words = ("--into", tmp_path / "new.root", "--scale", "energy=2", "--json")
    (found,) = xectool("convert", f"{tmp_path}/own.root:ev", *words).document["findings"]
    assert (found["code"], "branch 'track' is not in" in found["problem"]) == ("XT-CONVERT-BRANCH", True)


def with_lost(carried: Any) -> Any:
    def found(files: Any) -> Any:
        result = carried(files)
        return type(result)(result.specs, {"track": "it holds objects, not plain numbers"})

    return found


def test_it_starts_without_torch() -> None:
    program = "import sys; from xectool import engine; engine.convert; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)

"""What ``xectool convert`` says of options that find nothing, numbers it cannot keep and what it leaves behind."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine

LONG = 2**53 + 1  # no float64 is this number


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, **columns: Any) -> None:
    with uproot.recreate(name) as file:
        file.mktree("tree", {branch: values.dtype for branch, values in columns.items()}).extend(columns)


def said(xectool: Callable[..., Any], *words: str) -> list[tuple[str, str, str]]:
    outcome = xectool("convert", *words, "--json")
    assert outcome.code == 0, outcome.document
    return [(found["code"], found["problem"], found["fix"]) for found in outcome.document["findings"]]


@pytest.mark.parametrize(
    ("option", "finds", "problem", "fix"),
    [
        ("--marker e=-999", "--marker e=-998", "next to it are -9999 (2 times) and -998 (3 times)", "--marker e=-998"),
        ("--marker e=-9e9", "--marker e=-9999", "no value of 'e' is -9e+09; next to it are -9999 (2", "e=-9999"),
        ("--marker e=1e30", "--marker e=nan", "next to it are 1e+10 (1 time)", "leave --marker e=1e+30 out"),
        ("--scale e=1", "--scale e=2", "a value times 1 is the same", "leave --scale e=1 out"),
        ("--scale none=3", "--scale e=3", "no value of 'none' is known, or all are 0", "leave --scale none=3 out"),
        ("--within run=0:20", "--within run=0:5", "all known values lie from 0 to 8", "leave --within run=0:20 out"),
        ("--within e=-1e4:60", "--within e=0:60", "all known values lie from -9999 to 53.5", "leave --within"),
        ("--within run=0:1e300", "--within far=0:1e300", "lie from 0 to 8", "leave --within run=0:1e+300 out"),
        ("--within none=1:2", "--within none=1:2", "", ""),
        ("--finite run", "--finite e", "no value is NaN or infinite, or beyond 1e10", "leave --finite run out"),
    ],
)
def test_an_option_that_finds_nothing_is_told_with_what_is_there(
    xectool: Callable[..., Any], option: str, finds: str, problem: str, fix: str
) -> None:
    """It said "(0 changed)" among other numbers."""
    energy = np.array([-9999, -998, 20, 53.5, -998, np.nan, 1e10, -9999, -998], np.float32)
    none = np.array([0, 0, 0, 0, 0, 0, 1e10, 0, 0], np.float32)
    far = np.where(none == 0, np.inf, none)
    write("a.root", e=energy, none=none, far=far, run=np.arange(9))
    found = said(xectool, "a.root", "--into", "b.root", *option.split())
    if problem:
        ((code, text, line),) = found
        assert (code, problem in text, fix in line) == ("XT-CONVERT-NOTHING", True, True), (text, line)
        assert option.split()[0] in text
    else:
        assert not found
    if "nan" not in finds:
        assert not said(xectool, "a.root", "--into", "c.root", *finds.split()), "the control: it finds some"


def test_a_number_that_one_of_several_files_has_is_found(xectool: Callable[..., Any]) -> None:
    write("a.root", e=np.array([1.0, 2.0]))
    write("b.root", e=np.array([1.0, -999.0]))
    words = ("--into", "c.root", "--into", "d.root", "--marker", "e=-999")
    assert not said(xectool, "a.root", "b.root", *words)
    ((_, text, _),) = said(xectool, "a.root", "a.root:tree", "--into", "e.root", "--into", "f.root", *words[-2:])
    assert "next to it are 1 (2 times)" in text, "of all files"


def test_a_change_that_makes_values_unknown_or_leaves_them_is_told(xectool: Callable[..., Any]) -> None:
    write("a.root", t=np.array([1e-9, 5e12, 1e10, 20.0]))
    (lost, left) = sorted(said(xectool, "a.root", "--into", "b.root", "--scale", "t=1e9"))
    assert (lost[0], "1 known value of 't' became larger than 9e+09" in lost[1]) == ("XT-CONVERT-UNKNOWN", True)
    assert ("1 value of 't' beyond 1e10" in left[1], left[2]) == (True, "--finite t   # makes them 1e10")
    found = said(xectool, "a.root", "--into", "c.root", "--scale", "t=1e-3")
    assert [text for _, text, _ in found] == [left[1]], "the factor is a good one"
    assert not said(xectool, "a.root", "--into", "d.root", "--scale", "t=1e-3", "--marker", "t=5e12")


@pytest.mark.parametrize(
    ("kind", "numbers", "marker", "lost"),
    [
        ("f4", [1000000, 1000001, 1000002], "1000001", [1]),
        ("f8", [1700000000, 1700000002, 1700000004], "1700000002", [1]),
        ("f4", [-999.9, -999.90015], "-999.9", [0]),
        ("f8", [-999.9, float(np.float32(-999.9)), -999.9001], "-999.9", [0, 1]),
        ("f4", [0.0, np.inf, 1e-45], "1e-60", []),
        ("f4", [0.0, np.inf], "1e60", []),
    ],
)
def test_a_marker_is_one_number_of_the_type_and_its_neighbours_stay(
    xectool: Callable[..., Any], kind: str, numbers: list[float], marker: str, lost: list[int]
) -> None:
    """All within a millionth of it became 1e10."""
    before = np.array(numbers, kind)
    write("a.root", d=before)
    assert len(said(xectool, "a.root", "--into", "b.root", "--marker", f"d={marker}")) == (not lost)
    with uproot.open("b.root:tree") as tree:
        after = tree["d"].array(library="np")
    before[lost] = 1e10
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_whole_numbers_of_64_bits_keep_every_digit(xectool: Callable[..., Any], kind: str) -> None:
    """They went through float64, and 2^53 + 1 came back as 2^53; its neighbours were taken for a marker too."""
    numbers = np.array([LONG, LONG + 1, LONG + 2, 7], kind)
    write("a.root", id=numbers)
    words = ("--marker", f"id={LONG + 1}", "--within", "id=5.5:1e17", "--json")
    assert xectool("convert", "a.root", "--into", "b.root", *words).code == 0
    with uproot.open("b.root:tree") as tree:
        after = tree["id"].array(library="np")
    assert (after.dtype.kind, after.tolist()) == (kind[0], [LONG, 10**10, LONG + 2, 7])
    ((_, text, _),) = said(xectool, "a.root", "--into", "d.root", "--marker", f"id={LONG + 3}")
    assert f"is {LONG + 3}; next to it are {LONG + 2} (1 time)" in text
    beyond = said(xectool, "a.root", "--into", "c.root", "--within", "id=7:8", "--finite", "id")
    assert not beyond
    with uproot.open("c.root:tree") as tree:
        assert tree["id"].array(library="np").tolist() == [10**10] * 3 + [7]


@pytest.mark.parametrize("is_loose", [False, True])
def test_a_whole_number_that_cannot_be_multiplied_exactly_is_refused(
    xectool: Callable[..., Any], is_loose: bool
) -> None:
    import awkward as ak

    stamps = np.array([1_000_000_000_000, 10**10, 3, LONG], np.int64)
    with uproot.recreate("a.root") as file:
        file.mktree("tree", {"stamp": "var * int64" if is_loose else np.dtype(np.int64)})
        file["tree"].extend({"stamp": ak.unflatten(stamps, [2, 0, 1, 1]) if is_loose else stamps})
    outcome = xectool("convert", "a.root", "--into", "b.root", "--scale", "stamp=1e-3", "--json")
    (found,) = outcome.document["findings"]
    assert (outcome.code, Path("b.root").exists(), found["where"]) == (2, False, "a.root:tree branch stamp entry 3")
    assert f"{LONG} of branch 'stamp' cannot be multiplied with 0.001 exactly" in found["problem"]
    line = shlex.split(found["fix"], comments=True)
    assert not said(xectool, "a.root", "--into", "b.root", "--scale", "stamp=1e-3", *line)
    with uproot.open("b.root:tree") as tree:
        after = np.asarray(ak.ravel(tree["stamp"].array()))
    assert after.tolist() == [1e9, 1e10, 0.003, 1e10], "a whole number beyond 9e9 is one, and 1e10 is not known"


def test_what_lies_beside_the_tree_is_carried_or_named(xectool: Callable[..., Any]) -> None:
    """It was gone without a word."""
    with uproot.recreate("a.root") as file:
        file.mktree("ev", {"e": np.dtype(np.float32)}).extend({"e": np.ones(3, np.float32)})
        file.mktree("calib/gain", {"g": np.dtype(np.float32)}).extend({"g": np.ones(3, np.float32)})
        file["light"] = np.histogram(np.ones(3), bins=2)
        file["note"] = file["calib/who"] = "made by hand ü"
    words = ("convert", "a.root:ev", "--scale", "e=2", "--json")
    (found,) = xectool(*words, "--into", "b c.root").document["findings"]
    assert found["code"] == "XT-CONVERT-KEYS"
    told = "2 other objects of 'a.root' are not in 'b c.root': "
    assert found["problem"] == told + "calib/gain (TTree), light (TH1D)"
    assert found["fix"].startswith("rootcp a.root:light 'b c.root'   # a program of ROOT")
    with uproot.open({"b c.root": None}) as directory:
        assert directory.classnames(cycle=False) == {
            "note": "TObjString", "calib": "TDirectory", "calib/who": "TObjString", "ev": "TTree",
        }  # fmt: skip
        assert str(directory["note"]) == str(directory["calib/who"]) == "made by hand ü"
    again = xectool("convert", "b c.root:ev", "--into", "d.root", "--scale", "e=2", "--json")
    assert again.document["findings"] == [], "the control: nothing else is there"


def test_a_directory_as_root_writes_it_is_no_object_that_is_lost(xectool: Callable[..., Any]) -> None:
    """It was told as lost, with a line of `rootcp` that put the tree as it was over the written one."""
    import uproot.writing._cascade as cascade

    plain = cascade.String
    with pytest.MonkeyPatch.context() as patch, uproot.recreate("a.root") as file:
        named = {"TDirectory": "TDirectoryFile"}
        patch.setattr(cascade, "String", lambda place, text: plain(place, named.get(text, text)))
        file.mktree("sub/ev", {"e": np.dtype(np.float32)}).extend({"e": np.ones(3, np.float32)})
    with uproot.open("a.root") as file:
        assert file.classnames(cycle=False)["sub"] == "TDirectoryFile"
    assert said(xectool, "a.root:sub/ev", "--into", "b.root", "--scale", "e=2") == []


@pytest.mark.parametrize("target", ["new.root", "new.dat"])
def test_the_check_that_follows_reads_files_of_other_names(xectool: Callable[..., Any], target: str) -> None:
    """It ended in "has no branch 'npho'", and of a file of another suffix in "has no tree 'tree'"."""
    engine.simulate("sim.root", events=12, seed=1)
    names = {"light": "npho", "hit_t": "relative_time", "e_mc": "energyTruth", "RunNumber": "run", "EventNo": "event"}
    with uproot.open("sim.root:tree") as tree:
        columns = {own: tree[usual].array(library="np") for own, usual in names.items()}
    with uproot.recreate("own.root") as file:
        kinds = {own: (values.dtype, values.shape[1:]) for own, values in columns.items()}
        file.mktree("ev", kinds).extend(columns | {"e_mc": columns["e_mc"] * 1000})
    words = ("convert", "own.root", "--tree", "ev", "--into", target, "--scale", "e_mc=1e-3", "--json")
    line = shlex.split(xectool(*words).document["result"]["next"])
    assert "data.truth_branches.energy=e_mc" in line
    checked = xectool(*line[1:], "--json").document
    assert [found for found in checked["findings"] if found["severity"] == "error"] == []
    assert checked["result"]["events_scanned"] == 12
    bare = xectool(*[word for word in line[1:3] if not word.startswith("--")], "--json").document
    assert bare["result"]["events_scanned"] == 0, "the control: the names are needed"

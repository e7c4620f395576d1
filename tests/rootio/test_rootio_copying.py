"""Branches of every carried kind come out of a copy as they went in; the others are named."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import uproot
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.rootio.copying import carried_branches
from xectool.rootio.reader import EventFile
from xectool.rootio.writer import TreeWriter

ROOT_PYTHON = os.environ.get("XECTOOL_ROOT_PYTHON", "")
needs_root = pytest.mark.skipif(not ROOT_PYTHON, reason="XECTOOL_ROOT_PYTHON names no Python with ROOT")
TYPES = {
    "run": "i4", "event": "i8", "flag": "?", "byte": np.dtype(("u1", (5,))), "matrix": np.dtype(("f4", (3, 4))),
    "energy": "f8", "hits": "var * float32", "codes": "var * int16", "name": "string",
}  # fmt: skip


def rows_of(first: int, count: int) -> dict[str, object]:
    number = np.arange(first, first + count)
    sizes = number % 4
    total = int(sizes.sum())
    return {
        "run": (number * 0 + 7).astype("i4"),
        "event": number * 2**33,
        "flag": number % 3 == 0,
        "byte": (number[:, None] + np.arange(5)).astype("u1"),
        "matrix": (number[:, None, None] + np.arange(12).reshape(3, 4)).astype("f4"),
        "energy": number / 7,
        "hits": ak.unflatten(np.arange(total, dtype="f4") + first, sizes),
        "codes": ak.unflatten(np.arange(total, dtype="i2") - 3, sizes),
        "name": ak.Array([f"event {i}" for i in number]),
    }


def written(path: Path, count: int, first: int = 0, **extra: object) -> Path:
    with uproot.recreate(path) as file:
        rows = rows_of(first, count) | extra
        tree = file.mktree("tree", TYPES | {name: np.asarray(column).dtype for name, column in extra.items()})
        tree.extend(rows)
    return path


def copied(paths: list[Path], output: Path, step: int = 7) -> dict[str, str]:
    files = [EventFile(path) for path in paths]
    carried = carried_branches(files)
    with TreeWriter(output, carried.specs) as writer:
        for file in files:
            for start in range(0, file.num_entries, step):
                writer.extend(carried.read(file, start, min(start + step, file.num_entries)))
    return dict(carried.left_out)


def equal(first: Path, second: Path) -> None:
    one, other = (uproot.open(path)["tree"].arrays() for path in (first, second))
    assert set(one.fields) == set(other.fields)
    for name in one.fields:
        assert ak.array_equal(one[name], other[name], equal_nan=True, check_parameters=False), name


@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 60), step=st.integers(1, 70))
def test_a_copy_equals_its_input(tmp_path_factory: pytest.TempPathFactory, count: int, step: int) -> None:
    directory = tmp_path_factory.mktemp("copy")
    left_out = copied([written(directory / "a.root", count)], directory / "b.root", step)
    assert left_out == {}
    equal(directory / "a.root", directory / "b.root")


def test_several_clusters_keep_entries_of_any_length_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xectool.rootio.writer.MAX_CLUSTER_EVENTS", 11)
    copied([written(tmp_path / "a.root", 53)], tmp_path / "b.root")
    equal(tmp_path / "a.root", tmp_path / "b.root")


def test_a_branch_that_only_some_files_have_is_named_and_types_meet(tmp_path: Path) -> None:
    first = written(tmp_path / "a.root", 5, extra=np.arange(5))
    second = written(tmp_path / "b.root", 4, first=5)
    assert copied([first, second], tmp_path / "c.root") == {"extra": "only 1 of 2 files have it"}
    assert uproot.open(tmp_path / "c.root")["tree"]["event"].array().tolist() == [i * 2**33 for i in range(9)]
    for name, dtype in (("wide", "f8"), ("narrow", "f4")):
        with uproot.recreate(tmp_path / f"{name}.root") as file:
            file.mktree("tree", {"energy": dtype}).extend({"energy": np.array([0.1, 0.2], dtype)})
    assert copied([tmp_path / "narrow.root", tmp_path / "wide.root"], tmp_path / "both.root") == {}
    assert uproot.open(tmp_path / "both.root")["tree"]["energy"].interpretation.to_dtype == np.dtype("f8")


def test_an_rntuple_is_copied_into_a_tree(tmp_path: Path) -> None:
    rows = {"npho": np.arange(12, dtype="f4").reshape(4, 3), "run": np.arange(4, dtype="i4")}
    with TreeWriter(tmp_path / "n.root", {"npho": ("f4", (3,)), "run": ("i4", ())}, format="rntuple") as writer:
        writer.extend(rows)
    assert copied([tmp_path / "n.root"], tmp_path / "t.root") == {}
    found = uproot.open(tmp_path / "t.root")["tree"].arrays(library="np")
    assert all(np.array_equal(found[name], column) for name, column in rows.items())


def test_a_counter_of_another_meaning_is_not_overwritten(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "a.root") as file:
        tree = file.mktree("tree", {"x": "var * float32", "nx": "i4"}, counter_name=lambda name: f"count_{name}")
        tree.extend({"x": ak.Array([[1.0], [2.0, 3.0]]), "nx": np.array([70, 80], "i4")})
    left_out = copied([tmp_path / "a.root"], tmp_path / "b.root")
    assert "'nx'" in left_out["x"]
    assert uproot.open(tmp_path / "b.root")["tree"]["nx"].array().tolist() == [70, 80]


_ROOT_WRITES = r"""
#include <TFile.h>
#include <TTree.h>
#include <TVector3.h>
void make(const char* path) {
  TFile file(path, "RECREATE");
  TTree tree("tree", "");
  std::vector<float> hits; std::vector<std::vector<float>> deep(2); Int_t n; Float_t x[9]; std::string name; TVector3 v;
  tree.Branch("hits", &hits); tree.Branch("deep", &deep); tree.Branch("n", &n, "n/I"); tree.Branch("x", x, "x[n]/F");
  tree.Branch("name", &name); tree.Branch("v", &v);
  for (int event = 0; event < 20; event++) {
    hits.assign(event % 5, event); n = event % 9; for (int k = 0; k < n; k++) x[k] = event + k;
    name = "event " + std::to_string(event); v.SetXYZ(event, 1, 2); tree.Fill();
  }
  tree.Write();
}
"""
_ROOT_READS = r"""
import sys, json, ROOT
frame = ROOT.RDataFrame("tree", sys.argv[1]).Define("h", "Sum(hits)").Define("s", "Sum(x)")
frame = frame.Define("l", "std::string(&name[0]).size()").Define("c", "name[name[6] == 0 ? 0 : 6] * 1.0")
print("RESULT", json.dumps([float(frame.Sum(name).GetValue()) for name in ("h", "s", "n", "l", "c")]))
"""


def in_root(code: str, *arguments: str) -> str:
    call = [ROOT_PYTHON, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(call, check=True, capture_output=True, text=True, timeout=300).stdout


@needs_root
def test_branches_that_real_root_wrote_are_carried_and_read_by_it(tmp_path: Path) -> None:
    (tmp_path / "make.cxx").write_text(_ROOT_WRITES)
    load = "import sys, ROOT; ROOT.gInterpreter.Declare(open(sys.argv[1]).read()); ROOT.make(sys.argv[2])"
    in_root(load, str(tmp_path / "make.cxx"), str(tmp_path / "a.root"))
    left_out = copied([tmp_path / "a.root"], tmp_path / "b.root")
    assert set(left_out) >= {"deep"}
    assert {"hits", "n", "x", "name"}.isdisjoint(left_out)
    one, other = (
        json.loads(in_root(_ROOT_READS, str(tmp_path / f"{name}.root")).split("RESULT", 1)[1]) for name in "ab"
    )
    assert one == other

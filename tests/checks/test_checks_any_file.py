"""Files that are not ours, or lie about themselves: a verdict for each, in bounded time and memory."""

from __future__ import annotations

import shlex
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xectool.checks import sandbox
from xectool.checks.branches import Wanted, check_branches
from xectool.checks.header import friends_of
from xectool.checks.probing import probe
from xectool.checks.sandbox import Sandbox
from xectool.engine.data_report import DataChecked
from xectool.rootio.reader import EventFile


def make(path: Path, **objects: Any) -> Path:
    with uproot.recreate(path) as file:
        for name, value in objects.items():
            file[name] = value
    return path


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """ROOT files of other people."""
    directory = tmp_path_factory.mktemp("foreign")
    histogram = np.histogram(np.arange(20.0), bins=5)
    jagged = ak.Array([[1.0, 2.0], [], [3.0]])
    return {
        "histograms": make(directory / "histograms.root", h=histogram),
        "nothing": make(directory / "nothing.root"),
        "other_tree": make(directory / "other_tree.root", events={"x": np.arange(5.0)}),
        "strings": make(directory / "strings.root", tree={"name": ak.Array(["a", "bc", "d"])}),
        "jagged": make(directory / "jagged.root", tree={"npho": jagged, "relative_time": jagged}),
        "plain": make(directory / "plain.root", tree={"x": np.arange(5.0), "y": np.arange(5)}),
    }


@pytest.mark.parametrize("name", ["histograms", "nothing", "other_tree", "strings", "jagged", "plain"])
def test_a_file_that_is_not_ours_gets_a_verdict(foreign: dict[str, Path], check: Any, name: str) -> None:
    result: DataChecked = check(foreign[name], deep=True)
    assert result.is_bad
    first = result.findings[0]
    assert first.code in ("DAT-03", "DAT-04", "DAT-05")
    assert str(foreign[name]) in first.where
    assert first.fix
    assert "do not train" in result.verdict


def test_what_is_there_instead_is_named(foreign: dict[str, Path], check: Any) -> None:
    assert "trees there: events" in check(foreign["other_tree"]).findings[0].problem
    assert "objects there: h" in check(foreign["histograms"]).findings[0].problem
    assert "branches there: x, y" in check(foreign["plain"]).findings[0].problem


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("small") / "small.root", tree={"x": np.arange(50.0), "s": ak.Array(["a"] * 50)})


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_four_bytes_of_metadata_may_lie(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    at = data.draw(st.integers(4, len(content) - 4))
    lie = data.draw(st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 0x7F000000, 0x01010101]))
    content[at : at + 4] = struct.pack(">I", lie)
    path = tmp_path / "lie.root"
    path.write_bytes(content)
    with Sandbox(time_limit_s=60.0) if data.draw(st.integers(0, 30)) == 0 else _Direct() as opener:
        facts = opener.probe(str(path))
    assert facts.opened or facts.troubles


class _Direct:
    """Opens in this process, which is faster; what only the other process survives is tested below."""

    def __enter__(self) -> _Direct:
        return self

    def __exit__(self, *_: object) -> None: ...

    def probe(self, path: str) -> Any:
        try:
            return probe(path)
        except MemoryError:
            with Sandbox() as opener:
                return opener.probe(path)


FAULTY = """
import sys, time
from xectool.checks import sandbox
import xectool.checks.probing as probing
def probe(path, tree):
    if "slow" in path: time.sleep(60)
    if "greedy" in path: return bytearray(10**12)
    if "crash" in path: raise ZeroDivisionError("unforeseen")
    if "killed" in path: import os; os._exit(9)
    return real(path, tree)
real, probing.probe = probing.probe, probe
sandbox._serve(int(sys.argv[-1]))
"""


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does what damaged metadata make it do, really, in the other process."""
    real = sandbox.subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return real([sys.executable, "-c", FAULTY, command[-1]], **options)

    monkeypatch.setattr(sandbox.subprocess, "Popen", popen)


@pytest.mark.slow
def test_a_file_that_takes_the_reader_down_is_named_and_the_next_is_read(
    faulty: None, small: Path, tmp_path: Path
) -> None:
    reasons = {"slow": "takes more than", "greedy": "ask for more than", "crash": "unforeseen", "killed": "code 9"}
    with Sandbox(time_limit_s=3.0) as opener:
        for name, reason in reasons.items():
            facts = opener.probe(str(tmp_path / f"{name}.root"))
            assert not facts.opened
            assert reason in facts.troubles[0].problem, facts.troubles
            assert f"{name}.root" in facts.troubles[0].where
        assert opener.probe(str(small)).opened


def test_many_files_share_one_reader(small: Path) -> None:
    with Sandbox() as opener:
        first = opener.probe(str(small))
        process = opener._process
        assert opener.probe(str(small)) is not first
        assert opener._process is process


def test_a_missing_file_is_a_mistake_of_the_caller(check: Callable[..., Any], tmp_path: Path) -> None:
    from xectool.errors import DataFileError

    with pytest.raises(DataFileError, match="does not exist"):
        check(tmp_path / "none.root")


def test_a_sample_to_compare_with_that_cannot_be_read_is_an_error(
    good: Path, rows: dict[str, Any], write: Callable[..., Path], check: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "page.root").write_bytes(b"<!DOCTYPE html><html></html>")
    (tmp_path / "cut.root").write_bytes(good.read_bytes()[:-9000])
    real = write(
        tmp_path / "real.root",
        {name: rows[name] for name in ("npho", "relative_time", "run")} | {"event": rows["event"] + 999},
    )
    for name, code in (("page.root", "DAT-01"), ("cut.root", "DAT-01")):
        found = [
            item for item in check(good, against=[str(tmp_path / name)]).findings if item.severity.value == "error"
        ]
        assert [(item.code, item.problem.split(":")[0]) for item in found] == [(code, "sample to compare with")]
        assert name in found[0].where
    assert [item for item in check(good, against=[str(real)]).findings if item.code < "DAT-07"] == []  # the control


def test_values_of_the_other_sample_are_judged_too(
    rows: dict[str, Any], good: Path, write: Callable[..., Path], check: Callable[..., Any], tmp_path: Path
) -> None:
    """Of a validation sample as of a training sample; of one to compare with nothing is worse than a warning."""
    bad = rows | {name: rows[name].copy() for name in ("npho", "relative_time", "energyTruth")}
    bad["event"], bad["energyTruth"] = rows["event"] + 999, 1e3 * rows["energyTruth"]  # MeV
    bad["npho"][7, 1234], bad["relative_time"][9, 99] = np.nan, -np.inf
    write(tmp_path / "sound.root", rows | {"event": rows["event"] + 999})
    write(tmp_path / "bad.root", bad)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"kind: regressor\ndata: {{train_path: {good}, val_path: bad.root, batch_size: 8}}\n"
        "tasks: {energy: {enabled: true, scale: auto, shift: auto}}\nmlflow: {enabled: false}\n"
    )

    def told(title: str, **options: Any) -> set[tuple[str, str]]:
        found = check(good, **options).findings
        return {(item.code, item.severity.value) for item in found if item.problem.startswith(f"{title}: ")}

    bad_there, sound_there = (f"data.val_path={tmp_path / name}" for name in ("bad.root", "sound.root"))
    found = told("validation sample", config=str(config), overrides=[bad_there])
    assert found == {("DAT-07", "warning"), ("DAT-16", "error")}
    where = [item.where for item in check(good, config=str(config), overrides=[bad_there]).findings]
    assert any("bad.root:tree branch npho entry 7 run" in place and "sensor 1234 face" in place for place in where)
    assert told("validation sample", config=str(config), overrides=[sound_there]) == set()
    assert told("sample to compare with", against=[str(tmp_path / "bad.root")]) == {
        ("DAT-07", "warning"),
        ("DAT-16", "warning"),
    }
    assert told("sample to compare with", against=[str(tmp_path / "sound.root")]) == set()


def test_a_file_that_was_never_closed_is_told(
    good: Path, check: Callable[..., Any], codes: Callable[..., Any], tmp_path: Path
) -> None:
    """What a killed job leaves: ROOT writes the place of the free list when it closes a file, zero before."""
    content = bytearray(good.read_bytes())
    assert int.from_bytes(content[4:8], "big") < 1_000_000  # the narrow header
    content[16:20] = bytes(4)
    (tmp_path / "unclosed.root").write_bytes(content)
    (told,) = [item for item in check(tmp_path / "unclosed.root").findings if "never closed" in item.problem]
    assert (told.code, told.severity.value) == ("DAT-02", "warning")
    assert not any("never closed" in item.problem for item in check(good).findings)
    result = check(tmp_path / "unclosed.root:absent")
    assert any(item.code == "DAT-03" and "never closed" in item.problem for item in result.findings)


def friend_list(*friends: tuple[str, str]) -> Any:
    """The part of a tree with its friends as ROOT writes it: the name of their class stands before the first alone."""

    def text(value: str) -> bytes:
        size = bytes([len(value)]) if len(value) < 255 else b"\xff" + struct.pack(">I", len(value))
        return size + value.encode()

    def counted(*parts: bytes) -> bytes:
        return struct.pack(">I", 0x40000000 | len(b"".join(parts))) + b"".join(parts)

    written = b"before" + struct.pack(">i", len(friends))
    for number, (name, file) in enumerate(friends):
        named = counted(b"\0\x01\0\x01\0\0\0\0\0\0\0\0", text(name), text(file))
        mark = b"\x80\0\0\x55" if number else b"\xff\xff\xff\xffTFriendElement\0"
        written += counted(mark, counted(b"\0\x02", named, text(name), b"\0")) + b"\0"
    chunk = SimpleNamespace(raw_data=written + b"after")
    return SimpleNamespace(parent=SimpleNamespace(get_uncompressed_chunk_cursor=lambda: (chunk, None)))


def test_a_missing_branch_may_lie_in_friends_and_all_are_named(good: Path) -> None:
    """The bytes of one are those of ROOT 6.40."""
    one = friend_list(("truth", "truth.root"))
    head = b"TFriendElement\0@\0\0*\0\x02@\0\0\x1d\0\x01\0\x01\0\0\0\0\0\0\0\0\x05truth\ntruth.root\x05truth"
    assert head in one.parent.get_uncompressed_chunk_cursor()[0].raw_data
    assert friends_of(one) == ("'truth' of truth.root",)
    assert friends_of(friend_list()) == ()
    far = "/" + "d" * 300 + "/c.root"
    three = friends_of(friend_list(("truth", "truth.root"), ("cuts", ""), ("calib", far)))
    assert three == ("'truth' of truth.root", "'cuts'", f"'calib' of {far}")
    with EventFile(str(good), "tree") as file:
        wanted = [Wanted("angles", 2, "truth of task angle", "data.truth_branches.angle", True)]
        for friends, told in (
            (three[:1], "the friend 'truth' of truth.root, which is not read"),
            (three[:2], "the friends 'truth' of truth.root and 'cuts', which are not read"),
            (three, f"the friends 'truth' of truth.root, 'cuts' and 'calib' of {far}, which are not read"),
        ):
            (missing,) = check_branches(file, replace(probe(str(good)), friends=friends), wanted).troubles
            assert missing.problem.endswith(f"; the tree has {told}")
            assert missing.fix.startswith("ROOT.RDataFrame(")
    assert probe(str(good)).friends == ()


def test_numbers_that_vary_by_event_are_told_so(good: Path, check: Callable[..., DataChecked], tmp_path: Path) -> None:
    rows = uproot.open(f"{good}:tree").arrays(["npho", "relative_time"], library="np")
    path = tmp_path / "suppressed.root"
    kept = [row[: 4000 + index] for index, row in enumerate(rows["npho"].astype(np.float32))]
    with uproot.recreate(path) as file:
        file.mktree("tree", {"npho": "var * float32", "relative_time": ("float32", (4760,))})
        file["tree"].extend({"npho": ak.Array(kept), "relative_time": rows["relative_time"]})
    (found,) = [item for item in check(path).findings if item.code == "DAT-05"]
    assert "as many numbers as were read, 4000 in the first, event where" in found.problem
    assert found.fix == "write all numbers of every event when the file is made"


def test_a_list_without_its_sign_leads_to_the_check_of_it(
    good: Path, check: Callable[..., DataChecked], tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text(f"{good}  # the first\n")
    assert shlex.split(check(tmp_path / "list.txt").next, comments=True) == [
        "xectool", "check-data", f"@{tmp_path}/list.txt",
    ]  # fmt: skip


def test_sensors_in_two_branches_are_named_with_what_joins_them(
    rows: dict[str, np.ndarray], write: Callable[..., Path], check: Callable[..., DataChecked], tmp_path: Path
) -> None:
    photons, times = rows.pop("npho"), rows.pop("relative_time")
    split = {"charge_sipm": photons[:, :4092], "charge_pmt": photons[:, 4092:]}
    one = check(write(tmp_path / "one.root", rows | split | {"relative_time": times}))
    explained, _, words = one.next.partition("   # ")
    assert explained == "xectool explain XT-DATA-BRANCH"
    assert words.startswith("charge_sipm and charge_pmt have 4760 numbers together: write them as one branch")
    split |= {"t_sipm": times[:, :4092], "t_pmt": times[:, 4092:]}
    both = check(write(tmp_path / "both.root", rows | split))
    assert both.next.partition("   # ")[2].startswith(
        "two of charge_pmt, charge_sipm, t_pmt, t_sipm have 4760 numbers together"
    )


def test_two_halves_join_and_a_number_of_an_event_is_no_part(
    rows: dict[str, np.ndarray], write: Callable[..., Path], check: Callable[..., DataChecked], tmp_path: Path
) -> None:
    photons = rows.pop("npho")
    halves = write(tmp_path / "halves.root", rows | {"left": photons[:, :2380], "right": photons[:, 2380:]})
    assert check(halves).next.partition("   # ")[2].startswith("left and right have 4760 numbers together")
    scalars = {name: np.arange(len(photons), dtype=np.int32) for name in ("id", "trig")}
    short = write(tmp_path / "short.root", rows | scalars | {"x": photons[:, :4759]})
    assert "numbers together" not in check(short).next


@pytest.mark.parametrize("names", [("xec_photons", "xec_hittime"), ("zcharge", "hit_times"), ("photonSum", "aaa")])
def test_of_two_branches_of_all_sensors_each_is_taken_for_what_it_is_called(
    rows: dict[str, np.ndarray], write: Callable[..., Path], check: Callable[..., DataChecked], tmp_path: Path,
    names: tuple[str, str],
) -> None:  # fmt: skip
    kept = {name: rows[name] for name in ("run", "event")}
    own = dict(zip(names, (rows["npho"], rows["relative_time"]), strict=True))
    line = shlex.split(check(write(tmp_path / "own.root", kept | own)).next, comments=True)
    assert {f"data.npho_branch={names[0]}", f"data.time_branch={names[1]}"} <= set(line)

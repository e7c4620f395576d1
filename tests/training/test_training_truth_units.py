"""Files whose truth is in another unit: which, how many, and a line for one of them that is right for that one."""

from __future__ import annotations

import itertools
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.detector.truth_ranges import NEVER_FILLED_FIX
from xectool.diagnosis.cause import Cause
from xectool.engine.checking import CheckOptions
from xectool.engine.training_run.result import is_told
from xectool.findings import Finding, Severity
from xectool.rootio.writer import TreeWriter

Config = Callable[..., Path]
Paste = Callable[[str, Path], subprocess.CompletedProcess[str]]
ENERGY = {"energy": {"enabled": True, "scale": "auto", "shift": "auto"}, "uvwFI": {"enabled": False}}


def columns_of(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a file, to be changed."""
    with uproot.open(path) as file:
        return {name: values.copy() for name, values in file["tree"].arrays(library="np").items()}


@pytest.fixture
def scaled(tiny_data: Path, tmp_path: Path) -> Callable[..., str]:
    """Write a file with truth times factors, and return its path."""

    def write(name: str, events: int | None = None, source: str = "train_000.root", **factors: float) -> str:
        rows = {branch: values[:events] for branch, values in columns_of(tiny_data / source).items()}
        rows |= {branch: (factor * rows[branch]).astype("f4") for branch, factor in factors.items()}
        with TreeWriter(tmp_path / name, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in rows.items()}) as writer:
            writer.extend(rows)
        return str(tmp_path / name)

    return write


@pytest.fixture
def told(tiny_config: Config) -> Callable[..., list[Finding]]:
    """What training says of the truth before its first step."""
    number = itertools.count()

    def tell(train: list[str], tasks: dict[str, dict[str, object]] = ENERGY, **data: str) -> list[Finding]:
        config = tiny_config(data={"train_path": train, "allow_overlap": True, **data}, tasks=tasks)
        result = engine.train(config, max_steps=0, run_name=f"r{next(number)}")
        return [item for item in result.findings if item.code == "DAT-16"]

    return tell


def warned(paths: list[str], *settings: str) -> list[Finding]:
    """Return what check-data says of units and numbers of the truth."""
    found = engine.check_data(paths, CheckOptions(overrides=settings)).findings
    return [item for item in found if item.code == "DAT-16" and item.severity.value != "info"]


def written_by(line: str) -> list[str]:
    """Return the files that a line writes."""
    words = shlex.split(line, comments=True)
    return [after for word, after in itertools.pairwise(words) if word == "--into"]


def test_the_line_takes_the_unit_of_the_file_it_names(scaled: Any, told: Any, tmp_path: Path, paste: Paste) -> None:
    """A file in keV before larger ones in MeV was multiplied by 1e-3."""
    files = [scaled("a.root", energyTruth=1e6), *(scaled(f"b{n}.root", energyTruth=1e3) for n in range(2))]
    for (found,) in (told(files), warned(files)):
        assert "looks like keV, not GeV, in 3 of 3 files: typical size" in found.problem
        assert found.where == f"{files[0]}:tree branch energyTruth"
        assert [line.split(", ")[0] for line in found.evidence] == [
            f"{path}:tree: {unit}" for path, unit in zip(files, ("keV", "MeV", "MeV"), strict=True)
        ]
        assert found.fix.endswith("   # what was found in 3 files")
        assert found.fix.count("xectool convert ") == 2, "of a.root, and of both in MeV"
        paste(found.fix, tmp_path)
        for name in ("a_converted.root", "b0_converted.root"):
            energies = columns_of(tmp_path / name)["energyTruth"]
            assert np.allclose(energies, columns_of(Path(files[1]))["energyTruth"] / 1e3, rtol=1e-6)
            (tmp_path / name).unlink()
        (tmp_path / "b1_converted.root").unlink()


def test_the_line_of_a_file_whose_name_does_not_end_in_root(scaled: Any, tmp_path: Path, paste: Paste) -> None:
    """It was cut at a colon that such a name does not have; training refuses it, check-data reads it."""
    path, rows = tmp_path / "run7.dat", columns_of(Path(scaled("a.root")))
    for factor, bad in ((1e3, 1.0), (1.0, np.nan)):
        truth = factor * rows["energyTruth"]
        truth[3] *= bad
        with uproot.recreate(path) as file:
            file["events"] = rows | {"energyTruth": truth.astype("f4")}
        (found,) = warned([str(path)], "data.tree_name=events")
        assert found.fix.startswith(f"xectool convert {path} --into run7_converted.root ")
        assert " --tree events && " in found.fix
        paste(found.fix, tmp_path)
        assert warned([f"{tmp_path}/run7_converted.root:events"]) == []
        (tmp_path / "run7_converted.root").unlink()


def test_several_files_in_another_unit_are_counted(scaled: Any, told: Any) -> None:
    odd = [scaled(f"odd{n}.root", energyTruth=1e3) for n in range(2)]
    sound = scaled("sound.root")
    for (found,) in (told([sound, *odd]), warned([sound, *odd])):
        assert "looks like MeV, not GeV, in 2 of 3 files: typical size" in found.problem
        assert found.fix.endswith("   # what was found in 2 files")
        assert " --into odd0_converted.root --into odd1_converted.root --scale " in found.fix
        assert found.where == f"{odd[0]}:tree branch energyTruth"
    for (found,) in (told(odd), warned(odd)):
        assert "looks like MeV, not GeV: typical size" in found.problem
        assert found.where == f"2 files, first {odd[0]}:tree branch energyTruth"
        assert found.fix.endswith("   # what was found in 2 files")
        assert " --into odd0_converted.root --into odd1_converted.root --scale " in found.fix


def test_files_too_small_to_be_judged_alone_have_no_line(scaled: Any, told: Any) -> None:
    files = [scaled(f"few{n}.root", events=6, energyTruth=1e3) for n in range(4)]
    for (found,) in (told(files), warned(files)):
        assert found.where == f"4 files, first {files[0]}:tree branch energyTruth"
        assert found.fix == "make the files again with energyTruth in GeV"


def test_validation_in_another_unit_has_its_own_warning(scaled: Any, told: Any) -> None:
    train, val = scaled("train.root", energyTruth=1e3), scaled("val.root", source="val.root", energyTruth=1e6)
    found = told([train], val_path=val)
    assert [(item.where, item.problem.split(",")[0].split()[-1]) for item in found] == [
        (f"{train}:tree branch energyTruth", "MeV"),
        (f"{val}:tree branch energyTruth", "keV"),
    ]


def test_two_branches_are_mended_at_once(scaled: Any, told: Any, tmp_path: Path, paste: Paste) -> None:
    path = scaled("two.root", energyTruth=1e3, timeTruth=1e9)
    tasks = ENERGY | {"timing": {"enabled": True, "scale": "auto", "shift": "auto"}}
    for found in (told([path], tasks), warned([path])):
        first, second = sorted(found, key=lambda item: item.where)
        assert first.fix == second.fix
    paste(first.fix, tmp_path)
    assert warned([str(tmp_path / "two_converted.root")]) == []


def test_impossible_truths_are_counted(scaled: Any, told: Any, tmp_path: Path, paste: Paste) -> None:
    path = scaled("far.root")
    for entries in ([7], [7, 9]):
        rows = columns_of(Path(path))
        rows["energyTruth"][entries] = 52.8
        target = tmp_path / f"far{len(entries)}.root"
        with TreeWriter(target, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in rows.items()}) as writer:
            writer.extend(rows)
        found = next(item for item in told([str(target)]) if "outside of what is possible" in item.problem)
        assert found.problem.endswith(f"; {len(entries)} such in all, left out of the training")
        assert "leave these events out: --set " in found.fix
        paste(found.fix, tmp_path)
        mended = columns_of(tmp_path / f"far{len(entries)}_converted.root")["energyTruth"]
        assert np.flatnonzero(mended > 1e9).tolist() == entries
        assert np.array_equal(np.delete(mended, entries), np.delete(rows["energyTruth"], entries))


@pytest.mark.parametrize(
    ("branch", "value", "told_by"), [("uvwTruth", 400.0, "outside of what is possible"), ("timeTruth", 9e-6, "sigma")]
)
def test_the_line_of_check_data_for_a_truth_far_from_all_mends_it(
    scaled: Any, tmp_path: Path, branch: str, value: float, told_by: str, paste: Paste
) -> None:
    rows = columns_of(Path(scaled("far.root")))
    rows[branch].reshape(len(rows[branch]), -1)[3, -1] = value
    target = tmp_path / "odd.root"
    with TreeWriter(target, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in rows.items()}) as writer:
        writer.extend(rows)
    (found,) = (item for item in warned([str(target)]) if told_by in item.problem)
    paste(found.fix, tmp_path)
    mended = columns_of(tmp_path / "odd_converted.root")[branch]
    assert np.argwhere(mended > 1e9).tolist() == [[3, 2] if branch == "uvwTruth" else [3]]
    assert np.array_equal(np.delete(mended, 3, axis=0), np.delete(rows[branch], 3, axis=0))
    assert warned([str(tmp_path / "odd_converted.root")]) == []


def test_a_file_is_written_again_once_for_all_ends_of_a_range(scaled: Any, tmp_path: Path, paste: Paste) -> None:
    """-999 for three components was a line each, and the second and third copied what the first had mended."""
    rows = columns_of(Path(scaled("far.root")))
    rows["uvwTruth"][3] = -999.0
    target = tmp_path / "odd.root"
    with TreeWriter(target, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in rows.items()}) as writer:
        writer.extend(rows)
    found = [item for item in warned([str(target)]) if "outside of what is possible" in item.problem]
    assert len(found) == 1, "one for all components"
    paste(found[0].fix, tmp_path)
    assert warned([str(tmp_path / "odd_converted.root")]) == []


def test_a_unit_that_was_told_before_the_first_step_is_not_told_by_another_name_at_the_end(
    scaled: Any, tiny_config: Config
) -> None:
    path = scaled("mev.root", energyTruth=1e3)
    config = tiny_config(data={"train_path": path, "allow_overlap": True}, tasks=ENERGY)
    result = engine.train(config, max_steps=2, run_name="once")
    codes = [item.code for item in result.findings]
    assert ("DAT-16" in codes, "XT-TARGET-SCALE" in codes) == (True, False)
    assert [cause.code for cause in engine.diagnose.run(result.run_dir).causes][:1] == ["XT-TARGET-SCALE"]


def test_one_line_mends_all_of_a_file_and_of_one_of_the_same_name(
    scaled: Any, tiny_config: Config, tmp_path: Path, paste: Paste
) -> None:
    """The second of two wrote the file with what the first had mended as it was, or in place of the other file."""
    (tmp_path / "val").mkdir()
    paths = [scaled(name, energyTruth=1e3, timeTruth=1e9) for name in ("t.root", "val/t.root")]
    tasks = ENERGY | {"timing": {"enabled": True, "scale": "auto", "shift": "auto"}}
    config = tiny_config(data={"train_path": paths[0], "val_path": paths[1], "allow_overlap": True}, tasks=tasks)
    checked = engine.check_data(paths[0], CheckOptions(against=(paths[1],))).findings
    for findings in (engine.train(config, max_steps=0, run_name="r").findings, checked):
        lines = [item.fix for item in findings if item.code == "DAT-16" and item.severity.value != "info"]
        assert [len(lines), len(set(lines))] == [4, 1]
        paste(lines[0], tmp_path)
        assert [warned([str(tmp_path / name)]) for name in written_by(lines[0])] == [[], []]
        for name in written_by(lines[0]):
            (tmp_path / name).unlink()


def test_truths_that_were_never_filled_are_counted(scaled: Any, told: Any, tmp_path: Path) -> None:
    rows = columns_of(Path(scaled("zero.root")))
    rows["energyTruth"][::4] = 0.0
    target = tmp_path / "zeros.root"
    with TreeWriter(target, {key: (v.dtype.str[1:], v.shape[1:]) for key, v in rows.items()}) as writer:
        writer.extend(rows)
    num = len(rows["energyTruth"])
    words = f"the truth of task energy is exactly 0 in {len(range(0, num, 4))} of {num} events: it was never filled"
    (found,) = told([str(target)])
    assert found.problem == words
    named = ", ".join(f"{target}:tree:{entry}" for entry in range(0, num, 4))
    assert found.fix == f"--set 'data.exclude=[{named}]'   # or {NEVER_FILLED_FIX}"


def test_no_two_lines_write_the_same_file_and_none_writes_an_input(
    scaled: Any, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four lines the third wrote t_converted.root again; the first wrote in place of an input of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "val").mkdir()
    names = ["t.root", "val/t.root", "t_converted.root"]
    for name, sizes in zip(names, ({"energyTruth": 1e3, "timeTruth": 1e9},) * 2 + ({},), strict=True):
        scaled(name, **sizes)
    tasks = ENERGY | {"timing": {"enabled": True, "scale": "auto", "shift": "auto"}}
    inputs = {"train_path": [names[0], names[2]], "val_path": names[1], "allow_overlap": True}
    trained = engine.train(tiny_config(data=inputs, tasks=tasks), max_steps=0, run_name="r").findings
    checked = engine.check_data([names[0], names[2]], CheckOptions(against=(names[1],))).findings
    for findings in (trained, checked):
        lines = [item.fix for item in findings if item.code == "DAT-16" and item.severity.value != "info"]
        (line,) = set(lines)
        targets = written_by(line)
        assert [len(lines), len(targets), len(set(targets))] == [4, 2, 2], targets
        assert not set(targets) & set(names), targets


def test_a_unit_of_validation_does_not_silence_a_wrong_scale_of_training(scaled: Any, tiny_config: Config) -> None:
    val = scaled("val.root", source="val.root", energyTruth=1e3)
    tasks = {"energy": {"enabled": True, "scale": 5e-6, "shift": 0.0}, "uvwFI": {"enabled": False}}
    config = tiny_config(data={"val_path": val}, tasks=tasks)
    result = engine.train(config, max_steps=2, run_name="both")
    assert "DAT-16" in [item.code for item in result.findings]
    assert [cause.symptom for cause in engine.diagnose.run(result.run_dir).causes if cause.code == "XT-TARGET-SCALE"]
    assert "XT-TARGET-SCALE" in [item.code for item in result.findings]


@pytest.mark.parametrize(
    ("problem", "symptom", "place", "told"),
    [
        ("energy: the truth seems to be in MeV, not in GeV: what is predicted", "target unit", "a.root:tree", True),
        (
            "energy: the truth seems to be in MeV, not in GeV: what is",
            "target unit",
            "2 files, first a.root:tree",
            True,
        ),
        ("energy: the truth spreads 30 GeV, at most 0.1 in this detector: what", "target unit", "v.root:tree", False),
        ("energy: the truth seems to be in MeV in v.root:tree, not in GeV: what", "target unit", "v.root:tree", True),
        ("energy: the truth spreads 12 inside the network, not about 1", "target scale", "a.root:tree", False),
        (
            "energy: the truth seems to be in MeV; timing: the truth seems to be in ns",
            "target unit",
            "a.root:tree",
            False,
        ),
    ],
)
def test_only_the_unit_that_was_told_is_told(problem: str, symptom: str, place: str, told: bool) -> None:
    cause = Cause("XT-TARGET-SCALE", 0.9, problem, (), "", symptom=symptom)
    where, seen = f"{place} branch energyTruth", "the truth of task energy looks like MeV, not GeV"
    for code in ("DAT-16", "DAT-15"):
        found = Finding(code, Severity.WARNING, seen, where)
        assert is_told(cause, [found], {"a.root", "b.root"}) is (told and code == "DAT-16")

"""All branches in another unit, readings and truth of all files, are told in one pass with one line that mends them."""

from __future__ import annotations

import itertools
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.config.invalid import InvalidConfigError
from xectool.engine.checking import CheckOptions
from xectool.findings import Finding, Report

FACTORS = {"relative_time": 1e9, "energyTruth": 1e3, "uvwTruth": 10.0, "timeTruth": 1e9}
Write = Callable[..., str]
Paste = Callable[[str, Path], subprocess.CompletedProcess[str]]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Return a function that simulates a file with some branches in another unit and others under another name."""

    def write(name: str, seed: int, factors: dict[str, float], names: dict[str, str] | None = None) -> str:
        path = tmp_path / name
        engine.simulate(str(path), events=24, seed=seed)
        with uproot.open(path) as file:
            columns = dict(file["tree"].arrays(library="np"))
        for branch, factor in factors.items():
            values = columns[branch]
            columns[branch] = np.where(np.abs(values) < 9e9, factor * values, values).astype(values.dtype)
        columns = {(names or {}).get(branch, branch): values for branch, values in columns.items()}
        with uproot.recreate(path) as file:
            file.mktree("tree", {key: (value.dtype, value.shape[1:]) for key, value in columns.items()})
            file["tree"].extend(columns)
        return str(path)

    return write


def of_units(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    """Return the findings of another unit by their branch."""
    units = [item for item in findings if "looks like" in item.problem or "look like another unit" in item.problem]
    return {item.where.rpartition(" branch ")[2].split()[0]: item for item in units}


def test_one_pass_names_all_branches_and_one_line_mends_all_files(written: Write, tmp_path: Path, paste: Paste) -> None:
    """With a line a branch and file three files took nine passes."""
    files = [written(f"f{n}.root", n + 1, FACTORS) for n in range(2)]
    odd, sound = written("odd.root", 3, {"energyTruth": 1e3, "relative_time": 1e9}), written("sound.root", 4, {})
    checked = engine.check_data([*files, sound], CheckOptions(against=(odd,)))
    found = of_units(checked.findings)
    assert set(found) == set(FACTORS)
    (line,) = {item.fix for item in found.values()}
    assert checked.next == line
    command, *_, remark = line.split("   # ")
    assert remark == "what was found in 3 files"
    assert command.split(" && ")[0] == (
        f"xectool convert {files[0]} {files[1]} --into f0_converted.root --into f1_converted.root --scale "
        "energyTruth=0.001 --scale relative_time=1e-09 --scale timeTruth=1e-09 --scale uvwTruth=0.1"
    )
    assert (
        f"xectool convert {odd} --into odd_converted.root --scale energyTruth=0.001 --scale relative_time=1e-09" in line
    )
    assert paste(line, tmp_path).returncode == 0, "the check at its end too"
    mended = [str(tmp_path / name) for name in ("f0_converted.root", "f1_converted.root", "odd_converted.root")]
    again = engine.check_data([*mended, sound])
    assert (of_units(again.findings), again.is_bad) == ({}, False)


def test_what_else_a_file_needs_is_done_by_the_same_line(written: Write, tmp_path: Path, paste: Paste) -> None:
    """It was a second line, which went on from what the first wrote."""
    path = written("both.root", 1, {"energyTruth": 1e3, "timeTruth": 1e9})
    with uproot.open(path) as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["uvwTruth"][5] = np.nan
    with uproot.recreate(path) as file:
        file.mktree("tree", {key: (value.dtype, value.shape[1:]) for key, value in columns.items()})
        file["tree"].extend(columns)
    findings = engine.check_data(path).findings
    (units,) = {item.fix for item in of_units(findings).values()}
    (other,) = (item.fix for item in findings if "NaN, infinite" in item.problem)
    assert other == f"{units}; or leave these events out (data.exclude)"
    paste(units, tmp_path)
    again = engine.check_data(str(tmp_path / "both_converted.root"))
    assert [item for item in again.findings if item.code == "DAT-16" and item.severity.value != "info"] == []


def test_units_are_told_by_the_proposed_names_in_the_same_pass(written: Write) -> None:
    names = {"npho": "nphe_all", "energyTruth": "mc_energy"}
    files = [written(f"f{n}.root", n + 1, FACTORS, names) for n in range(2)]
    checked = engine.check_data(files)
    assert set(of_units(checked.findings)) == {names.get(branch, branch) for branch in FACTORS}
    assert "read by the proposed data.npho_branch=nphe_all" in of_units(checked.findings)["mc_energy"].evidence[0]
    assert "--set data.npho_branch=nphe_all" in checked.next, "the names come first"
    sound = [written(f"s{n}.root", n + 1, {}, names) for n in range(2)]
    assert of_units(engine.check_data(sound).findings) == {}
    assert of_units(engine.check_data([files[0], sound[0], written("own.root", 5, FACTORS)]).findings)


def test_units_of_a_truth_that_is_proposed_are_told_beside_those_that_were_read(written: Write, tmp_path: Path) -> None:
    """The readings had their names, and the unit of the truth was told in the next pass."""
    config = tmp_path / "c.yaml"
    config.write_text("kind: regressor\ndata: {batch_size: 8}\ntasks: {energy: {enabled: true}}\n")
    path = written("f.root", 1, FACTORS, {"energyTruth": "mc_energy"})
    found = of_units(engine.check_data(path, CheckOptions(config=config)).findings)
    assert set(found) == {"relative_time", "mc_energy", "uvwTruth", "timeTruth"}
    (line,) = {item.fix for item in found.values()}
    assert "--scale mc_energy=0.001" in line


def test_units_are_told_where_the_tree_has_another_name_too(written: Write, tmp_path: Path) -> None:
    path = written("f.root", 1, FACTORS, {"npho": "nphe_all"})
    with uproot.open(path) as file:
        columns = dict(file["tree"].arrays(library="np"))
    with uproot.recreate(path) as file:
        file.mktree("sev", {key: (value.dtype, value.shape[1:]) for key, value in columns.items()})
        file["sev"].extend(columns)
    assert set(of_units(engine.check_data(path).findings)) == set(FACTORS)


@pytest.mark.parametrize("kind", ["regressor", "mae"])
def test_a_deep_check_of_a_configuration_tells_units_those_of_truth_where_it_is_trained_on(
    written: Write, tmp_path: Path, kind: str
) -> None:
    files = [written(f"f{n}.root", n + 1, FACTORS) for n in range(2)]
    config = tmp_path / "c.yaml"
    tasks = "tasks: {energy: {enabled: true}}\n" if kind == "regressor" else ""
    config.write_text(f"kind: {kind}\ndata: {{batch_size: 8, train_path: {files[0]}, val_path: {files[1]}}}\n{tasks}")
    with pytest.raises(InvalidConfigError) as refused:
        engine.config.check(config, deep=True)
    units = [item for item in Report(refused.value.findings).errors if item.other_unit]
    truths = {"energyTruth", "uvwTruth", "timeTruth"} if kind == "regressor" else set()
    assert {item.other_unit for item in units} == {"relative_time"} | (truths & {"energyTruth"}), "what is trained on"
    assert {item.fix for item in units} == {units[0].fix}
    assert "--into f0_converted.root --into f1_converted.root" in units[0].fix
    told = engine.check_data(files[0], CheckOptions(config=config)).findings
    assert {item.other_unit for item in told if item.other_unit} == {"relative_time"} | truths
    sound = [written(f"s{n}.root", n + 1, {"uvwTruth": 10.0}) for n in range(2)]
    paths = [f"data.train_path={sound[0]}", f"data.val_path={sound[1]}"]
    passed = [item.other_unit for item in engine.config.check(config, paths, deep=True).findings if item.other_unit]
    assert passed == ["uvwTruth"] * 2 * (kind == "regressor"), "of training, and of validation"


def test_a_deep_check_of_a_configuration_judges_training_and_validation_each_by_itself(
    written: Write, tmp_path: Path
) -> None:
    """As one sample they were `in 1 of 2 files`, which nobody was told of as one."""
    sound, odd = written("a.root", 1, {}), written("b.root", 2, {"energyTruth": 1e3})
    config = tmp_path / "c.yaml"
    for train, val, title in ((sound, odd, "validation sample: "), (odd, sound, ""), (odd, odd, "")):
        config.write_text(
            f"kind: regressor\ndata: {{batch_size: 8, allow_overlap: true, train_path: {train}, val_path: {val}}}\n"
            "tasks: {energy: {enabled: true}}\n"
        )
        with pytest.raises(InvalidConfigError) as refused:
            engine.config.check(config, deep=True)
        (found,) = [item for item in refused.value.findings if item.other_unit]
        assert found.problem.startswith(f"{title}the truth of task energy looks like MeV, not GeV: typical size")
        assert f"({odd}:tree branch energyTruth)" in found.where


def test_a_deep_check_of_many_files_leads_to_the_check_of_all(written: Write, tmp_path: Path) -> None:
    for n in range(4):
        written(f"f{n}.root", n + 1, {"relative_time": 1e9})
    written("val.root", 9, {})
    config = tmp_path / "c.yaml"
    config.write_text(
        f"kind: regressor\ndata: {{batch_size: 8, train_path: {tmp_path}/f*.root, val_path: {tmp_path}/val.root}}\n"
        "tasks: {energy: {enabled: true}}\n"
    )
    with pytest.raises(InvalidConfigError) as refused:
        engine.config.check(config, deep=True)
    (line,) = {item.fix for item in refused.value.findings if item.other_unit}
    assert line.startswith(f"xectool check-data '{tmp_path}/f*.root' --config {config}   # ")


def test_a_line_says_what_it_wrote_and_checks_it(written: Write, tmp_path: Path, paste: Paste) -> None:
    """It wrote without a word, and what it wrote had to be found by hand."""
    names = {"energyTruth": "mc energy"}
    files = [written("f0.root", 1, FACTORS, names), written("f1.root", 2, {"energyTruth": 1e3}, names)]
    told = CheckOptions(overrides=("data.truth_branches.energy=mc energy",))
    (line,) = {item.fix for item in of_units(engine.check_data(files, told).findings).values()}
    assert check_of(line) == [
        "check-data", "f0_converted.root", "f1_converted.root", "--set", "data.truth_branches.energy=mc energy",
    ]  # fmt: skip
    ended = paste(line, tmp_path)
    wrote = [text for text in ended.stderr.splitlines() if text.startswith("wrote ")]
    assert len(wrote) == 2, ended.stderr
    assert wrote[0].startswith(f"wrote f0_converted.root: 24 events of {files[0]}, ")
    assert "mc energy x 0.001 (24 changed)" in wrote[0]
    assert wrote[1] == f"wrote f1_converted.root: 24 events of {files[1]}, mc energy x 0.001 (24 changed)"
    assert "files: 2, events: 48" in ended.stderr, "they are checked"


@pytest.mark.parametrize("told", [(), ("data.batch_size=8",)])
def test_the_line_of_one_branch_keeps_the_proposed_name_and_what_was_told_once(
    written: Write, tmp_path: Path, told: tuple[str, ...], paste: Paste
) -> None:
    """The check of proposed names had put its settings behind the line, and the last seven words were no file then."""
    config = tmp_path / "c.yaml"
    config.write_text("kind: regressor\ndata: {batch_size: 4}\ntasks: {energy: {enabled: true}}\n")
    path = written("f.root", 1, {"relative_time": 1e9}, {"npho": "light"})
    for options in (CheckOptions(overrides=told), CheckOptions(config=config, overrides=told)):
        checked = engine.check_data(path, options)
        (item,) = of_units(checked.findings).values()
        assert item.other_unit == "relative_time"
        assert "relative_time x 1e-09 (24 changed)" in paste(item.fix, tmp_path).stderr
        words = check_of(item.fix)
        settings = [value for option, value in itertools.pairwise(words) if option == "--set"]
        assert words[:2] == ["check-data", "f_converted.root"]
        assert sorted(settings) == sorted(("data.npho_branch=light", *told))
        assert words.count("--config") == bool(options.config)
        again = replace(options, overrides=settings)
        assert of_units(engine.check_data(str(tmp_path / "f_converted.root"), again).findings) == {}
        (tmp_path / "f_converted.root").unlink()


def test_what_comes_next_is_the_line_of_the_finding_which_tells_the_configuration_once(
    written: Write, tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("kind: regressor\ndata: {batch_size: 8}\ntasks: {energy: {enabled: true}}\n")
    path = written("f.root", 1, FACTORS)
    checked = engine.check_data(path, CheckOptions(config=config))
    assert checked.next in {item.fix for item in of_units(checked.findings).values()}
    assert checked.next.count("--config") == 1


def test_lines_of_a_configuration_check_what_they_write_by_its_names(written: Write, tmp_path: Path) -> None:
    """The check found no photons in what the line had written."""
    files = [written(f"f{n}.root", n + 1, FACTORS, {"npho": "light", "energyTruth": "mc energy"}) for n in range(2)]
    config = tmp_path / "c.yaml"
    names = "npho_branch: light, truth_branches: {energy: mc energy}"
    data = f"{{batch_size: 8, train_path: {files[0]}, val_path: {files[1]}, {names}}}"
    config.write_text(f"kind: regressor\ndata: {data}\ntasks: {{energy: {{enabled: true}}}}\n")
    with pytest.raises(InvalidConfigError) as refused:
        engine.config.check(config, deep=True)
    (line,) = {item.fix for item in refused.value.findings if item.other_unit}
    told = ["--set", "data.npho_branch=light", "--set", "data.truth_branches.energy=mc energy"]
    assert check_of(line) == ["check-data", "f0_converted.root", "--against", "f1_converted.root", *told]


def check_of(line: str) -> list[str]:
    """Return the words of the check that a line ends with."""
    words = shlex.split(line, comments=True)
    return words[len(words) - words[::-1].index("xectool") :]

"""A truth under an unknown name is proposed by its name or its values, and nothing else is."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool.checks.truth_names import is_made, says_another
from xectool.engine.checking import CheckOptions, check_data
from xectool.engine.data_report import DataChecked

Rows = dict[str, np.ndarray]
READINGS = ("npho", "relative_time", "run", "event")


@pytest.fixture
def named(rows: Rows, tmp_path: Path, write: Callable[..., Path], check: Any) -> Callable[..., DataChecked]:
    """Return a function that checks a file with the readings and with branches of other names."""

    def named(**branches: np.ndarray) -> DataChecked:
        return check(write(tmp_path / "own.root", {name: rows[name] for name in READINGS} | branches))

    return named


def proposed(result: DataChecked) -> dict[str, str]:
    """Return the branch of each task that is proposed."""
    found = [item for item in result.findings if item.code == "DAT-04" and "was not looked at" in item.problem]
    settings = {word for item in found for word in shlex.split(item.fix, comments=True) if "truth_branches" in word}
    assert len(settings) == len(found), "one line has them all"
    return {task: name for word in settings for task, _, name in [word.rpartition(".")[2].partition("=")]}


def test_a_truth_of_another_name_is_proposed_with_a_line_that_is_pasted(rows: Rows, named: Any, check: Any) -> None:
    """The verdict was good, and the training that followed was refused."""
    checked = named(e_true=rows["energyTruth"], conv_uvw_mc=rows["uvwTruth"], t_true=rows["timeTruth"])
    assert proposed(checked) == {"energy": "e_true", "uvwFI": "conv_uvw_mc", "timing": "t_true"}
    assert checked.verdict.startswith("usable with care: 3 warnings")
    program, command, path, *options = shlex.split(checked.next, comments=True)
    assert (program, command) == ("xectool", "check-data")
    again = check(Path(path), overrides=options[1::2])
    assert (set(again.targets), again.verdict[:4]) == ({"energy", "uvwFI", "timing"}, "good")


def test_values_alone_tell_an_energy_a_point_and_a_direction(rows: Rows, named: Any) -> None:
    checked = named(a=rows["energyTruth"], b=rows["uvwTruth"], c=rows["emiVec"])
    assert proposed(checked) == {"energy": "a", "uvwFI": "b", "angleVec": "c"}
    assert "by its values" in next(item for item in checked.findings if item.code == "DAT-04").problem


def test_an_energy_that_has_nothing_to_do_with_the_light_is_none_by_its_values(rows: Rows, named: Any) -> None:
    assert proposed(named(a=np.random.default_rng(0).permutation(rows["energyTruth"]))) == {}
    assert proposed(named(a=rows["energyTruth"])) == {"energy": "a"}, "the control"


@pytest.mark.parametrize("name", ["E_rec", "recoE", "energy_fit", "e_est", "Erec", "fitEnergy", "E_pred_mc"])
def test_what_was_reconstructed_is_no_truth(rows: Rows, named: Any, name: str) -> None:
    assert is_made(name)
    assert proposed(named(**{name: rows["energyTruth"]})) == {}


@pytest.mark.parametrize("name", ["dt", "delta_t", "t_err", "weight", "small"])
def test_a_small_number_is_no_time(rows: Rows, named: Any, name: str) -> None:
    assert proposed(named(**{name: rows["timeTruth"]})) == {}
    assert proposed(named(mc_t=rows["timeTruth"])) == {"timing": "mc_t"}, "the control"


def test_values_that_no_event_can_have_are_not_proposed_by_their_name(rows: Rows, named: Any) -> None:
    assert proposed(named(e_true=rows["energyTruth"] - 5)) == {}
    assert proposed(named(uvw_true=rows["uvwTruth"] + 500)) == {}


def test_a_marker_of_what_is_not_known_hides_no_truth(rows: Rows, named: Any) -> None:
    """With -999 in some events the branch was no longer proposed, without a word."""
    energy, place, other = (rows[name].astype(np.float64) for name in ("energyTruth", "uvwTruth", "timeTruth"))
    energy[::4], place[1::4], other[::4] = -999.0, -999.0, np.linspace(2.0, 3.0, len(other[::4]))
    assert proposed(named(mc_energy=1000 * energy, mc_uvw=place)) == {"energy": "mc_energy", "uvwFI": "mc_uvw"}
    assert proposed(named(t_true=other)) == {}, "the control: what is no time is no marker of one"


def test_the_unit_is_told_with_the_guess_and_is_in_the_line_of_all_units(rows: Rows, named: Any) -> None:
    rows["relative_time"] = np.where(rows["relative_time"] < 1e9, 1e9 * rows["relative_time"], 1e10).astype(np.float32)
    checked = named(e_true=1e3 * rows["energyTruth"], uvwTruth=10 * rows["uvwTruth"])
    (told,) = (item for item in checked.findings if "may be 'e_true'" in item.problem)
    assert told.problem.endswith("'e_true', in MeV")
    (line,) = {item.fix for item in checked.findings if item.fix.startswith("xectool convert ")}
    assert "--scale uvwTruth=0.1" in line
    assert "--scale e_true=0.001" in line, "a second line wrote the file again"


def test_the_truth_is_told_with_its_unit_where_the_name_of_the_photons_is_proposed_too(
    rows: Rows, tmp_path: Path, write: Callable[..., Path], check: Any
) -> None:
    """The first pass said nothing of the energy, as nothing was read by the names that hold."""
    own = {name: rows[name] for name in READINGS if name != "npho"} | {"light": rows["npho"]}
    checked = check(write(tmp_path / "lite.root", own | {"e_true": 1e3 * rows["energyTruth"]}))
    (told,) = (item for item in checked.findings if "may be 'e_true'" in item.problem)
    assert told.problem.endswith("'e_true', in MeV")
    settings = {"data.npho_branch=light", "data.truth_branches.energy=e_true"}
    assert settings <= set(shlex.split(told.fix, comments=True))
    assert "read by the proposed data.npho_branch=light" in told.evidence
    assert "light" in checked.next, "the names come first"


def test_events_that_are_left_out_decide_nothing(rows: Rows, tmp_path: Path, write: Callable[..., Path]) -> None:
    bad = rows["energyTruth"].copy()
    bad[:5] = np.linspace(-9.0, -5.0, 5)
    path = write(tmp_path / "own.root", {name: rows[name] for name in READINGS} | {"e_true": bad})
    assert proposed(check_data(str(path))) == {}
    exclude = "data.exclude=[" + ", ".join(f"own.root:{entry}" for entry in range(5)) + "]"
    assert proposed(check_data(str(path), CheckOptions(overrides=[exclude]))) == {"energy": "e_true"}


def test_a_branch_that_cannot_be_read_is_told(
    rows: Rows, tmp_path: Path, write: Callable[..., Path], good: Path
) -> None:
    path = write(tmp_path / "own.root", {name: rows[name] for name in READINGS} | {"e_true": rows["energyTruth"]})
    with uproot.open(path) as file:
        branch = file["tree"]["e_true"]
        seek, size = int(branch.member("fBasketSeek")[0]), int(branch.member("fBasketBytes")[0])
    with path.open("r+b") as file:
        file.seek(seek)
        file.write(bytes(size))
    checked = check_data(str(path))
    assert proposed(checked) == {}
    assert [item.severity.value for item in checked.findings if "e_true" in item.where] == ["warning"]


def test_several_files_have_one_finding_a_task(rows: Rows, tmp_path: Path, write: Any, check: Any) -> None:
    own = {name: rows[name] for name in READINGS} | {"e_true": rows["energyTruth"]}
    files = [write(tmp_path / f"f{n}.root", own | {"run": rows["run"] + n}) for n in range(3)]
    checked = check(*files)
    (found,) = (item for item in checked.findings if item.code == "DAT-04")
    assert found.problem.endswith("may be 'e_true', in GeV; so in 3 of 3 files")
    assert all(str(path) in checked.next for path in files)


def test_a_branch_of_a_task_that_is_trained_is_not_proposed_where_it_was_made_or_is_something_else(
    rows: Rows, tmp_path: Path, write: Any, check: Any
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("kind: regressor\ndata: {batch_size: 8}\ntasks: {timing: {enabled: true}}\n")
    for name, is_proposed in (("dt", False), ("t_rec", False), ("x1", False), ("t_own", True)):
        own = {key: rows[key] for key in READINGS} | {name: rows["timeTruth"]}
        found = check(write(tmp_path / "own.root", own), config=config).findings
        fix = next(item.fix for item in found if item.code == "DAT-04" and "timeTruth" in item.problem)
        assert (f"timing={name}" in fix) is is_proposed, fix
    assert says_another("dt", "timing")


@pytest.mark.parametrize("name", ["t_start", "tStart", "e_noise", "E_th", "en_cut"])
def test_a_letter_beside_any_word_names_no_truth(rows: Rows, named: Any, name: str) -> None:
    values = rows["timeTruth"] if name.startswith("t") else np.random.default_rng(0).permutation(rows["energyTruth"])
    assert proposed(named(**{name: values})) == {}
    letter, mark = name[0], "timing" if name.startswith("t") else "energy"  # the control
    assert proposed(named(**{f"{name}_mc": values})) == {mark: f"{name}_mc"}
    assert proposed(named(**{letter: values})) == {mark: letter}


def test_a_letter_names_no_truth_that_is_the_same_in_all_events(rows: Rows, named: Any) -> None:
    time, energy = (np.full_like(rows[name], rows[name].max()) for name in ("timeTruth", "energyTruth"))
    assert proposed(named(t=time, e=energy)) == {}
    assert proposed(named(mc_t=time, energy=energy)) == {"timing": "mc_t", "energy": "energy"}, "the control"

"""Which files of ``check-data`` are the data and which the other sample, wherever the options stand."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import uproot
import yaml
from xectool import engine
from xectool.cli.app import app
from xectool.cli.other_sample import WITH_VALUE
from xectool.config.inputs import expand_inputs, free_name
from xectool.engine.check_lines import Told
from xectool.findings import Finding, Severity

ALL = ("a.root", "b.root", "c.root", "-y.root")
OTHERS = [f"--against {name}" for name in ("b.root", "c.root")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files, one with a name that begins as an option does."""
    folder = tmp_path_factory.mktemp("samples")
    for seed, name in enumerate(ALL):
        engine.simulate(str(folder / name), events=12, seed=seed)
    return folder


@pytest.fixture
def checked(folder: Path, xectool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Run a line of ``check-data`` there."""
    monkeypatch.chdir(folder)
    return lambda line: xectool(*shlex.split(f"check-data --json {line}"))


def test_the_options_that_take_a_value_are_those_of_the_command() -> None:
    command = typer.main.get_command(app).commands["check-data"]
    options = [found for found in command.params if found.param_type_name == "option"]
    assert {name for found in options if not found.is_flag for name in found.opts} == WITH_VALUE


@pytest.mark.parametrize(
    "line",
    [
        "--deep a.root --against b.root c.root",
        "--max-events 9 a.root --against b.root c.root --deep",
        "a.root --against=b.root c.root --deep",
        "--set data.batch_size=8 a.root --deep --against b.root --against c.root",
        "a.root --against b.root c.root --deep -- -y.root",
    ],
)
def test_files_after_the_option_are_the_other_sample_once_data_were_named(
    checked: Callable[[str], Any], line: str
) -> None:
    result = checked(line).document["result"]
    data = ["a.root", *(["./-y.root"] if "-y" in line else [])]
    assert [file["path"] for file in result["files"]] == data
    again = result["next"]
    assert [word for word in OTHERS if word in again] == OTHERS, again


@pytest.mark.parametrize(
    ("line", "data"),
    [
        ("--against b.root a.root", ["a.root"]),
        ("--against b.root --against c.root a.root", ["a.root"]),
        ("--against b.root --deep a.root c.root", ["a.root", "c.root"]),
    ],
)
def test_data_may_stand_after_the_other_sample(checked: Callable[[str], Any], line: str, data: list[str]) -> None:
    assert [file["path"] for file in checked(line).document["result"]["files"]] == data


@pytest.mark.parametrize(
    ("line", "data"),
    [
        ("--against b.root a.root c.root", ["a.root", "c.root"]),
        ("--against b.root c.root --deep a.root", ["a.root"]),
        ("--against=b.root c.root -- -y.root", ["./-y.root"]),
        ("--against b.root c.root --against ./-y.root", ["c.root"]),
        ("--against=b.root c.root --deep --against=./-y.root", ["c.root"]),
    ],
)
def test_what_may_be_either_is_refused_with_a_line_that_is_clear(
    checked: Callable[[str], Any], line: str, data: list[str]
) -> None:
    run = checked(line)
    assert run.code == 2
    (error,) = run.document["findings"]
    assert "may be data or the other sample" in error["problem"]
    words = shlex.split(error["fix"], comments=True)
    assert words[:2] == ["xectool", "check-data"]
    again = checked(shlex.join(words[2:]))
    assert [file["path"] for file in again.document["result"]["files"]] == data


def test_of_two_readings_both_lines_are_shown(checked: Callable[[str], Any]) -> None:
    """One was proposed: of `--against b c --against d a` c may be as much of the other sample as of the data."""
    (error,) = checked("--against b.root c.root --against ./-y.root a.root").document["findings"]
    first, _, second = error["fix"].partition("   # if these are the data; if c.root is of the other sample: ")
    for line, data in ((first, ["c.root", "a.root"]), (second, ["a.root"])):
        words = shlex.split(line)
        assert words[:2] == ["xectool", "check-data"], error["fix"]
        result = checked(shlex.join(words[2:])).document["result"]
        assert [file["path"] for file in result["files"]] == data
        assert line.count("--against ") == 4 - len(data)
    (alone,) = checked("--against b.root c.root a.root").document["findings"]  # the control
    assert alone["fix"].endswith("else name the data before --against")


def test_lines_of_a_file_whose_name_begins_as_an_option_can_be_pasted(checked: Callable[[str], Any]) -> None:
    line = "-- -y.root"
    for _ in range(3):  # it ended in exit 70
        result = checked(line).document["result"]
        assert [file["path"] for file in result["files"]] == ["./-y.root"]
        words = shlex.split(result["next"], comments=True)
        if words[1] != "check-data":
            break
        line = shlex.join(words[2:])
    assert words[1:4] == ["config", "init", "--set"]
    both = shlex.split(checked("a.root -- -y.root").document["result"]["next"])
    assert both[2:4] == ["a.root", "./-y.root"]


def test_a_line_for_many_files_without_a_pattern_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was check-data DATA, which is no file."""
    monkeypatch.chdir(tmp_path)
    names = [f"{place}/run{number}.root" for place in ("p", "q") for number in (1, 2, 3)]
    for name in [*names, "q/other.root"]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    assert Told(names).inputs() == "'p/run*.root' 'q/run*.root'"
    part = [name for name in names if name != "q/run2.root"]
    assert Told(part).inputs() == "'p/run*.root' q/run1.root q/run3.root"
    setting = Finding("DAT-04", Severity.ERROR, "no branch", fix="--set data.npho_branch=n")
    assert Told(part).first_step([setting]) == f"xectool check-data {Told(part).inputs()} --set data.npho_branch=n"


def test_a_line_for_files_without_number_names_a_list_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 9000 characters can be pasted, and read by nobody."""
    monkeypatch.chdir(tmp_path)
    names = [f"run{number:05d}.root" for number in range(900)]
    for name in names:
        Path(name).touch()
    part, others = [name for name in names if name[7] not in "37"], names[3::5]
    told = Told(part, against=others)
    setting = Finding("DAT-04", Severity.ERROR, "no branch", fix="--set data.npho_branch=n")
    lines = [told.first_step([setting]), told.again(told.following(told.inputs(), has_hashes=True))]
    lines.append(Told(part, against=others, deep=True).following(told.inputs(), has_hashes=True))
    remark = (
        f"files.txt: the {len(part)} files of this check, one a line; others.txt: the 180 files of the other sample"
    )
    assert [line for line in map(told.again, lines) if len(line) > 300 or line.count(remark) != 1] == []
    words = [shlex.split(line, comments=True) for line in lines]
    assert words[0] == shlex.split("xectool check-data @files.txt --against @others.txt --set data.npho_branch=n")
    assert words[2][3:7] == ["--set", "data.train_path='@files.txt'", "--set", "data.val_path='@others.txt'"]
    Path("files.txt").write_text("\n".join(part))
    assert free_name("files", ".txt") == "files2.txt", "what lies there is another list"
    Path("files2.txt").symlink_to("nowhere.txt")
    assert free_name("files", ".txt") == "files3.txt", "a link would be written through"
    assert Told(["@files.txt"]).again("xectool check-data @files.txt --deep") == "xectool check-data @files.txt --deep"
    assert Told(names).inputs() == "'run00*.root'", "the control"


def test_a_file_of_a_long_other_sample_is_not_compared_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name was looked for among those of the line: 180 of them are one, @others.txt."""
    monkeypatch.chdir(tmp_path)
    others = [f"runs of the other year/run{number:05d}.root" for number in range(3, 900, 5)]
    again = {
        count: Told(["a.root"], against=others[:count], flags=["--write-digest"]).again(
            f"xectool check-data '{others[0]}' --deep"
        )
        for count in (3, 180)
    }
    assert again == dict.fromkeys((3, 180), f"xectool check-data '{others[0]}' --deep")


@pytest.mark.parametrize("other", ["val", "val/*.root", "@val.txt"])
def test_a_file_of_a_folder_pattern_or_list_is_not_compared_with_its_own(
    folder: Path, checked: Callable[[str], Any], other: str
) -> None:
    """Seen at a file whose photons have another name: the line had the folder again, and asked hashes of the file."""
    (folder / "val").mkdir(exist_ok=True)
    (folder / "val" / "0.root").write_bytes((folder / "b.root").read_bytes())
    (folder / "val.txt").write_text("val/0.root\nval/1.root\n")
    values = uproot.open(f"{folder}/c.root:tree").arrays(["npho", "relative_time", "run", "event"], library="np")
    with uproot.recreate(folder / "val" / "1.root") as file:
        file["tree"] = {"photons2" if name == "npho" else name: rows for name, rows in values.items()}
    lines = [found["fix"] for found in checked(f"a.root --against '{other}' --write-digest").document["findings"]]
    assert [line for line in lines if line] == ["xectool check-data val/1.root --set data.npho_branch=photons2"]
    (folder / "val" / "1.root").write_bytes((folder / "c.root").read_bytes())
    words = shlex.split(checked(f"a.root --against '{other}'").document["result"]["next"])
    assert words == ["xectool", "check-data", "a.root", "--against", other, "--deep"], "the control"


def test_a_configuration_names_many_files_as_the_check_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a list that was still to be written where the check had a pattern for each directory."""
    monkeypatch.chdir(tmp_path)
    names = [f"runs_of_the_year_{number % 7}/run{number:05d}.root" for number in range(100)]
    for name in [*names, "runs_of_the_year_7/run00100.root"]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    told = Told(names, deep=True)
    line = told.again(told.following(told.inputs(), has_hashes=True))
    (setting,) = (word for word in shlex.split(line, comments=True) if word.startswith("data."))
    inputs = yaml.safe_load(setting.partition("=")[2])
    assert (inputs, len(inputs)) == (shlex.split(told.inputs()), 7)
    assert sorted(expand_inputs(inputs)) == sorted(names)


def test_a_list_has_one_name_whatever_is_written_between_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that appeared in between left a line with its name and without what belongs into it."""
    monkeypatch.chdir(tmp_path)
    told = Told([f"run{number:05d}.root" for number in range(300)])
    line = f"xectool check-data {told.inputs()} --deep"
    Path("files.txt").touch()
    assert told.again(line) == f"{line}   # files.txt: the 300 files of this check, one a line"
    settings = Told(["a.root"], overrides=["data.train_path=old@others.txt"], against=["b.root"])
    assert "#" not in settings.again("xectool check-data a.root --deep"), "another name that ends in it"


@pytest.mark.parametrize(("more", "is_list"), [(0, False), (1, True)])
def test_a_list_stands_for_more_than_2000_characters_with_blanks_and_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int, is_list: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"run {number:03d}.root" for number in range(124)]  # each 12 characters, 2 quotes, a blank
    names.append(f"run {'9' * (2000 - 124 * 15 - 11 + more)}.root")
    assert (Told(names).inputs() == "@files.txt") == is_list
    assert is_list or len(Told(names).inputs()) == 2000

"""Lines that write files again lead to a check of all files, each in the sample it was in."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import uproot
from xectool import engine
from xectool.checks.facts import FileFacts
from xectool.config.data import DataConfig
from xectool.config.truth_mends import nonfinite_truth_fix, one_after_the_other
from xectool.config.unit_mends import UnitMend, all_at_once
from xectool.engine.check_lines import Told, with_names
from xectool.engine.checking import CheckOptions
from xectool.engine.written_files import Tree
from xectool.findings import Finding, Severity

TRAINED, VALIDATED = ("a.root", "b.root"), ("v.root",)


def facts(names: Sequence[str], tree: str = "ev") -> list[FileFacts]:
    return [FileFacts(name, tree, "TTree") for name in names]


def line_of(names: Sequence[str], tree: str = "ev") -> str:
    return all_at_once([UnitMend(name, tree, branch, 1e-3) for name in names for branch in ("e", "t")])


def check_in(line: str) -> list[str]:
    """Return the words of the check that a line leads to."""
    words = shlex.split(line, comments=True)
    return words[len(words) - words[::-1].index("xectool") :]


@pytest.mark.parametrize(
    ("written", "files", "others"),
    [
        (("a.root", "b.root"), ["a_units.root:ev", "b_units.root:ev"], "v.root"),
        (("a.root",), ["a_units.root:ev", "b.root:ev"], "v.root"),
        (("v.root",), ["a.root", "b.root"], "v_units.root:ev"),
        (("a.root", "b.root", "v.root"), ["a_units.root:ev", "b_units.root:ev"], "v_units.root:ev"),
    ],
)
def test_each_file_stays_in_its_sample_whichever_is_written(
    written: Sequence[str], files: list[str], others: str
) -> None:
    """The files of both samples stood beside each other, and validation ended in the training."""
    told = Told(TRAINED, against=VALIDATED, files=facts(TRAINED), others=facts(VALIDATED))
    assert check_in(told.going_on(line_of(written))) == ["check-data", *files, "--against", others]
    one = nonfinite_truth_fix(written[0], "ev", "e")
    names = [f"{name.replace('_units', '_whole')}" for name in (*files, others) if name.startswith(written[0][0])]
    assert names[0] in check_in(told.going_on(one))
    assert len(check_in(told.going_on(one))) == 5, "no file is lost"


def test_the_paths_of_a_configuration_name_what_was_written() -> None:
    """The training read the old files again."""
    run = {"data.train_path": [Tree("a.root", "ev"), Tree("b.root", "ev")], "data.val_path": [Tree("v.root", "ev")]}
    told = replace(Told(["a.root"], "c.yaml", ["data.val_path=v.root"]), files=facts(["a.root"]), run=run)
    words = check_in(told.going_on(line_of(["a.root", "v.root"])))
    assert words == [
        "check-data", "a_units.root:ev", "--config", "c.yaml",
        "--set", "data.train_path=['a_units.root:ev', 'b.root:ev']", "--set", "data.val_path=v_units.root:ev",
    ]  # fmt: skip
    words = check_in(told.going_on(line_of(["v.root"])))
    assert [word for word in words if "_path=" in word] == ["data.val_path=v_units.root:ev"], "the others stay"


def test_trees_of_one_file_are_told_from_each_other() -> None:
    told = Told(["a.root:train"], against=["a.root:val"], files=facts(["a.root"], "train"))
    told = replace(told, others=facts(["a.root"], "val"))
    words = check_in(told.going_on(line_of(["a.root"], "train")))
    assert words == ["check-data", "a_units.root:train", "--against", "a.root:val"]
    unread = Told(["a.root"], files=[FileFacts("a.root", "tree")])
    assert check_in(unread.going_on(line_of(["a.root"]))) == ["check-data", "a_units.root:ev"], "by a proposed name"


def test_a_line_that_goes_on_from_another_checks_what_that_one_checks() -> None:
    told = Told(TRAINED, against=VALIDATED, files=facts(TRAINED), others=facts(VALIDATED))
    fixes = [nonfinite_truth_fix("v.root", "ev", "e"), line_of([*TRAINED, *VALIDATED])]
    found = [Finding("DAT-16", Severity.ERROR, "p", "w", (), told.going_on(fix)) for fix in fixes]
    second, first = one_after_the_other(found)
    assert check_in(second.fix) == [
        "check-data", "a_units.root:ev", "b_units.root:ev", "--against", "v_units_whole.root:ev",
    ]  # fmt: skip
    assert told.first_step([second], [second, first]) == first.fix, "it reads what the other one writes"


def test_a_configuration_alone_tells_the_samples_too(tmp_path: Path) -> None:
    for name in ("a.root", "v.root"):
        engine.simulate(str(tmp_path / name), events=2)
    paths = [str(tmp_path / name) for name in ("a.root", "v.root")]
    finding = Finding("DAT-16", Severity.ERROR, "p", "w", (), line_of(paths, "tree"))
    (found,) = with_names([finding], DataConfig(train_path=paths[0], val_path=paths[1]))
    assert check_in(found.fix) == ["check-data", "a_units.root", "--against", "v_units.root"]


def test_very_many_written_files_are_a_list_that_is_told_of() -> None:
    names = [f"a_rather_long_name_of_a_file_that_was_written_{number:04}.root" for number in range(300)]
    line = Told(names, files=facts(names)).going_on(line_of(names[:3]))
    assert check_in(line) == ["check-data", "@files.txt"]
    assert "files.txt: the 300 files of this check, one a line" in line


@pytest.mark.parametrize("odd", [("a.root",), ("v.root",), ("a.root", "v.root")])
@pytest.mark.parametrize("has_config", [False, True])
def test_pasted_one_after_the_other_the_lines_never_train_on_the_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: Sequence[str], has_config: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate((*TRAINED, *VALIDATED)):
        simulate(name, seed, 1e3 if name in odd else 1.0)
    Path("c.yaml").write_text(
        "kind: regressor\ndata: {batch_size: 8, tree_name: ev, train_path: [a.root, b.root], val_path: v.root}\n"
        "tasks: {energy: {enabled: true}}\n"
    )
    tree = ["--set", "data.tree_name=ev"]
    words = ["check-data", *TRAINED, *(("--config", "c.yaml") if has_config else ("--against", "v.root", *tree))]
    while words[0] == "check-data":
        line = check(words).next
        if "python" in line.split()[0]:
            said = subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout
            line = said.splitlines()[-1].removeprefix("next: ")
        words = shlex.split(line, comments=True)[1:]
    settings = dict(word.split("=", 1) for word in words if word.startswith("data."))
    trained, validated = settings.get("data.train_path", "a.root, b.root"), settings.get("data.val_path", "v.root")
    assert ("b.root" in trained, "v_" in trained, "v.root" in trained) == (True, False, False), words
    assert (trained.strip("[]'").startswith("a_"), validated.startswith("v_")) == ("a.root" in odd, "v.root" in odd)
    assert words[0] == ("train" if has_config else "config"), words


def test_a_file_that_is_written_again_once_more_keeps_a_short_name(tmp_path: Path) -> None:
    """It was a_units_units.root."""
    names = [str(tmp_path / name) for name in ("a_units.root", "b_units_2.root")]
    assert check_in(line_of(names))[1:] == ["a_units.root:ev", "b_units.root:ev"]


@pytest.mark.parametrize("is_one", [False, True])
def test_a_line_over_a_damaged_file_ends_in_a_sentence_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_one: bool
) -> None:
    """It ended in a traceback of zlib, and a file of a few events stayed."""
    monkeypatch.chdir(tmp_path)
    simulate("a.root", 1, 1e3)
    damage("a.root")
    mends = [UnitMend("a.root", "ev", branch, 1e-3) for branch in ("energyTruth", "timeTruth")]
    line = nonfinite_truth_fix("a.root", "ev", "energyTruth") if is_one else all_at_once(mends)
    ended = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "next: xectool check-data a.root:ev --deep\n")
    (said,) = ended.stderr.splitlines()
    assert said.startswith("error: a.root could not be written again, and no part of it was kept: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.root", "simulated.root"]
    checked = engine.check_data("a.root:ev")
    assert checked.next.startswith("xectool explain XT-DATA-DAMAGED   # a.root:ev: copy the file again and compare")


def test_one_line_mends_the_truth_that_is_guessed_too_and_keeps_files_that_lack_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second line wrote a_units_units.root, and of two files the one without the time was left out."""
    monkeypatch.chdir(tmp_path)
    renamed = {"energyTruth": "E_true", "timeTruth": "tgen", "uvwTruth": "uvwTruth"}
    for seed, name in enumerate(("a.root", "b.root", "v.root")):
        simulate(name, seed, 1e3, {"uvwTruth": 10.0, "timeTruth": 1e9}, renamed)
    sound = check(["check-data", "a.root:ev", "b.root:ev", "--against", "v.root:ev"])
    told = ["--set", "data.truth_branches.energy=E_true", "--set", "data.truth_branches.timing=tgen"]
    following = check_in(sound.next)
    assert following == ["check-data", "a_units.root:ev", "b_units.root:ev", *told, "--against", "v_units.root:ev"]
    for lacking in ("b.root", "v.root"):
        simulate(lacking, 7, 1e3, {"uvwTruth": 10.0}, renamed, without="timeTruth")
        found = check(["check-data", "a.root:ev", "b.root:ev", "--against", "v.root:ev"])
        following = check_in(found.next)
        assert following == ["check-data", "a_units.root:ev", "b_units.root:ev", *told[:2], *following[5:]]
        assert following[5:] == ["--against", "v_units.root:ev"]
        (timing,) = [item for item in found.findings if "'tgen'" in item.problem]
        assert f"{lacking}:ev has no such branch" in timing.problem
        simulate(lacking, 7, 1e3, {"uvwTruth": 10.0}, renamed)


def test_a_told_truth_that_a_file_lacks_is_said_and_a_told_one_that_all_have_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration had the name of the branch, and the task was off."""
    monkeypatch.chdir(tmp_path)
    renamed = {"energyTruth": "E_true", "timeTruth": "tgen"}
    simulate("a.root", 1, 1.0, {}, renamed)
    simulate("b.root", 2, 1.0, {}, renamed, without="timeTruth")
    told = ["--set", "data.truth_branches.energy=E_true", "--set", "data.truth_branches.timing=tgen"]
    words = ["check-data", "a.root:ev", "b.root:ev", *told, "--deep", "--write-digest"]
    checked = check(words)
    assert [item.problem for item in checked.findings if item.code == "DAT-04"] == [
        "'b.root:ev' has no branch 'tgen', the truth of task timing, which other files have"
    ]
    assert checked.next.endswith(" --set tasks.energy.enabled=true > config.yaml")
    alone = check(["check-data", "a.root:ev", *words[3:]])
    assert alone.next.endswith(" --set tasks.energy.enabled=true --set tasks.timing.enabled=true > config.yaml")


def check(words: list[str]) -> engine.checking.DataChecked:
    """Return what the words of a check say."""
    pairs = [(words[at], words[at + 1]) for at in range(len(words)) if words[at] in ("--set", "--against", "--config")]
    taken = {word for pair in pairs for word in pair}
    files = [word for word in words[1:] if word not in taken and not word.startswith("--")]
    values = {option: tuple(value for of, value in pairs if of == option) for option, _ in pairs}
    config = values.get("--config", (None,))[0]
    asked = CheckOptions(config, values.get("--set", ()), "--deep" in words, against=values.get("--against", ()))
    return engine.check_data(files, replace(asked, write_digest="--write-digest" in words))


def simulate(
    name: str,
    seed: int,
    factor: float,
    others: Mapping[str, float] = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}),
    without: str = "",
) -> None:
    """Write a file with its energies, and other branches, in another unit, some under another name."""
    engine.simulate("simulated.root", events=24, seed=seed)
    with uproot.open("simulated.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    for branch, by in {"energyTruth": factor, **others}.items():
        if branch in columns:
            columns[branch] = (by * columns[branch]).astype(columns[branch].dtype)
    columns = {names.get(branch, branch): values for branch, values in columns.items() if branch != without}
    with uproot.recreate(name) as file:
        file.mktree("ev", {key: (value.dtype, value.shape[1:]) for key, value in columns.items()})
        file["ev"].extend(columns)


def damage(name: str) -> None:
    """Put zeros into the first basket of the photons."""
    with uproot.open(name) as file:
        branch = file["ev"]["npho"]
        begin, size = (int(branch.member(key)[0]) for key in ("fBasketSeek", "fBasketBytes"))
    with open(name, "r+b") as raw:
        raw.seek(begin + size // 2)
        raw.write(bytes(1000))

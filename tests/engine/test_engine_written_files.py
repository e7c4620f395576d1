"""Lines that write files again lead to a check of all files, each in the sample it was in."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.checks.facts import FileFacts
from xectool.config.data import DataConfig
from xectool.config.mends import changes_of, words_of
from xectool.engine.check_lines import Told
from xectool.engine.checking import CheckOptions
from xectool.engine.convert_line import converting
from xectool.engine.written_files import Tree
from xectool.errors import ConfigError, DataUnusable
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Marker, Mend

TRAINED, VALIDATED = ("a.root", "b.root"), ("v.root",)
OPTIONS = ("scale", "marker", "within", "finite")


def facts(names: Sequence[str], tree: str = "ev") -> list[FileFacts]:
    return [FileFacts(name, tree, "TTree") for name in names]


def simulated(events: int) -> dict[str, np.ndarray]:
    """Simulate ``plain.root`` and return its branches."""
    engine.simulate("plain.root", events=events, seed=1)
    with uproot.open("plain.root:tree") as tree:
        return {name: tree[name].array(library="np") for name in tree.keys()}  # noqa: SIM118 - no mapping


def write(name: str, rows: Mapping[str, np.ndarray]) -> None:
    with uproot.recreate(name) as file:
        file.mktree("tree", {branch: (values.dtype, values.shape[1:]) for branch, values in rows.items()}).extend(rows)


def found_in(names: Sequence[str], tree: str = "ev") -> Finding:
    mends = (Mend(name, tree, branch, Change(factor=1e-3)) for name in names for branch in ("e", "t"))
    return Finding("DAT-16", Severity.ERROR, "p", "w", mends=tuple(mends))


def line_of(told: Told, names: Sequence[str], tree: str = "ev") -> str:
    """Return the line that writes files."""
    (found,) = told.converting([found_in(names, tree)])
    return found.fix


def check_in(line: str) -> list[str]:
    """Return the words of the check that a line leads to."""
    words = shlex.split(line, comments=True)
    return words[len(words) - words[::-1].index("xectool") :]


@pytest.mark.parametrize(
    ("written", "files", "others"),
    [
        (("a.root", "b.root"), ["a_converted.root:ev", "b_converted.root:ev"], "v.root"),
        (("a.root",), ["a_converted.root:ev", "b.root:ev"], "v.root"),
        (("v.root",), ["a.root", "b.root"], "v_converted.root:ev"),
        (("a.root", "b.root", "v.root"), ["a_converted.root:ev", "b_converted.root:ev"], "v_converted.root:ev"),
    ],
)
def test_each_file_stays_in_its_sample_whichever_is_written(
    written: Sequence[str], files: list[str], others: str
) -> None:
    """The files of both samples stood beside each other, and validation ended in the training."""
    told = Told(TRAINED, against=VALIDATED, files=facts(TRAINED), others=facts(VALIDATED))
    assert check_in(line_of(told, written)) == ["check-data", *files, "--against", others]


def test_the_paths_of_a_configuration_name_what_was_written() -> None:
    """The training read the old files again."""
    run = {"data.train_path": [Tree("a.root", "ev"), Tree("b.root", "ev")], "data.val_path": [Tree("v.root", "ev")]}
    told = replace(Told(["a.root"], "c.yaml", ["data.val_path=v.root"]), files=facts(["a.root"]), run=run)
    words = check_in(line_of(told, ["a.root", "v.root"]))
    assert words == [
        "check-data", "a_converted.root:ev", "--config", "c.yaml",
        "--set", "data.train_path=['a_converted.root:ev', 'b.root:ev']", "--set", "data.val_path=v_converted.root:ev",
    ]  # fmt: skip
    words = check_in(line_of(told, ["v.root"]))
    assert [word for word in words if "_path=" in word] == ["data.val_path=v_converted.root:ev"], "the others stay"


def test_a_check_of_what_was_written_is_as_deep_as_the_one_before() -> None:
    """It forgot all but the files, the configuration and the settings."""
    flags = ["--max-events 50", "--plots 'p p'", "--write-digest"]
    told = Told(["a.root"], overrides=["data.chunksize=8"], flags=flags, deep=True, files=facts(["a.root"]))
    words = check_in(line_of(told, ["a.root"]))
    assert words[1:4] == ["a_converted.root:ev", "--set", "data.chunksize=8"]
    assert words[4:] == ["--max-events", "50", "--plots", "p p", "--write-digest", "--deep"]


def test_events_that_are_left_out_are_named_by_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paste: Any
) -> None:
    """They were counted again, and the training refused their names."""
    monkeypatch.chdir(tmp_path)
    for seed, (name, factor) in enumerate({"a.root": 1e3, "b.root": 1e3, "v.root": 1.0}.items()):
        simulate(name, seed, factor)
    gone = "[a.root:5, 'b.root:ev:2', v.root:1]"
    Path("c.yaml").write_text(
        f"data: {{batch_size: 8, tree_name: ev, train_path: [a.root, b.root], val_path: v.root, exclude: {gone}}}\n"
        "kind: regressor\ntasks: {energy: {enabled: true}}\n"
    )
    line = check(["check-data", *TRAINED, "--config", "c.yaml"]).next
    with pytest.raises(ConfigError) as refused:
        engine.config.check("c.yaml", deep=True)
    assert [word for word in check_in(refused.value.fix) if "exclude" in word] == [
        "data.exclude=[a_converted.root:ev:5, b_converted.root:ev:2, v.root:1]"
    ], "a start has no configuration to name: its check names the events"
    done = paste(refused.value.fix, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for written in Path().glob("*_converted.root"):
        written.unlink()
    paste(line, tmp_path)
    words = check_in(line)
    (told,) = [word for word in words if word.startswith("data.exclude=")]
    assert told == "data.exclude=[a_converted.root:ev:5, b_converted.root:ev:2, v.root:1]"
    settings = [word for word in words if word.startswith("data.")]
    assert engine.train("c.yaml", overrides=settings, dry_run=True).status == "dry_run"


def test_trees_of_one_file_are_told_from_each_other() -> None:
    told = Told(["a.root:train"], against=["a.root:val"], files=facts(["a.root"], "train"))
    told = replace(told, others=facts(["a.root"], "val"))
    words = check_in(line_of(told, ["a.root"], "train"))
    assert words == ["check-data", "a_converted.root:train", "--against", "a.root:val"]
    unread = Told(["a.root"], files=[FileFacts("a.root", "tree")])
    assert check_in(line_of(unread, ["a.root"])) == ["check-data", "a_converted.root:ev"], "by a proposed name"


def test_all_that_files_need_is_one_line_in_which_each_is_written_once() -> None:
    """What else a file needed went on from what another line wrote, and had to be pasted after it."""
    told = Told(TRAINED, against=VALIDATED, files=facts(TRAINED), others=facts(VALIDATED))
    marked = Mend("v.root", "ev", "e", Change((Marker(-999.0),), within=((0.0, 1.0), (2.0, 3.0))))
    other = Finding("DAT-16", Severity.WARNING, "p", "w", fix="leave them out", mends=(marked,))
    none = Finding("DAT-20", Severity.WARNING, "p", "w", fix="--set data.chunksize=8")
    first, second, third = told.converting([found_in([*TRAINED, *VALIDATED]), other, none])
    assert third is none
    assert second.fix == f"{first.fix}; or leave them out"
    assert first.fix == (
        "xectool convert a.root:ev b.root:ev --into a_converted.root --into b_converted.root --scale e=0.001 --scale "
        "t=0.001 && xectool convert v.root:ev --into v_converted.root --marker e=-999 --scale e=0.001 --within "
        "e=0:1,2:3 --scale t=0.001 && xectool check-data a_converted.root:ev b_converted.root:ev --against "
        'v_converted.root:ev   # what was found in 3 files; 1e10 is "not known"'
    )
    assert told.first_step([none, first]) == "xectool check-data a.root b.root --against v.root --set data.chunksize=8"
    assert told.first_step([first, none]) == first.fix


def test_of_many_files_twenty_are_in_the_line() -> None:
    names = [f"f{number}.root" for number in range(23)]
    line = line_of(Told(names, files=facts(names)), names)
    assert line.count("--into ") == 20
    assert line.endswith("   # what was found in 20 files; the same for the other 3 files")


def test_the_options_of_a_line_say_what_was_to_be_done() -> None:
    for change in (
        Change((Marker(-999.0), Marker(3.4028235e38, 2)), 1e-9, ((-30.5, 1e-7),), True),
        Change(within=((0.0, 1.0), (-1.0, 1 / 3))),
    ):
        words = words_of("mc energy", change)
        given = {name: [after for word, after in itertools.pairwise(words) if word == f"--{name}"] for name in OPTIONS}
        assert changes_of(**given) == {"mc energy": change}


def test_a_configuration_alone_tells_the_samples_too(tmp_path: Path) -> None:
    for name in ("a.root", "v.root"):
        engine.simulate(str(tmp_path / name), events=2)
    paths = [str(tmp_path / name) for name in ("a.root", "v.root")]
    (found,) = converting([found_in(paths, "tree")], DataConfig(train_path=paths[0], val_path=paths[1]))
    assert check_in(found.fix) == ["check-data", "a_converted.root", "--against", "v_converted.root"]


def test_very_many_written_files_are_a_list_that_is_told_of() -> None:
    names = [f"a_rather_long_name_of_a_file_that_was_written_{number:04}.root" for number in range(300)]
    line = line_of(Told(names, files=facts(names)), names[:3])
    assert check_in(line) == ["check-data", "@files.txt"]
    assert "files.txt: the 300 files of this check, one a line" in line


@pytest.mark.parametrize("odd", [("a.root",), ("v.root",), ("a.root", "v.root")])
@pytest.mark.parametrize("has_config", [False, True])
def test_pasted_one_after_the_other_the_lines_never_train_on_the_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: Sequence[str], has_config: bool, paste: Any
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
        if line.startswith("xectool convert "):
            paste(line, tmp_path)
            line = line.split(" && ")[-1]
        words = shlex.split(line, comments=True)[1:]
    settings = dict(word.split("=", 1) for word in words if word.startswith("data."))
    trained, validated = settings.get("data.train_path", "a.root, b.root"), settings.get("data.val_path", "v.root")
    assert ("b.root" in trained, "v_" in trained, "v.root" in trained) == (True, False, False), words
    assert (trained.strip("[]'").startswith("a_"), validated.startswith("v_")) == ("a.root" in odd, "v.root" in odd)
    assert words[0] == ("train" if has_config else "config"), words


def test_a_file_that_is_written_again_once_more_keeps_a_short_name(tmp_path: Path) -> None:
    """It was a_converted_converted.root."""
    names = [str(tmp_path / name) for name in ("a_converted.root", "b_converted_2.root")]
    assert check_in(line_of(Told([]), names))[1:] == ["a_converted.root:ev", "b_converted.root:ev"]


def test_a_line_over_a_damaged_file_ends_in_a_sentence_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paste: Any
) -> None:
    """It ended in a traceback of zlib, and a file of a few events stayed."""
    monkeypatch.chdir(tmp_path)
    simulate("a.root", 1, 1e3)
    damage("a.root")
    mends = (Mend("a.root", "ev", "energyTruth", Change(factor=1e-3)),)
    (found,) = Told(["a.root:ev"]).converting([Finding("DAT-16", Severity.ERROR, "p", "w", mends=mends)])
    ended = paste(found.fix, tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "error XT-DATA-DAMAGED: 'a.root' is damaged: branch 'npho'" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "  fix: xectool check-data a.root:ev --deep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.root", "simulated.root"]
    checked = engine.check_data("a.root:ev")
    assert checked.next.startswith("xectool explain XT-DATA-DAMAGED   # a.root:ev: copy the file again and compare")


def test_a_reading_that_no_sensor_delivers_has_a_line_that_marks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paste: Any
) -> None:
    """One 1e30 among the photons led to a text on damaged files, and to no file that could be trained on."""
    monkeypatch.chdir(tmp_path)
    rows = simulated(20)
    rows["npho"][3, 7] = 1e30
    write("a.root", rows)
    found = engine.check_data("a.root")
    (odd,) = [item for item in found.findings if item.code == "DAT-02"]
    assert odd.fix == found.next
    assert odd.fix.endswith("; or copy the file again and compare its checksum")
    done = paste(found.next, tmp_path)
    assert done.returncode == 0, done.stderr
    with uproot.open("a_converted.root:tree") as tree:
        marked = tree["npho"].array(library="np")
    assert marked[3, 7] == np.float32(1e10)
    rows["npho"][3, 7] = 1e10
    np.testing.assert_array_equal(marked, rows["npho"])


def test_one_line_mends_the_truth_that_is_guessed_too_and_keeps_files_that_lack_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second line wrote a_converted_converted.root, and of two files the one without the time was left out."""
    monkeypatch.chdir(tmp_path)
    renamed = {"energyTruth": "E_true", "timeTruth": "tgen", "uvwTruth": "uvwTruth"}
    for seed, name in enumerate(("a.root", "b.root", "v.root")):
        simulate(name, seed, 1e3, {"uvwTruth": 10.0, "timeTruth": 1e9}, renamed)
    sound = check(["check-data", "a.root:ev", "b.root:ev", "--against", "v.root:ev"])
    told = ["--set", "data.truth_branches.energy=E_true", "--set", "data.truth_branches.timing=tgen"]
    following = check_in(sound.next)
    assert following == [
        "check-data",
        "a_converted.root:ev",
        "b_converted.root:ev",
        *told,
        "--against",
        "v_converted.root:ev",
    ]
    for lacking in ("b.root", "v.root"):
        simulate(lacking, 7, 1e3, {"uvwTruth": 10.0}, renamed, without="timeTruth")
        found = check(["check-data", "a.root:ev", "b.root:ev", "--against", "v.root:ev"])
        following = check_in(found.next)
        assert following == ["check-data", "a_converted.root:ev", "b_converted.root:ev", *told[:2], *following[5:]]
        assert following[5:] == ["--against", "v_converted.root:ev"]
        (timing,) = [item for item in found.findings if "'tgen'" in item.problem]
        assert f"{lacking}:ev has no such branch" in timing.problem
        simulate(lacking, 7, 1e3, {"uvwTruth": 10.0}, renamed)


def test_one_line_mends_units_and_what_is_no_truth_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paste: Any
) -> None:
    """-999 ns became -9.99e-07 s and stayed a truth; what no event can have was told once the units were right."""
    monkeypatch.chdir(tmp_path)
    rows = simulated(60)
    for name, factor in (("energyTruth", 1e3), ("timeTruth", 1e9), ("uvwTruth", 10.0)):
        rows[name] = (rows[name].astype(np.float64) * factor).astype(np.float32)
        rows[name][[5, 17]] = -999.0
    rows["energyTruth"][9] = 4e6
    write("a.root", rows)
    line = check(["check-data", "a.root"]).next
    done = paste(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Verdict  good" in done.stderr
    with uproot.open("a_converted.root:tree") as tree, uproot.open("plain.root:tree") as plain:
        for name, unknown in (("energyTruth", [5, 9, 17]), ("timeTruth", [5, 17]), ("uvwTruth", [5, 17])):
            values, before = (of[name].array(library="np") for of in (tree, plain))
            assert (values[unknown] == np.float32(1e10)).all()
            kept = np.setdiff1d(np.arange(60), unknown)
            np.testing.assert_allclose(values[kept], before[kept], rtol=1e-5)


def test_a_told_truth_that_is_the_same_in_all_events_is_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check-data` ended in a configuration that `config check --deep` called sound, and `train` refused."""
    monkeypatch.chdir(tmp_path)
    engine.simulate("a.root", events=40, seed=1)
    told = ["--set", "data.truth_branches.n_gamma=nGammaTruth", "--set", "data.truth_branches.energy=energyTruth"]
    line = check(["check-data", "a.root", *told, "--deep", "--write-digest"]).next
    assert "tasks.energy.enabled=true" in line
    assert "tasks.n_gamma" not in line
    engine.simulate("v.root", events=30, seed=2)
    task = "tasks: {n_gamma: {enabled: true, scale: auto}}"
    Path("c.yaml").write_text(f"data: {{train_path: a.root, val_path: v.root}}\n{task}\n")
    with pytest.raises(ConfigError) as caught:
        engine.config.check("c.yaml", deep=True)
    (found,) = [item for item in caught.value.findings if item.code == "DAT-16"]  # type: ignore[attr-defined]
    assert "in every event: training refuses it with an automatic scale" in found.problem
    assert found.fix == "--set tasks.n_gamma.scale=1.0 --set tasks.n_gamma.shift=null", (
        "the only task cannot be left out"
    )
    with pytest.raises(DataUnusable, match="the same in all 40 training events") as refused:
        engine.train("c.yaml", dry_run=True)
    assert refused.value.fix == found.fix
    again = found.fix.replace("--set ", "").split()
    assert engine.train("c.yaml", overrides=again, dry_run=True).status == "dry_run"


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
    assert checked.next.partition("   # ")[0].endswith(" --set tasks.energy.enabled=true > config.yaml")
    alone = check(["check-data", "a.root:ev", *words[3:]])
    assert alone.next.partition("   # ")[0].endswith(
        " --set tasks.energy.enabled=true --set tasks.timing.enabled=true > config.yaml"
    )


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

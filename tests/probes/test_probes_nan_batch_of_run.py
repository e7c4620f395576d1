"""``nan-batch --run`` reads the run's own configuration and files, wherever they are, and tells its finite spikes."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from xectool import engine
from xectool.cli import app
from xectool.cli.boundary import run as run_cli
from xectool.config.data import DataConfig
from xectool.engine.diagnose.nonfinite import NanBatchResult
from xectool.errors import DataFileError
from xectool.probes.repetition.own_files import OwnFiles
from xectool.runlog.writer import RunWriter

pytestmark = pytest.mark.usefixtures("shallow_module")
Write = Callable[..., Path]


def search(run: Path, tmp_path: Path, config: Path | None = None, overrides: Sequence[str] = ()) -> NanBatchResult:
    return engine.diagnose.nan_batch(config, run=run, overrides=overrides, output=tmp_path / "m.npz")


def test_files_of_the_run_are_read_and_others_of_the_configuration_told(
    overflowing: tuple[Path, int], write_config: Write, tmp_path: Path
) -> None:
    run, own = overflowing[0], overflowing[0].parent / "train.root"
    other = write_config(training={"amp": "off"})  # of clean files
    result = search(run, tmp_path, other, ["training.lr=1e-3"])
    assert result.event["entry"] == 5
    assert result.event["file"].startswith(str(own))
    said = result.why[0]  # before all evidence, which is cut on the screen
    assert f"the run's own were read, {own}" in said
    assert "not applied, for the run's own configuration is searched: training.lr=1e-3" in result.why
    assert shlex.split(result.reproduce)[:4] == ["xectool", "diagnose", "nan-batch", "--batch"]
    alike = search(run, tmp_path, run / "config.yaml")
    assert alike.event == result.event
    assert not any("data.train_path" in line for line in alike.why)


def test_a_run_whose_files_are_gone_takes_those_that_are_given(
    overflowing: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(overflowing[0], tmp_path / "r"))
    new = Path(shutil.copy(overflowing[0].parent / "train.root", tmp_path / "train.root"))
    text, manifest = (run / "config.yaml").read_text(), (run / "manifest.json").read_text()
    old = str(overflowing[0].parent / "train.root")
    assert old in text
    assert old in manifest
    (run / "config.yaml").write_text(text.replace(old, "/gone/train.root"))
    (run / "manifest.json").write_text(manifest.replace(old, "/gone/train.root"))
    with pytest.raises(DataFileError) as refused:
        search(run, tmp_path)
    assert "/gone/train.root" in refused.value.problem
    line = refused.value.fix.replace("NEW", str(new))
    assert run_cli(app.app, [*shlex.split(line, comments=True)[1:], "--json", "--output", str(tmp_path / "m.npz")]) == 1
    answer = json.loads(capsys.readouterr().out)["result"]
    assert answer["event"]["file"] == f"{new}:tree"
    assert answer["event"]["entry"] == 5
    assert f"/gone/train.root:tree is not there: data.train_path is {new} instead" in answer["why"]
    assert any("before step" in line for line in answer["scanned"])  # with the very weights
    assert f"--set 'data.train_path=[{new}]'" in answer["next"]


def test_the_lines_of_a_moved_run_leave_out_what_its_configuration_names_by_full_path(
    overflowing: tuple[Path, int], tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    shutil.copy(overflowing[0].parent / "train.root", old / "a.root")
    config = yaml.safe_load((overflowing[0].parent / "config.yaml").read_text())
    config["data"] |= {"train_path": str(old / "a.root"), "exclude": [f"{old}/a.root:3"]}
    config["checkpoint"]["save_dir"] = str(tmp_path / "runs")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    run = Path(engine.train(path).run_dir)
    old.rename(new)
    result = search(run, tmp_path, overrides=[f"data.train_path={new}/a.root"])
    assert result.event["entry"] == 5
    listed = yaml.safe_load(result.exclude.partition("=")[2])
    assert listed == [f"{new}/a.root:3", f"{new}/a.root:tree:5"]
    line, _, other = result.next.partition("#")
    for words in (shlex.split(line), [*shlex.split(line), *shlex.split(other.replace("or ", "", 1))]):
        assert run_cli(app.app, [*words[1:], "--dry-run"]) == 0
    assert f"data.exclude=[{new}/a.root:3, {new}/a.root:tree:5]" in other


NAMES = {"train": ("/d/a.root:tree", "/d/b.root:tree")}


def data_of(*paths: Path, **settings: object) -> DataConfig:
    return DataConfig(train_path=tuple(map(str, paths)), **settings)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of any content."""
    paths = tmp_path / "a.root", tmp_path / "b.root"
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def test_files_in_another_order_are_the_same_files(two: tuple[Path, Path]) -> None:
    a, b = two
    files = OwnFiles(data_of(b, a))
    own = data_of(a, b)
    assert files.of(own, {"train": (f"{a}:tree", f"{b}:tree")}) == own
    assert [*files.notes] == ["data.train_path was given in another order: the files are read in that of the run"]
    same = OwnFiles(data_of(a, b))
    assert same.of(own, {}) == own
    assert not same.notes
    fewer = OwnFiles(data_of(a))
    assert fewer.of(own, {}) == own
    (note,) = fewer.notes
    assert note == f"data.train_path was given as {a}: the run's own were read, {a} and 1 more file"


def test_given_files_take_the_places_that_missing_ones_had_and_their_excluded_events(two: tuple[Path, Path]) -> None:
    a, b = two
    own = DataConfig(train_path=("/d/a.root", "/d/b.root"), exclude=("/d/b.root:3", "a.root:7", "/d/v.root:1"))
    files = OwnFiles(data_of(b, a))
    found = files.of(own, NAMES)
    assert found.train_path == (str(a), str(b))
    assert found.exclude == (f"{b}:3", f"{a}:7")
    assert files.settings == {"data.train_path": (str(a), str(b)), "data.exclude": (f"{b}:3", f"{a}:7")}
    assert len(files.notes) == 3  # that they are taken, and in which order, and what is of no file
    assert "data.exclude names events of no file that is read, which are not left out: /d/v.root:1" in files.notes
    assert files.moved == {"/d/a.root:tree": str(a), "/d/b.root:tree": str(b)}
    nothing = OwnFiles()
    assert nothing.of(own, NAMES) == own
    assert nothing.missing == {"data.train_path": "/d/a.root:tree"}
    assert OwnFiles().of(own, NAMES, data_of(a, b)).train_path == (str(a), str(b))  # what a later attempt read


def test_files_of_other_names_are_taken_with_a_word(two: tuple[Path, Path]) -> None:
    files = OwnFiles(data_of(two[0]))
    assert files.of(DataConfig(train_path=("/d/x.root", "/d/b.root")), {}).train_path == (str(two[0]),)
    assert any("have other names than those of the run" in note for note in files.notes)


def test_what_was_given_beside_the_files_of_the_run_is_told_as_it_is(two: tuple[Path, Path]) -> None:
    a, b = two
    more = OwnFiles(data_of(a, b))
    assert more.of(DataConfig(train_path=("/d/a.root",)), {}).train_path == (str(a),)
    assert [*more.notes] == [
        f"data.train_path was given with files that are none of the run, and are not read: {b}",
        f"/d/a.root is not there: data.train_path is {a} instead",
    ]
    trees = OwnFiles(data_of(a))
    own = DataConfig(train_path=("/d/a.root:t1", "/d/a.root:t2"))
    assert trees.of(own, {}).train_path == (f"{a}:t1", f"{a}:t2")
    assert [*trees.notes] == [f"/d/a.root:t1 is not there: data.train_path is {a}:t1 and 1 more file instead"]
    nowhere = OwnFiles(data_of(Path("/nowhere/x.root")))
    assert nowhere.of(data_of(a), {}) == data_of(a)
    said = f"data.train_path was given as /nowhere/x.root, which is not there: the run's own were read, {a}"
    assert [*nowhere.notes] == [said]


def test_a_file_that_came_to_the_glob_since_is_not_read(two: tuple[Path, Path]) -> None:
    own = DataConfig(train_path=str(two[0].parent / "*.root"))
    files = OwnFiles()
    assert files.of(own, {"train": (f"{two[0]}:tree",)}).train_path == (f"{two[0]}:tree",)
    assert [*files.notes] == [f"data.train_path finds other files now: the run's own were read, {two[0]}:tree"]
    assert OwnFiles().of(own, {"train": tuple(f"{path}:tree" for path in two)}) == own


def test_a_finite_spike_of_the_run_is_told(write_config: Write, tmp_path: Path) -> None:
    run = Path(engine.train(write_config(training={"epochs": 1})).run_dir)
    assert search(run, tmp_path).verdict == "nothing is non-finite"
    with RunWriter(run) as writer:
        writer.resume(4, 1)
        writer.event("spike", "step 5: loss 14 where 1.3 was normal (record)", step=5, loss=14.0, by_mask=True)
        assert search(run, tmp_path).verdict == "nothing is non-finite"  # a mask made it
        writer.event("spike", "step 5: loss 12 where 1.3 was normal (record)", step=5, loss=12.0)
    result = search(run, tmp_path)
    assert not result.found
    told = "nothing is non-finite; a finite spike of the run: step 5: loss 12 where 1.3 was normal (record)"
    assert result.verdict == told
    assert result.next == f"xectool diagnose replay {run} --step 5 --counterfactuals"


def test_a_finite_spike_beside_a_step_that_is_not_finite_is_told_too(
    overflowing: tuple[Path, int], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(overflowing[0], tmp_path / "r"))
    last = yaml.safe_load((run / "config.yaml").read_text())["training"]["epochs"] * 2
    with RunWriter(run) as writer:
        writer.resume(last, 2)
        writer.event("spike", "step 9: loss 12 where 1.3 was normal (record)", step=9, loss=12.0)
    result = search(run, tmp_path)
    assert result.found
    assert "a finite spike of the run: step 9: loss 12 where 1.3 was normal (record)" in result.why
    assert "replay" not in result.next


def test_the_list_holds_all_events_that_fail_alone_and_those_that_the_record_blames(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path
) -> None:
    """Each of three events that overflow was a search of its own."""
    bad = [(0, 1), (0, 6), (1, 3)]
    directory = poisoned({(*place, "npho", 321): -1e37 for place in bad})
    config = write_config(train=directory, normalization={"npho_scheme": "linear", "npho_scale": 1.0})
    result = engine.diagnose.nan_batch(config, output=tmp_path / "m.npz")
    assert result.breaks_training
    listed = yaml.safe_load(result.exclude.partition("=")[2])
    assert sorted(listed) == sorted(f"{directory}/train_{file:03d}.root:tree:{entry}" for file, entry in bad)
    assert result.exclude in shlex.split(result.next.replace("# ", ""))
    assert sum("bad by itself as well" in line for line in result.why) == 2
    assert all(sum(f":tree), entry {entry}" in line for line in result.why) <= 1 for _, entry in bad)
    again = engine.diagnose.nan_batch(config, overrides=[result.exclude], output=tmp_path / "n.npz")
    assert not again.breaks_training


def test_more_bad_events_than_are_tried_together_are_named_in_one_search(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those of the first few that were tried together stood in the list, so that it took a search for each few."""
    bad = [(file, entry) for file in (0, 1) for entry in range(2, 6)]
    directory = poisoned({(*place, "npho", 321): -1e37 for place in bad})
    config = write_config(train=directory, normalization={"npho_scheme": "linear", "npho_scale": 1.0})
    result = engine.diagnose.nan_batch(config, output=tmp_path / "m.npz")
    wanted = sorted(f"{directory}/train_{file:03d}.root:tree:{entry}" for file, entry in bad)
    assert sorted(yaml.safe_load(result.exclude.partition("=")[2])) == wanted
    assert not any("there may be more" in line for line in result.why)
    monkeypatch.setattr("xectool.probes.nonfinite.search.MOST_NAMED", 3)
    result = engine.diagnose.nan_batch(config, full=True, output=tmp_path / "m.npz")
    assert 3 <= len(yaml.safe_load(result.exclude.partition("=")[2])) < len(bad)
    assert any(line.startswith("there may be more: no further event was tried once ") for line in result.why)

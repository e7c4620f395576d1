"""Rules on local files: overlap, inputs, starting checkpoint, run directory, free space."""

from __future__ import annotations

import os
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from xectool.config.inputs import expand_inputs
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.config.rules.disk import disk_rules
from xectool.config.rules.path import PATH_RULES, network_rules, overlap_rules, path_rules
from xectool.errors import DataFileError
from xectool.findings import Finding, Report, Severity


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    data = {"train_path": str(tmp_path / "train.root"), "val_path": str(tmp_path / "val.root")}
    data |= changes.pop("data", {})
    checkpoint = {"save_dir": str(tmp_path / "runs")} | changes.pop("checkpoint", {})
    tasks = {"energy": {"enabled": True, "scale": "auto"}}
    return config_from_dict(
        {"kind": "regressor", "data": data, "checkpoint": checkpoint, "tasks": tasks, **changes}, "x"
    )


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    for name in ("train.root", "val.root"):
        (tmp_path / name).write_bytes(b"root")
    return tmp_path


def codes(report: Report) -> list[tuple[str, str]]:
    return [(found.code, found.where) for found in report]


def test_existing_inputs_and_a_new_directory_are_fine(inputs: Path) -> None:
    assert codes(path_rules(config(inputs))) == []


@pytest.mark.parametrize("spec", ["val.root", "../{name}/val.root", "*.root", ".", "@list.txt", "val.root:tree"])
def test_a_shared_file_is_found_however_it_is_written(spec: str, inputs: Path) -> None:
    (inputs / "list.txt").write_text("# validation\n" + str(inputs / "val.root") + "\n")
    path = str(inputs / spec.format(name=inputs.name)) if not spec.startswith("@") else f"@{inputs / spec[1:]}"
    (found,) = overlap_rules(config(inputs, data={"train_path": path}))
    assert (found.code, found.severity, found.where) == ("CFG-37", Severity.ERROR, "data.val_path")
    assert "overlap" in found.problem
    assert "data.allow_overlap: true" in found.fix


@pytest.mark.parametrize("tree", ["tree", "sub/tree"])
def test_two_trees_of_one_file_are_two_samples(tree: str, inputs: Path) -> None:
    file = inputs / "train.root"
    for val, told in (("val", 0), ("sub/val", 0), (tree, 1)):
        data = {"train_path": f"{file}:{tree}", "val_path": f"{file}:{val}"}
        assert [code for code, _ in codes(path_rules(config(inputs, data=data)))] == ["CFG-37"] * told
    named = {"train_path": f"{file}:{tree}", "val_path": str(file), "tree_name": tree}
    assert overlap_rules(config(inputs, data=named)).errors, "the tree that is named by its key is the same one"


def test_the_rules_find_every_file_that_is_read(inputs: Path) -> None:
    """Deep globs and lists whose files lie beside them were refused, and missing files of a list passed."""
    (inputs / "a" / "b").mkdir(parents=True)
    for name in ("train.root", "val.root"):
        (inputs / name).rename(inputs / "a" / "b" / name)
    (inputs / "a" / "val.txt").write_text("b/val.root:sub/tree   # beside the list\nroot://host//x.root\n")
    data = {"train_path": f"{inputs}/**/train.root:sub/tree", "val_path": f"@{inputs}/a/val.txt"}
    assert codes(path_rules(config(inputs, data=data))) == []
    (inputs / "a" / "b" / "val.root").unlink()
    (found,) = path_rules(config(inputs, data=data))
    assert (found.code, found.where) == ("CFG-38", "data.val_path")
    assert "b/val.root' does not exist" in found.problem


def test_an_event_that_is_of_no_file_is_told_before_the_training_where_the_files_are_there(inputs: Path) -> None:
    """`config check` and `submit` called it sound, and the job was refused."""
    data = {"train_path": str(inputs / "train.root"), "val_path": str(inputs / "val.root")}
    assert codes(path_rules(config(inputs, data=data | {"exclude": ["train.root:3"]}))) == []
    (found,) = path_rules(config(inputs, data=data | {"exclude": ["trian.root:3"]}))
    assert (found.code, found.where) == ("CFG-38", "data.exclude")
    assert found.fix == f"--set 'data.exclude=[{inputs}/train.root:3]'"
    (inputs / "val.root").unlink()
    (found,) = path_rules(config(inputs, data=data | {"exclude": ["val.root:3"]}))
    assert found.where == "data.val_path"


def test_a_list_without_its_sign_leads_to_a_line_that_yaml_takes(inputs: Path) -> None:
    """YAML refuses ``@`` without quotes."""
    (inputs / "list.txt").write_text("train.root\n")
    (found,) = path_rules(config(inputs, data={"train_path": f"{inputs}/list.txt"}))
    assert found.fix.endswith(f"data.train_path: '@{inputs}/list.txt'")


def test_a_link_to_a_training_file_is_an_overlap(inputs: Path) -> None:
    (inputs / "other.root").symlink_to(inputs / "train.root")
    assert overlap_rules(config(inputs, data={"val_path": str(inputs / "other.root")})).errors


def test_overlap_is_a_warning_where_it_is_allowed(inputs: Path) -> None:
    same = str(inputs / "train.root")
    (found,) = overlap_rules(config(inputs, data={"val_path": same, "allow_overlap": True}))
    assert found.severity is Severity.WARNING


def test_equal_paths_overlap_even_where_they_do_not_exist(tmp_path: Path) -> None:
    same = "/cluster/data/all.root"
    assert overlap_rules(config(tmp_path, data={"train_path": same, "val_path": same})).errors


def test_numbered_files_of_a_name_are_meant_together(tmp_path: Path) -> None:
    for name in ("events_000", "events_001", "run1", "own_1", "own_old"):
        (tmp_path / f"{name}.root").touch()
    for asked, meant in (("events", "events_*"), ("run", "run1"), ("own", "own_1")):
        found, *_ = path_rules(config(tmp_path, data={"train_path": str(tmp_path / f"{asked}.root")})).errors
        assert found.fix == f"data.train_path: {tmp_path}/{meant}.root", found.problem


def test_empty_paths_do_not_overlap(tmp_path: Path) -> None:
    assert codes(overlap_rules(config(tmp_path, data={"train_path": "", "val_path": ""}))) == []


@pytest.mark.parametrize(
    ("spec", "problem", "fix"),
    [
        ("trian.root", "did you mean 'train.root'?", "data.train_path: {inputs}/train.root"),
        ("trian.root:hits", "did you mean 'train.root'?", "data.train_path: {inputs}/train.root:hits"),
        ("trian.root:sub/hits", "did you mean 'train.root'?", "data.train_path: {inputs}/train.root:sub/hits"),
        ("train.roott:sub/hits", "did you mean 'train.root'?", "data.train_path: {inputs}/train.root:sub/hits"),
        ("train.roott:hits", "did you mean 'train.root'?", "data.train_path: {inputs}/train.root:hits"),
        (
            "*.quantum",
            "no files match",
            "xectool explain CFG-38   # DIR is where they lie: --set 'data.train_path=DIR/*.root'",
        ),
        (
            "nodes.txt",
            "no files match",
            "# DIR is where they lie: --set 'data.train_path=DIR/*.root'",
        ),  # notes.txt is there, and no ROOT file
        ("notes.txt", "is not a .root file", "give .root files"),
        ("", "data.train_path is empty: no files match", "--set 'data.train_path=DIR/*.root'"),
    ],
)
def test_an_input_that_cannot_be_read_is_named(spec: str, problem: str, fix: str, inputs: Path) -> None:
    (inputs / "notes.txt").write_text("no events")
    path = str(inputs / spec) if spec else ""
    (found,) = path_rules(config(inputs, data={"train_path": path}))
    assert (found.code, found.where) == ("CFG-38", "data.train_path")
    assert problem in found.problem
    assert fix.format(inputs=inputs) in found.fix


def test_the_inputs_of_a_list_that_are_not_there_have_one_line_with_the_whole_list(inputs: Path) -> None:
    """Each had a line of its own with one file, and the last one that was pasted undid the others."""
    for name in ("a_1", "a_2", "here"):
        (inputs / f"{name}.root").write_bytes(b"root")
    lost = [str(inputs / name) for name in ("aa_1.root", "here.root", "aa_2.root:sev")]
    found = list(path_rules(config(inputs, data={"train_path": lost})))
    assert [item.where for item in found] == ["data.train_path"] * 2
    (line,) = {item.fix for item in found}
    mended = yaml.safe_load(line.removeprefix("data.train_path: "))
    assert mended == [str(inputs / name) for name in ("a_1.root", "here.root", "a_2.root:sev")]
    assert codes(path_rules(config(inputs, data={"train_path": mended}))) == []
    unknown = [*lost, "/nowhere/quite/else.root"]
    *_, last = path_rules(config(inputs, data={"train_path": unknown}))
    command, _, words = last.fix.partition("   # DIR is where they lie: --set ")
    assert command == "xectool explain CFG-38"
    (setting,) = shlex.split(words)
    assert yaml.safe_load(setting.partition("=")[2]) == [*mended, "DIR/else.root"]
    gone = [f"/nowhere/quite/{name}.root" for name in range(20)]
    assert "--set 'data.train_path=DIR/*.root'" in path_rules(config(inputs, data={"train_path": gone})).errors[0].fix


def test_the_data_of_a_run_that_came_from_another_machine_are_found_below_the_working_directory(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line had a word to fill in, where the project was copied with its data."""
    place, work = inputs / "project/data/run 3", inputs / "project/configs"
    for directory in (place, work):
        directory.mkdir(parents=True)
    for name in ("train_0", "train_1"):
        (place / f"{name}.root").write_bytes(b"root")

    def fix(path: str) -> str:
        return next(iter(path_rules(config(inputs, data={"train_path": path})))).fix

    for there in (inputs / "project", work):
        monkeypatch.chdir(there)
        assert fix("/home/alice/project/data/run 3/train_0.root:sev") == f"data.train_path: {place}/train_0.root:sev"
        assert fix("/scratch/data/run 3/train_*.root") == f"data.train_path: {place}/train_*.root"
        assert fix("/scratch/data/run 3") == f"data.train_path: {place}"
    monkeypatch.chdir(place)
    assert fix("/scratch/elsewhere/train_1.root") == f"data.train_path: {place}/train_1.root"
    for nowhere in ("/scratch/else/train_7.root", "/scratch/else/*.root", "/scratch/**/train_0.root"):
        assert fix(nowhere).startswith("xectool explain CFG-38   # DIR is where they lie: ")
    monkeypatch.chdir(work)
    assert "DIR" in fix("/scratch/train_0.root"), "a name alone is not looked for above"


def test_data_whose_directory_was_renamed_are_found_where_one_has_them(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lay one directory away, and the line had a word to fill in."""
    monkeypatch.chdir(inputs)

    def fix(path: str) -> str:
        return next(iter(path_rules(config(inputs, data={"train_path": path})))).fix

    (inputs / "data_moved").mkdir()
    (inputs / "data_moved/train_0.root").write_bytes(b"root")
    assert fix("data/train_0.root:sev") == "data.train_path: data_moved/train_0.root:sev"
    assert fix(f"{inputs}/data/train_*.root") == f"data.train_path: {inputs}/data_moved/train_*.root"
    assert "DIR" in fix("data/train_1.root"), "no directory has it"
    (inputs / "another").mkdir()
    (inputs / "another/train_0.root").write_bytes(b"root")
    assert "DIR" in fix("data/train_0.root"), "two have"
    assert "DIR" in fix("data_moved/sub/train_0.root"), "nothing is beside that directory"


def test_the_other_sample_in_a_directory_of_its_own_is_not_where_the_data_went(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ``train/`` and ``val/`` the one was proposed for the other, and then refused: it is the other sample."""
    monkeypatch.chdir(inputs)
    (inputs / "val").mkdir()
    (inputs / "val/s.root").write_bytes(b"root")

    def told(path: str) -> tuple[str, str]:
        (found,) = path_rules(config(inputs, data={"train_path": path, "val_path": path.replace("train/", "val/")}))
        return found.problem, found.fix

    for path in ("train/s.root", "train/*.root"):
        problem, fix = told(path)
        assert "(a relative path begins in the working directory)" in problem
        assert fix.startswith("xectool explain CFG-38   # DIR is where they lie: ")
    (inputs / "train_moved").mkdir()
    (inputs / "train_moved/s.root").write_bytes(b"root")
    assert told("train/s.root")[1] == "data.train_path: train_moved/s.root"


def test_a_relative_input_that_is_not_there_tells_where_it_begins(inputs: Path) -> None:
    (found,) = path_rules(config(inputs, data={"train_path": "no/such.root"}))
    assert "working directory" in found.problem


def test_remote_inputs_are_not_opened(inputs: Path) -> None:
    data = {"train_path": "root://host//a.root", "val_path": ["https://host/b.root", str(inputs / "val.root")]}
    assert codes(path_rules(config(inputs, data=data))) == []


def test_a_missing_checkpoint_is_named(inputs: Path) -> None:
    (inputs / "checkpoint_last.pt").write_bytes(b"x")
    changes = {"resume_from": str(inputs / "checkpoint_lst.pt")}
    (found,) = path_rules(config(inputs, checkpoint=changes))
    assert (found.code, found.where) == ("CFG-45", "checkpoint.resume_from")
    assert found.fix == f"checkpoint.resume_from: {inputs / 'checkpoint_last.pt'}"


def test_where_no_name_is_near_the_checkpoints_around_are_offered_and_only_then_new_weights(inputs: Path) -> None:
    """The line to paste dropped the fine-tuning where the run beside it had what was meant."""
    folder = inputs / "a/b/gone"

    def fix() -> str:
        (found,) = path_rules(config(inputs, checkpoint={"init_from": str(folder / "reg_nothere.pth")}))
        return found.fix

    assert fix() == "checkpoint.init_from: null   # starts from new weights", "there is none, and that is told"
    run = inputs / "runs/mae/checkpoint_last.pt"
    run.parent.mkdir(parents=True)
    run.write_bytes(b"x")
    assert fix() == f"checkpoint.init_from: {run}", "where this configuration keeps its runs"
    sibling = inputs / "a/b/pretraining/checkpoint_best.pt"
    sibling.parent.mkdir(parents=True)
    sibling.write_bytes(b"x")
    assert fix() == f"checkpoint.init_from: {sibling}   # or {run}"


def test_a_run_of_another_kind_is_not_offered_to_be_resumed(inputs: Path) -> None:
    """The newest checkpoint was, whatever it was of, and the line was refused in turn."""
    gone = str(inputs / "runs/gone/checkpoint_last.pt")
    for number, (run, kind) in enumerate({"first": "regressor", "second": "mae"}.items()):
        (inputs / "runs" / run).mkdir(parents=True)
        (inputs / "runs" / run / "config.yaml").write_text(f"kind: {kind}\ndata:\n  kind: inpainter\n")
        (inputs / "runs" / run / "checkpoint_last.pt").write_bytes(b"x")
        os.utime(inputs / "runs" / run / "checkpoint_last.pt", (number, number))
    for start, fix in (
        ({"resume_from": gone}, f"{inputs}/runs/first/checkpoint_last.pt"),
        ({"init_from": gone}, f"{inputs}/runs/second/checkpoint_last.pt   # or {inputs}/runs/first/checkpoint_last.pt"),
    ):
        (found,) = path_rules(config(inputs, checkpoint=start))
        assert found.fix == f"checkpoint.{next(iter(start))}: {fix}", "an encoder is lent to another kind"


def test_a_frozen_encoder_is_not_led_to_new_weights(inputs: Path) -> None:
    """A configuration of another machine names a path that is gone; from new weights its encoder never learns."""
    files = {"train_path": str(inputs / "train.root"), "val_path": str(inputs / "val.root")}
    start = {"save_dir": str(inputs / "runs"), "init_from": str(inputs / "a/b/elsewhere/mae.pth")}
    for frozen, fix in ((True, "xectool explain CFG-45   # "), (False, "checkpoint.init_from: null ")):
        values = {"kind": "inpainter", "data": files, "checkpoint": start, "model": {"freeze_encoder": frozen}}
        (found,) = path_rules(config_from_dict(values, "x"))
        assert found.fix.startswith(fix)


@pytest.mark.parametrize("between", [",", ", ", ";", " "])
def test_several_files_in_one_text_are_told_as_a_list(inputs: Path, between: str) -> None:
    """They were one name that is not there, and the line to paste asked for a path."""
    (inputs / "more.root").write_bytes(b"root")
    both = [str(inputs / name) for name in ("train.root", "more.root")]
    (found,) = path_rules(config(inputs, data={"train_path": between.join(both)}))
    assert "is read as one name, several files are a list" in found.problem
    assert found.fix == f"data.train_path: [{', '.join(both)}]"
    trees = [f"{path}:sev" for path in both]
    (found,) = path_rules(config(inputs, data={"train_path": between.join(trees)}))
    assert yaml.safe_load(found.fix.partition(": ")[2]) == trees
    assert codes(path_rules(config(inputs, data={"train_path": both}))) == []
    with pytest.raises(DataFileError, match="it is read as one name") as caught:
        expand_inputs(between.join(both))
    assert caught.value.fix == f"give each as a word: {' '.join(both)}"
    odd = str(inputs / f"a{between}b.root")
    Path(odd).write_bytes(b"root")
    assert codes(path_rules(config(inputs, data={"train_path": odd}))) == []


def test_a_space_in_a_misspelt_name_is_no_list(inputs: Path) -> None:
    """Beside a directory `data` the advice for `data set/train.root` was the list of `data` and `set/train.root`."""
    for name in ("data", "data set"):
        (inputs / name).mkdir()
        (inputs / name / "train_0.root").write_bytes(b"root")
    spec = str(inputs / "data set" / "train.root")
    (found,) = path_rules(config(inputs, data={"train_path": spec}))
    assert "train_0.root" in found.fix
    with pytest.raises(DataFileError, match="does not exist") as caught:
        expand_inputs(spec)
    assert "train_0.root" in caught.value.fix
    assert "one name" not in str(caught.value)


def test_a_missing_file_of_sensor_positions_is_found_before_the_data_is_opened(inputs: Path) -> None:
    """`config check --deep` called it sound, and `train` told of it when it had opened all files."""
    files = {"train_path": str(inputs / "train.root"), "val_path": str(inputs / "val.root")}

    def found(name: str, head: str = "cross_attention") -> list[Finding]:
        model = {"head_type": head, "sensor_positions_file": str(inputs / name), "freeze_encoder": False}
        values = {"kind": "inpainter", "data": files, "model": model, "checkpoint": {"save_dir": str(inputs / "runs")}}
        read = config_from_dict(values, "x")
        assert [item.code for item in network_rules(read)] == [item.code for item in path_rules(read)]
        return list(path_rules(read))

    (missing,) = found("elsewhere.txt")
    assert (missing.code, missing.where) == ("CFG-66", "model.sensor_positions_file")
    assert missing.fix.startswith("model.sensor_positions_file: null ")
    (inputs / "positions.txt").touch()
    (inputs / "position.log").touch()
    (misspelt,) = found("position.txt")
    assert misspelt.fix == f"model.sensor_positions_file: {inputs / 'positions.txt'}"
    assert found("positions.txt") == found("elsewhere.txt", head="per_face") == []


def test_resuming_automatically_needs_no_file(inputs: Path) -> None:
    assert codes(path_rules(config(inputs, checkpoint={"resume_from": "auto"}))) == []
    begun = config(inputs, checkpoint={"init_from": str(inputs / "gone.pt")})  # read once, when the run was new
    assert codes(path_rules(begun)) == [("CFG-45", "checkpoint.init_from")]
    assert codes(path_rules(begun, resuming=True)) == []


def test_a_scripted_model_is_no_checkpoint(inputs: Path) -> None:
    with zipfile.ZipFile(inputs / "m.pt", "w") as archive:
        archive.writestr("m/code/model.py", "")
    (found,) = path_rules(config(inputs, checkpoint={"init_from": str(inputs / "m.pt")}))
    assert "TorchScript" in found.problem


def test_a_run_is_not_overwritten_by_accident(inputs: Path) -> None:
    (inputs / "runs" / "first").mkdir(parents=True)
    (inputs / "runs" / "first" / "config.yaml").write_text("kind: mae")
    named = {"mlflow": {"run_name": "first"}}
    (found,) = path_rules(config(inputs, **named))
    assert found.code == "CFG-53"
    assert shlex.split(found.fix, comments=True) == ["--resume", "auto"]  # pasted behind the command, it is enough
    assert "--set checkpoint.overwrite=true" in found.fix
    assert codes(path_rules(config(inputs, **named), resuming=True)) == []
    assert codes(path_rules(config(inputs, **named, checkpoint={"overwrite": True}))) == []
    assert codes(path_rules(config(inputs, mlflow={"run_name": "second"}))) == []


def test_a_full_disk_is_found_before_training(inputs: Path) -> None:
    (found,) = disk_rules(config(inputs), checkpoint_bytes=10**18)
    assert "free disk" in found.problem
    assert "3 checkpoints" in found.problem
    assert codes(disk_rules(config(inputs), checkpoint_bytes=1)) == []


def test_every_path_rule_has_a_code_and_a_title() -> None:
    assert {rule.code for rule in PATH_RULES} == {"CFG-37", "CFG-38", "CFG-45", "CFG-53", "CFG-66"}
    assert all(rule.title for rule in PATH_RULES)


def test_the_pattern_of_a_series_has_its_root_files_and_no_others(tmp_path: Path) -> None:
    """A missing train beside train_1.txt was answered with train_*; a name with brackets, with a pattern of others."""
    for name in ("train_1.txt", "train_2.txt", "y[a]_1.root", "y[a]_2.root", "val.root"):
        (tmp_path / name).write_bytes(b"root")
    said = {
        name: next(iter(path_rules(config(tmp_path, data={"train_path": str(tmp_path / name)})))).fix
        for name in ("train", "y[a].root")
    }
    assert "train_*" not in said["train"], said
    assert said["y[a].root"].startswith("data.train_path: "), said
    pattern = said["y[a].root"].removeprefix("data.train_path: ").strip("'")
    assert sorted(expand_inputs(pattern)) == [str(tmp_path / f"y[a]_{number}.root") for number in (1, 2)]


def test_no_file_is_proposed_for_both_samples(tmp_path: Path) -> None:
    """Following both lines led from CFG-38 to CFG-37."""
    data = {"train_path": str(tmp_path / "synth_train.root"), "val_path": str(tmp_path / "synth_val.root")}
    (tmp_path / "synth_tiny.root").touch()
    train, val = path_rules(config(tmp_path, data=data)).errors
    assert train.fix == f"data.train_path: {tmp_path}/synth_tiny.root"
    assert "synth_tiny.root is the other sample, a second file is needed" in val.problem
    assert val.fix.startswith(f"xectool simulate {tmp_path}/synth_val.root ")
    (tmp_path / "synth_small.root").touch()
    train, val = path_rules(config(tmp_path, data=data)).errors
    lines = dict(found.fix.removeprefix("data.").split(": ") for found in (train, val))
    assert codes(path_rules(config(tmp_path, data=data | lines))) == []
    (tmp_path / "synth_small.root").unlink()
    for name, other in (("train_path", "val_path"), ("val_path", "train_path")):
        given = data | {other: str(tmp_path / "synth_tiny.root")}
        (found,) = path_rules(config(tmp_path, data=given)).errors
        assert found.where == f"data.{name}"
        assert "a second file is needed" in found.problem
        (found,) = path_rules(config(tmp_path, data=given | {"allow_overlap": True})).errors
        assert found.fix == f"data.{name}: {tmp_path}/synth_tiny.root", "the control"

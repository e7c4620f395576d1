"""A command that names a checkpoint which is not there: the same line with one that is."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool.checkpoint.missing import missing_checkpoint
from xectool.config.load import config_from_dict
from xectool.runlog.run_dirs import LISTING

Run = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two runs in ./artifacts whose checkpoints are empty files."""
    place = tmp_path / "far/from/home"
    for name, time_s in (("first/checkpoint_last.pt", 10), ("new one/checkpoint_best.pt", 20)):
        file = place / "artifacts" / name
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (time_s, time_s))
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize(
    "argv",
    [
        ("inspect-ckpt", "artifacts/gone/checkpoint_best.pt"),
        ("predict", "artifacts/gone/checkpoint_best.pt", "VAL", "--output=p.root"),
        ("export", "checkpoint_best.pt", "--to", "onnx"),
        ("export", "artifacts/gone/../gone.pt", "--to=onnx"),
        ("lr-sweep", "CONFIG", "--ckpt", "artifacts/gone/checkpoint_best.pt", "--steps=5"),
        ("lr-sweep", "CONFIG", "--ckpt=artifacts/gone/checkpoint_best.pt", "--steps=5"),
        ("train", "CONFIG", "--resume", "artifacts/gone/checkpoint_last.pt"),
        ("train", "CONFIG", "--resume=artifacts/gone/checkpoint_last.pt"),
        ("train", "CONFIG", "--set", "checkpoint.resume_from='artifacts/gone/checkpoint_last.pt'"),
        (
            "submit",
            "CONFIG",
            "--partition=p",
            "--time=01:00:00",
            "--gpus=0",
            "--dry-run",
            "--resume",
            "artifacts/gone/checkpoint_last.pt",
        ),
    ],
    ids=lambda argv: " ".join(argv[:1] + argv[2:3]),
)
def test_the_line_comes_back_with_the_newest_that_is_there(
    argv: tuple[str, ...], xectool: Run, files: Path, runs: Path
) -> None:
    argv = tuple({"CONFIG": f"{files}/config.yaml", "VAL": f"{files}/val.root"}.get(word, word) for word in argv)
    argv += ("--set", "mlflow.run_name=fresh") if argv[0] in ("train", "submit") else ()
    outcome = xectool(*argv, "--json")
    assert outcome.code == 2
    (found,) = [item for item in outcome.document["findings"] if "no such checkpoint" in item["problem"]]
    there = runs / "artifacts/new one/checkpoint_best.pt"
    words = shlex.split(found["fix"], comments=True)
    others = found["fix"].partition("   # or ")[2].split(", ")  # those of the configuration's own runs come last
    assert others[0].endswith("artifacts/first/checkpoint_last.pt")
    if found["code"] == "CFG-45":  # a setting is told as one
        assert words[:1] == ["--set"] or words[:1] == ["checkpoint.resume_from:"]
    elif argv[0] == "submit":  # the empty file is refused too, and the line stands behind both
        assert words == ["--resume", "artifacts/new one/checkpoint_best.pt"]
        assert "'artifacts/new one/checkpoint_best.pt'" in outcome.document["findings"][-1]["fix"]
    else:
        assert found["code"] == "XT-CKPT-MISSING"
        given = ["xectool", *argv, "--json"]
        changed = [(before, after) for before, after in zip(given, words, strict=True) if before != after]
        assert len(changed) == 1, "one word, and the others as they were"
        assert Path(changed[0][1].rpartition("=")[2]).resolve() == there.resolve()


@pytest.mark.parametrize("argv", [("--resume", "gone/checkpoint_last.pt"), ("--resume", "gone")], ids=" ".join)
def test_a_resume_is_given_a_run_of_its_kind_from_where_the_configuration_has_its_runs(
    argv: tuple[str, ...], xectool: Run, files: Path, runs: Path
) -> None:
    """The newest of ./artifacts was proposed, whose network was another one, and refused."""
    for name, kind in (("other", "mae"), ("own", "regressor")):
        (runs / f"mine/{name}").mkdir(parents=True)
        (runs / f"mine/{name}/config.yaml").write_text(f"kind: {kind}\n")
        (runs / f"mine/{name}/checkpoint_last.pt").touch()
    outcome = xectool("train", files / "config.yaml", *argv, "--set", "checkpoint.save_dir=mine", "--json")
    (found,) = outcome.document["findings"]
    assert (outcome.code, found["code"]) == (2, "XT-CKPT-MISSING")
    assert "mine/own/checkpoint_last.pt" in shlex.split(found["fix"], comments=True)
    assert "other" not in found["fix"]


@pytest.mark.parametrize("named", ["artifacts/first/checkpoint_lst.pt", "artifacts/frst/checkpoint_last.pt", "gone.pt"])
def test_a_near_name_of_another_kind_hides_no_run_that_can_go_on(
    named: str, xectool: Run, files: Path, runs: Path
) -> None:
    """What was near was looked at alone, refused for its kind, and nothing was left."""
    (runs / "artifacts/first/config.yaml").write_text("kind: mae\n")
    line = ("train", files / "config.yaml", "--run-name", "fresh", "--set", "checkpoint.save_dir=artifacts")
    (found,) = xectool(*line, "--resume", named, "--json").document["findings"]
    assert "artifacts/new one/checkpoint_best.pt" in shlex.split(found["fix"], comments=True)


@pytest.mark.parametrize("given", [(), ("--set", "checkpoint.overwrite=true"), ("--run-name", "fresh")], ids=" ".join)
def test_the_run_of_the_name_that_is_asked_for_goes_on_where_it_has_begun(
    given: tuple[str, ...], xectool: Run, files: Path, runs: Path
) -> None:
    """The newest was proposed, and refused: the directory held the checkpoints of another run."""
    line = ("train", files / "config.yaml", "--resume", "gone.pt", "--set", "checkpoint.save_dir=artifacts", *given)
    (found,) = xectool(*line, "--json").document["findings"]
    proposed = shlex.split(found["fix"], comments=True)[4]
    assert proposed == f"artifacts/{'new one/checkpoint_best' if given else 'first/checkpoint_last'}.pt"


def test_where_no_run_can_go_on_those_of_the_configuration_are_listed(xectool: Run, files: Path, runs: Path) -> None:
    (runs / "mine").mkdir()
    line = ("train", files / "config.yaml", "--resume", "gone.pt", "--set", "checkpoint.save_dir=mine", "--json")
    (found,) = xectool(*line).document["findings"]
    assert found["fix"] == "xectool runs --root mine   # lists them"


@pytest.mark.parametrize(
    "named", [("--run-name", "gone"), ("--run-name=gone",), ("--set", "mlflow.run_name=gone")], ids=" ".join
)
def test_the_name_of_a_run_is_no_checkpoint_that_was_meant(
    named: tuple[str, ...], xectool: Run, files: Path, runs: Path
) -> None:
    """Both words of the line became the path, which is no name."""
    line = ["train", str(files / "config.yaml"), *named, "--set=checkpoint.save_dir=artifacts", "--resume"]
    (found,) = xectool(*line, "gone", "--json").document["findings"]
    proposed = shlex.split(found["fix"], comments=True)
    assert proposed == ["xectool", *line, "artifacts/new one/checkpoint_best.pt", "--json"]


def test_what_an_export_left_in_the_directory_of_a_run_is_no_run_there(xectool: Run, files: Path, runs: Path) -> None:
    (runs / "artifacts/mine").mkdir()
    (runs / "artifacts/mine/checkpoint_best.safetensors").touch()
    line = ("train", files / "config.yaml", "--run-name", "mine", "--set", "checkpoint.save_dir=artifacts")
    (found,) = xectool(*line, "--resume", "gone.pt", "--json").document["findings"]
    assert "artifacts/new one/checkpoint_best.pt" in shlex.split(found["fix"], comments=True)


def test_a_name_of_any_letters_is_told_of(xectool: Run, files: Path, runs: Path) -> None:
    """YAML took half of a letter from what was written for it, and no file can be named so."""
    for name in ("run\U0001f600", "l\udcf6sung", "a/b"):
        for more, code in (("--resume=gone.pt", "XT-CKPT-MISSING"), ("--dry-run", "XT-USAGE")):
            outcome = xectool("train", files / "config.yaml", "--run-name", name, more, "--json")
            assert (outcome.code, outcome.document["findings"][0]["code"]) == (2, code)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_runs_that_may_not_be_looked_at_are_no_defect(tmp_path: Path) -> None:
    (tmp_path / "shut/runs").mkdir(parents=True)
    (tmp_path / "shut").chmod(0o600)
    values = {"kind": "regressor", "tasks": {"energy": {"enabled": True}}}
    config = config_from_dict({**values, "checkpoint": {"save_dir": str(tmp_path / "shut/runs")}}, "x")
    os.seteuid(65534)
    try:
        told = missing_checkpoint(Path("/nowhere/gone.pt"), resuming=config)
    finally:
        os.seteuid(0)
    assert (told.problem, told.fix) == ("no such checkpoint", LISTING)


def test_where_there_is_none_the_list_of_runs_is_named(
    xectool: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "far/from/all/runs"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    (found,) = xectool("inspect-ckpt", "gone.pt", "--json").document["findings"]
    assert (found["code"], found["fix"].startswith("xectool runs ")) == ("XT-CKPT-MISSING", True)

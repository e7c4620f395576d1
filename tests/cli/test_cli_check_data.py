"""``xectool check-data`` as a user runs it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot

CONTRACT_KEYS = {"files", "checks_run", "events_scanned", "events_per_s"}
FILE_KEYS = {"path", "tree", "events", "branches", "problems"}


def above_a_note(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for found in document["findings"] if found["severity"] != "info"]


def test_two_trees_of_one_file_are_two_samples(files: Path, tmp_path: Path, xectool: Callable[..., Any]) -> None:
    """They were files of the same content, in both samples (DAT-20)."""
    with uproot.recreate(tmp_path / "both.root") as file:
        for name in ("train", "val"):
            with uproot.open(f"{files / name}.root:tree") as tree:
                held = tree.arrays(library="np")
            file.mktree(name, {branch: (values.dtype, values.shape[1:]) for branch, values in held.items()})
            file[name].extend(held)
    both = tmp_path / "both.root"
    for val, looked, told in (
        ("val", ("train",), 0),
        ("val", ("val",), 0),
        ("val", ("train", "val"), 0),
        ("train", ("train",), 1),
    ):
        paths = ("--set", f"data.train_path={both}:train", "--set", f"data.val_path={both}:{val}")
        data = [f"{both}:{tree}" for tree in looked]
        run = xectool("check-data", *data, "--config", files / "config.yaml", *paths, "--json")
        found = [item for item in run.document["findings"] if item["code"] == "DAT-20"]
        assert [item["where"] for item in found] == [f"{both}:train"] * told


def test_a_copy_in_another_tree_of_the_file_is_told_with_its_tree(
    files: Path, tmp_path: Path, xectool: Callable[..., Any]
) -> None:
    """Evidence was that an entry repeats itself."""
    with uproot.recreate(tmp_path / "both.root") as file, uproot.open(f"{files / 'val'}.root:tree") as tree:
        held = tree.arrays(library="np")
        file["one"], file["other"] = held, held
    both = tmp_path / "both.root"
    run = xectool("check-data", f"{both}:one", f"{both}:other", "--json")
    (found,) = [item for item in run.document["findings"] if item["code"] == "DAT-19"]
    first = found["evidence"][0]
    assert first.startswith(f"{both}:other entry ")
    assert f" repeats {both}:one entry " in first
    problems = {item["tree"]: len(item["problems"]) for item in run.document["result"]["files"]}
    assert problems == {"one": 0, "other": 1}


def test_help_names_every_option(xectool: Callable[..., Any]) -> None:
    out = xectool("check-data", "--help").out
    words = ("--config", "--set", "--deep", "--max-events", "--plots", "--against", "--write-digest", "--json")
    assert [word for word in words if word not in out] == []


def test_good_files_are_good(files: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", files / "train.root", "--deep", "--json")
    result = run.document["result"]
    assert (run.code, run.document["status"], above_a_note(run.document)) == (0, "ok", [])
    assert result.keys() >= CONTRACT_KEYS
    assert (result["events_scanned"], result["events"], result["complete"]) == (24, 24, True)
    assert result["events_per_s"] > 0
    assert result["files"][0].keys() >= FILE_KEYS
    assert result["files"][0]["branches"]["npho"].startswith("float[4760]")
    assert {"DAT-01", "DAT-26"} <= set(result["checks_run"])
    assert set(result["checks_skipped"]) == {"DAT-15", "DAT-17", "DAT-18", "DAT-20", "DAT-22", "DAT-23", "DAT-24"}
    assert result["normalization"] == {"fits": True, "suggested": ""}


def test_people_read_tables_and_a_verdict(files: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", files / "train.root")
    assert (run.code, run.out) == (0, "")
    words = ("Verdict  good", "Why", "Next", "raw npho", "normalised time", "events/s", "sensors", "--deep")
    assert [word for word in words if word not in run.err] == []


def test_a_configuration_brings_its_plan_memory_and_validation_files(files: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", files / "train.root", "--config", files / "config.yaml", "--json")
    result = run.document["result"]
    assert run.code == 0, run.document["findings"]
    assert result["checks_skipped"] == {}
    assert sum(result["sharing"]["rank_events"]) == 24
    assert result["memory_bytes"]["shuffling window"] > 0
    assert result["disk_bytes"]["checkpoints"] > 0
    assert {item["quantity"] for item in result["likeness"]} >= {"npho inner", "time outer", "energy", "uvwFI[0]"}
    assert all(0 <= item["p_value"] <= 1 for item in result["likeness"])


def test_validation_files_that_are_gone_are_told_as_config_check_does_and_the_rest_is_checked(
    files: Path, xectool: Callable[..., Any]
) -> None:
    """The check ended with them, and beside --against nothing was said."""
    setting = ("--set", "data.val_path=data/elsewhere.root")
    words = ("--config", files / "config.yaml", *setting)
    run = xectool("check-data", files / "train.root", *words, "--json")
    (found,) = [item for item in run.document["findings"] if item["severity"] == "error"]
    same, *_ = xectool("config", "check", files / "config.yaml", "--deep", *setting, "--json").document["findings"]
    assert (run.code, found["code"], found) == (1, "CFG-38", same)
    assert run.document["result"]["events_scanned"] == 24
    assert "CFG-38" in run.document["result"]["why"][0]
    against = xectool("check-data", files / "train.root", *words, "--against", files / "val.root", "--json")
    assert (against.code, {**found, "severity": "warning"} in against.document["findings"]) == (0, True)


def test_of_several_validation_files_those_that_are_there_are_checked(files: Path, xectool: Callable[..., Any]) -> None:
    paths = f"data.val_path=[{files / 'val.root'}, data/elsewhere.root]"
    run = xectool("check-data", files / "train.root", "--config", files / "config.yaml", "--set", paths, "--json")
    assert run.code == 1
    assert run.document["result"]["likeness"]
    assert [item["code"] for item in run.document["findings"] if item["severity"] == "error"] == ["CFG-38"]


def test_the_disk_of_a_network_that_does_not_fit_the_memory_is_told_at_once(
    files: Path, xectool: Callable[..., Any]
) -> None:
    """Its weights were drawn to be counted: minutes, and 13 GB of memory."""
    began = time.process_time()
    words = ("--config", files / "config.yaml", "--set", "model.encoder_dim=16384")
    run = xectool("check-data", files / "train.root", *words, "--json")
    assert run.document["result"]["disk_bytes"]["checkpoints"] > 1e11
    assert time.process_time() - began < 60


def test_setting_a_key_changes_what_is_judged(files: Path, xectool: Callable[..., Any]) -> None:
    words = ("--config", files / "config.yaml", "--set", "data.npho_branch=nphoo", "--json")
    run = xectool("check-data", files / "train.root", *words)
    first = run.document["findings"][0]
    assert (run.code, run.document["status"], first["code"]) == (1, "bad", "DAT-04")
    assert "data.npho_branch=npho" in first["fix"]


def test_names_are_told_without_a_configuration_too(files: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", files / "train.root", "--set", "data.npho_branch=nphoo", "--json")
    assert (run.code, run.document["findings"][0]["code"]) == (1, "DAT-04")
    run = xectool("check-data", files / "train.root", "--set", "data.nphobranch=npho", "--json")
    assert (run.code, run.document["findings"][0]["code"]) == (2, "CFG-01")


def test_training_and_validation_on_the_same_file_is_bad(files: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", files / "train.root", "--against", files / "train.root", "--json")
    assert (run.code, run.document["findings"][0]["code"]) == (1, "DAT-20")
    next_line = run.document["result"]["next"]
    assert next_line.startswith(f"xectool check-data {files}/train.root --against PATH   # "), "it was no command"
    both = ["--against", files / "train.root", files / "val.root"]
    line = xectool("check-data", files / "train.root", *both, "--json").document["result"]["next"]
    assert line == f"xectool check-data {files}/train.root --against {files}/val.root   # without those in both"
    assert "DAT-20" not in [
        item["code"] for item in xectool(*shlex.split(line, comments=True)[1:], "--json").document["findings"]
    ]
    of_run = ["--config", files / "config.yaml", "--set", f"data.val_path={files}/train.root", "--json"]
    line = xectool("check-data", files / "train.root", *of_run).document["result"]["next"]
    assert line.startswith("xectool check-data ")
    assert " --set data.val_path=PATH   # " in line


@pytest.mark.parametrize(
    ("checked", "trained", "shared"),
    [(["val"], ["train"], False), (["train", "val"], ["train"], False), (["train", "val"], ["train", "val"], True)],
)
def test_a_validation_file_that_is_checked_itself_is_in_both_samples_only_where_it_is_trained_on(
    files: Path, xectool: Callable[..., Any], checked: list[str], trained: list[str], shared: bool
) -> None:
    named = [files / f"{name}.root" for name in checked]
    given = json.dumps([str(files / f"{name}.root") for name in trained])
    words = ["--config", files / "config.yaml", "--set", f"data.train_path={given}"]
    found = [item["code"] for item in xectool("check-data", *named, *words, "--json").document["findings"]]
    assert ("DAT-20" in found) == shared


@pytest.mark.parametrize("tree", ["", ":tree"])
def test_an_event_of_training_in_validation_is_told_where_both_are_checked(
    files: Path, tmp_path: Path, xectool: Callable[..., Any], tree: str
) -> None:
    with uproot.open(f"{files}/train.root:tree") as trained, uproot.open(f"{files}/val.root:tree") as validated:
        mine, theirs = trained.arrays(entry_stop=1, library="np"), validated.arrays(library="np")
    with uproot.recreate(tmp_path / "val.root") as file:
        file.mktree("tree", {name: (held.dtype, held.shape[1:]) for name, held in theirs.items()})
        file["tree"].extend({name: np.concatenate([held, mine[name]]) for name, held in theirs.items()})
    val = f"{tmp_path / 'val.root'}{tree}"
    words = ["--config", files / "config.yaml", "--set", f"data.val_path={tmp_path / 'val.root'}", "--json"]
    run = xectool("check-data", files / "train.root", val, *words)
    told = [item["problem"] for item in run.document["findings"] if item["code"] == "DAT-20"]
    assert (run.code, [text.startswith("validation shares 1 event with training") for text in told]) == (1, [True])
    assert "DAT-20" not in [item["code"] for item in xectool("check-data", val, *words).document["findings"]]


def test_bad_files_are_named_among_good_ones(files: Path, tmp_path: Path, xectool: Callable[..., Any]) -> None:
    cut = tmp_path / "cut.root"
    cut.write_bytes((files / "train.root").read_bytes()[:100_000])
    run = xectool("check-data", files / "val.root", cut, "--json")
    result = run.document["result"]
    assert run.code == 1
    assert [len(file["problems"]) for file in result["files"]] == [0, 1]
    assert result["files"][1]["problems"][0]["code"] == "DAT-01"
    assert "truncated" in result["files"][1]["problems"][0]["problem"]


def test_a_path_that_is_not_there_is_a_mistake_of_the_user(tmp_path: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", tmp_path / "none.root", "--json")
    assert (run.code, run.document["status"]) == (2, "error")
    assert xectool("check-data").code == 2
    assert xectool("check-data", tmp_path, "--max-events", "0", "--json").code == 2


def test_the_number_of_events_can_be_bounded(files: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", files / "train.root", "--max-events", "10", "--json")
    assert (run.document["result"]["events_scanned"], run.document["result"]["complete"]) == (10, False)


def test_plots_are_drawn(files: Path, tmp_path: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("check-data", files / "train.root", "--against", files / "val.root", "--plots", tmp_path, "--json")
    written = sorted(Path(path).name for path in run.document["result"]["plots"])
    assert written == ["readings.pdf", "readings.png", "sensor_health.pdf", "sensor_health.png"]
    assert (tmp_path / "sensor_health.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "sensor_health.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("content", [b"", b"<html>", b"version https://git-lfs.github.com/spec/v1\n", bytes(300)])
def test_what_is_no_data_gets_a_verdict(content: bytes, tmp_path: Path, xectool: Callable[..., Any]) -> None:
    path = tmp_path / "a.root"
    path.write_bytes(content)
    drawn = [] if content else ["--plots", tmp_path / "plots"]  # of nothing, whatever the file is instead
    run = xectool("check-data", path, "--deep", *drawn, "--json")
    assert (run.code, run.document["findings"][0]["code"]) == (1, "DAT-01")
    assert str(path) in run.document["findings"][0]["where"]

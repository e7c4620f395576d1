"""``xectool submit`` and the presets, as a user calls them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest


def test_a_rehearsal_prints_the_script_and_one_document(files: Path, xectool: Callable[..., object]) -> None:
    argv = ["submit", files / "config.yaml", "--partition", "p", "--time", "01:00:00", "--gpus", "0", "--dry-run"]
    done = xectool(*argv, "--requeue", "--set", "training.lr=1e-5")
    assert done.code == 0
    assert done.out.startswith("#!/bin/bash")
    assert "at most 10 requeues" in done.err
    assert "--set training.lr=1e-5" in done.err
    document = xectool(*argv, "--json").document
    assert document["status"] == "ok"
    assert document["result"]["run_name"] == "first"
    assert document["result"]["job_id"] is None
    assert "--no-requeue" in document["result"]["script"]


@pytest.mark.parametrize(("words", "gpus"), [((), 1), (("--set", "distributed.num_gpus=4"), 4), (("--gpus", "2"), 2)])
def test_a_job_asks_for_the_gpus_of_its_configuration(
    words: tuple[str, ...], gpus: int, files: Path, xectool: Callable[..., object]
) -> None:
    argv = ("submit", files / "config.yaml", "--partition", "p", "--time", "01:00:00", "--dry-run", "--json")
    found = xectool(*argv, *words).document["result"]
    assert found["ranks"] == gpus
    assert f"--gpus-per-node={gpus}\n" in found["script"]
    assert f"--nproc {gpus}" in found["command"]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--time", "01:00:00"], "XT-SUBMIT-REQUEST"),
        ([], "XT-SUBMIT-REQUEST"),
        (["--partition", "p", "--time", "1h"], "XT-SUBMIT-TIME"),
    ],
)
def test_what_is_missing_is_said_with_exit_code_2(
    argv: list[str], code: str, files: Path, xectool: Callable[..., object]
) -> None:
    done = xectool("submit", files / "config.yaml", *argv, "--json")
    assert done.code == 2
    assert done.document["findings"][0]["code"] == code


def test_the_presets_are_listed(xectool: Callable[..., object]) -> None:
    assert {"cpu", "a100", "gh200"} <= set(
        xectool("config", "init", "--list-presets", "--json").document["result"]["presets"]
    )
    assert "Grace-Hopper" in xectool("config", "init", "--list-presets").out


def test_the_manifest_states_what_changes_the_numbers(files: Path, xectool: Callable[..., object]) -> None:
    from xectool.runlog.manifest import read_manifest

    settings = ["--set", "training.deterministic=true", "--set", "checkpoint.save_artifacts=false"]
    name = ["--run-name", "stated", "--max-steps", "1"]
    assert xectool("train", files / "config.yaml", *name, *settings).code == 0
    extra = read_manifest(files / "runs" / "stated")["attempts"][0]["extra"]
    assert extra["numerics"]["deterministic_algorithms"] is True
    assert {"cudnn_tf32", "matmul_tf32", "cudnn_benchmark", "cudnn", "matmul_precision"} <= set(extra["numerics"])


def test_everything_that_speaks_against_a_job_is_told_at_once_with_one_line(
    files: Path, xectool: Callable[..., object], tmp_path: Path
) -> None:
    """Each refusal hid the next: four starts for four mistakes."""
    broken = tmp_path / "a run.yaml"
    text = (files / "config.yaml").read_text().replace("batch_size: 8", "batch_size: 0")
    broken.write_text(text.replace(f"val_path: {files}/val.root", f"val_path: {files}/vall.root"))
    argv = ["submit", str(broken), "--time=12:00", "--mem", "lots", "--partition", "p", "--dry-run"]
    settings = ["--set", "training.lr=1e-5"]
    done = xectool(*argv, *settings, "--json")
    assert done.code == 2
    *errors, line = done.document["findings"]
    assert {found["where"].rpartition("(")[2].rstrip(")") for found in errors} == {
        "--time", "--mem", "data.batch_size", "data.val_path",
    }  # fmt: skip
    assert (line["code"], line["severity"]) == ("XT-SUBMIT-LINE", "info")
    assert line["problem"] == "all of it can be mended on the command line"
    words = shlex.split(line["fix"])
    assert words[:3] == ["xectool", "submit", str(broken)]
    assert "--gpus" not in words, "none was given"
    assert words[words.index("--set") + 1] == "training.lr=1e-5", "what was typed stays"
    assert xectool(*words[1:]).code == 0, "the control: the line as it is pasted"


def test_the_line_that_shows_the_script_has_what_is_mended_beside_it(
    files: Path, xectool: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the time that was refused beside it, and was refused for it again."""
    monkeypatch.setenv("PATH", "/nowhere")
    typed = ["submit", files / "config.yaml", "--gpus", "0", "--time", "12:00", "--set", "training.lr=-1", "--json"]
    found = {item["where"]: item for item in xectool(*typed, "--partition", "p").document["findings"]}
    assert found["command line"]["problem"].endswith("what remains: XT-SUBMIT-SLURM (PATH)")
    words = shlex.split(found["PATH"]["fix"], comments=True)
    assert [word for word in words if word.startswith("training.lr=")] == [words[-2]], "once"
    assert ("12:00:00" in words, words[-1]) == (True, "--dry-run")
    done = xectool(*words[1:], "--json")
    assert (done.code, done.document["result"]["job_id"]) == (0, None), "the control: the line as it is pasted"


def test_no_line_shows_a_script_where_something_is_left_to_fill_in(
    files: Path, xectool: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for time in (["--time", "12:00"], ["--time", "12:00:00"]):
        run = xectool("submit", files / "config.yaml", "--gpus", "0", *time, "--json")
        found = {item["where"]: item for item in run.document["findings"]}
        assert {"--partition", "PATH"} <= set(found)
        assert found["PATH"]["fix"].startswith("--dry-run   # ")
    line = shlex.split(xectool("submit", files / "config.yaml", "--json").document["findings"][-1]["fix"])
    done = xectool(*line[1:], "--partition", "p", "--gpus", "0", "--dry-run", "--json")
    assert done.code == 0, "the control: the line of the others, what was left, and what shows the script"


def test_what_the_line_cannot_mend_is_named_and_the_gpus_stay(files: Path, xectool: Callable[..., object]) -> None:
    argv = ["submit", files / "config.yaml", "--gpus", "0", "--set", "data.train_path=/nowhere/at/all.root"]
    *errors, line = xectool(*argv, "--dry-run", "--json").document["findings"]
    assert [found["where"] for found in errors] == ["--partition", "--time", "--set (data.train_path)"]
    assert line["problem"] == (
        "1 of 3 errors can be mended on the command line; what remains: XT-SUBMIT-REQUEST (--partition), "
        "CFG-38 (--set (data.train_path))"
    )
    words = shlex.split(line["fix"])
    assert words[words.index("--gpus") + 1] == "0"
    assert words[-2:] == ["--time", "12:00:00"]


def test_one_fault_alone_is_told_by_itself(files: Path, xectool: Callable[..., object]) -> None:
    (found,) = xectool("submit", files / "config.yaml", "--partition", "p", "--dry-run", "--json").document["findings"]
    assert (found["code"], found["fix"]) == ("XT-SUBMIT-TIME", "--time 12:00:00")


@pytest.mark.parametrize(
    "command", [["train"], ["train", "--nproc", "1"], ["submit", "--partition", "p", "--time", "1:00:00", "--dry-run"]]
)
def test_a_wrong_key_hides_no_missing_file(files: Path, xectool: Callable[..., object], command: list[str]) -> None:
    wrong = ["--set", "training.no_such=1", "--set", "data.val_path=/nowhere/at/all.root"]
    found = xectool(command[0], files / "config.yaml", *command[1:], *wrong, "--json").document["findings"]
    assert [item["code"] for item in found if item["severity"] == "error"] == ["CFG-01", "CFG-38"]


def test_a_rehearsal_of_inputs_that_would_stop_the_first_batch_is_bad(
    files: Path, xectool: Callable[..., object]
) -> None:
    request = ["--partition", "p", "--time", "1:00:00", "--gpus", "0"]
    argv = ["submit", files / "config.yaml", *request, "--dry-run", "--json"]
    assert xectool(*argv).code == 0, "the control"
    done = xectool(*argv, "--set", "normalization.npho_scheme=linear", "--set", "normalization.npho_scale=1")
    assert (done.code, done.document["status"]) == (1, "bad")
    assert "XT-INPUT-SCALE" in [found["code"] for found in done.document["findings"] if found["severity"] == "error"]
    assert done.document["result"]["script"].startswith("#!/bin/bash")


@pytest.mark.parametrize("value", ["trainig.lr=0.3", "trainig={lr: 0.3}", "no.such.key.at.all=0.3"])
def test_a_misspelt_setting_is_respelt_and_what_stands_behind_it_is_told(
    files: Path, xectool: Callable[..., object], tmp_path: Path, value: str
) -> None:
    """It stayed in the line beside the right one, and the line was refused again, with what had not been told."""
    argv = ["submit", files / "config.yaml", "--partition", "p", "--time", "1:00:00", "--gpus", "0", "--dry-run"]
    settings = ["--set", f"checkpoint.save_dir={tmp_path}/a%b", "--set", value]
    *errors, line = xectool(*argv, *settings, "--json").document["findings"]
    assert [found["code"] for found in errors] == ["CFG-01", "XT-SUBMIT-REQUEST"]
    words = shlex.split(line["fix"])
    assert value not in words
    assert any(word.startswith("training.lr=") for word in words) is value.startswith("trainig")
    assert f"checkpoint.save_dir={tmp_path}/a_b" in words
    done = xectool(*words[1:], "--json")
    assert [found["code"] for found in done.document["findings"] if found["severity"] == "error"] == []
    assert done.code == 0, "the control: the line as it is pasted"

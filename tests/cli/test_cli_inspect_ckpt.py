"""``xectool inspect-ckpt`` as a user runs it."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from xectool import engine

CONTRACT_KEYS = {
    "format", "kind", "epoch", "step", "tasks", "parameters", "finite", "has_optimizer", "has_ema", "config",
    "sections", "sha256", "differences",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of a real, short training."""
    options = ["checkpoint.save_artifacts=false", f"checkpoint.save_dir={tmp_path_factory.mktemp('inspected')}"]
    result = engine.train(files / "config.yaml", run_name="inspected", overrides=options)
    return Path(result.run_dir)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.pt"
    torch.save(torch.nn.Linear(4, 3).state_dict(), path)
    return path


def test_help_names_every_option(xectool: Callable[..., Any]) -> None:
    out = xectool("inspect-ckpt", "--help").out
    assert all(word in out for word in ("--config", "--compare", "--tensors", "--extract", "--output", "--json"))


def test_a_trained_checkpoint_is_sound_and_resumes_bit_for_bit(trained: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("inspect-ckpt", trained / "checkpoint_last.pt", "--json")
    result = run.document["result"]
    assert (run.code, run.document["status"], run.document["findings"]) == (0, "ok", [])
    assert result.keys() >= CONTRACT_KEYS
    assert (result["format"], result["kind"], result["bit_exact_resume"]) == ("xectool", "regressor", True)
    assert result["tasks"] == {"energy": "gaussian_nll", "uvwFI": "smooth_l1"}
    assert {item["action"]: item["possible"] for item in result["fit_for"]} == dict.fromkeys(
        ("resume", "fine-tune", "predict", "export"), True
    )


def test_people_read_verdict_reasons_and_next_step(trained: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("inspect-ckpt", trained / "checkpoint_best.pt", "--tensors")
    assert (run.code, run.out) == (0, "")
    words = ("Verdict", "Why", "Next", f"train {trained}/config.yaml --resume", "sections", "tensors", "backbone")
    assert [word for word in words if word not in run.err] == []
    assert re.search(r"created +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\+00:00", run.err)


def test_the_config_of_the_run_fits_its_checkpoint(trained: Path, xectool: Callable[..., Any]) -> None:
    run = xectool("inspect-ckpt", trained / "checkpoint_last.pt", "--config", trained / "config.yaml", "--json")
    assert run.code == 0
    assert {item["effect"] for item in run.document["result"]["contract"]} == {"same"}


def test_a_silent_change_is_bad_and_comes_with_the_line_that_undoes_it(
    trained: Path, xectool: Callable[..., Any]
) -> None:
    run = xectool(
        "inspect-ckpt", trained / "checkpoint_last.pt", "--config", trained / "config.yaml",
        "--set", "normalization.npho_scale=900", "--set", "training.lr=1e-4", "--json",
    )  # fmt: skip
    assert (run.code, run.document["status"]) == (1, "bad")
    effects = {item["key"]: item["effect"] for item in run.document["result"]["differences"]}
    assert effects == {"normalization.npho_scale": "changes outputs silently", "training.lr": "harmless"}
    line = shlex.split(run.document["result"]["next"])
    assert line == shlex.split(run.document["findings"][0]["fix"])
    assert line[-1] == "normalization.npho_scale=1000.0"
    assert xectool(*line[1:]).code == 0


def test_each_of_several_silent_changes_comes_with_the_whole_line(trained: Path, xectool: Callable[..., Any]) -> None:
    run = xectool(
        "inspect-ckpt", trained / "checkpoint_last.pt", "--config", trained / "config.yaml",
        "--set", "normalization.npho_scale=900", "--set", "normalization.time_scale=1e-7", "--json",
    )  # fmt: skip
    fixes = {item["fix"] for item in run.document["findings"]}
    assert len(run.document["findings"]) == 2
    assert fixes == {run.document["result"]["next"]}
    assert xectool(*shlex.split(fixes.pop())[1:]).code == 0


def test_of_another_kind_only_the_encoder_is_judged_and_the_next_line_takes_it(
    trained: Path, files: Path, tmp_path: Path, xectool: Callable[..., Any]
) -> None:
    """It proposed keys that only the other kind has, which `train` and `config check` refuse."""
    config = tmp_path / "mae.yaml"
    data = f"{{train_path: {files}/train.root, val_path: {files}/val.root, batch_size: 8, chunksize: 16}}"
    config.write_text(f"kind: mae\ndata: {data}\nnormalization: {{npho_scale: 500.0}}\nmodel: {{encoder_dim: 32}}\n")
    run = xectool("inspect-ckpt", trained / "checkpoint_best.pt", "--config", config, "--json")
    bad = [item["where"] for item in run.document["findings"]]
    assert (run.code, bad[0]) == (1, "kind")
    assert {key.split(".")[0] for key in bad[1:]} == {"normalization", "model"}
    following = run.document["result"]["next"]
    assert {item["fix"] for item in run.document["findings"]} == {following}
    words = shlex.split(following)[1:]
    assert xectool(*words, "--dry-run").code == 0
    without = words[: words.index("--set") + 2]  # the control: its keys are what it takes
    assert "XT-CKPT-VIEW" in xectool(*without, "--dry-run").err


def test_the_table_of_effects_is_for_people(trained: Path, xectool: Callable[..., Any]) -> None:
    run = xectool(
        "inspect-ckpt", trained / "checkpoint_last.pt", "--config", trained / "config.yaml", "--set", "training.lr=1e-4"
    )
    assert run.code == 0
    assert "resume contract" in run.err
    assert "the new rate applies" in run.err


def test_comparison_says_by_how_much(plain: Path, tmp_path: Path, xectool: Callable[..., Any]) -> None:
    weights = torch.load(plain, weights_only=True)
    weights["bias"] = weights["bias"] + 0.5
    torch.save(weights, tmp_path / "other.pt")
    run = xectool("inspect-ckpt", plain, "--compare", tmp_path / "other.pt", "--json")
    assert run.code == 1
    difference = run.document["result"]["differences"][0]
    assert (difference["tensor"], difference["status"]) == ("model: bias", "values")
    assert difference["max_abs"] == pytest.approx(0.5)
    assert run.document["result"]["verdict"].endswith(f"differ from {tmp_path / 'other.pt'}: 1, none in weight")
    assert xectool("inspect-ckpt", plain, "--compare", plain).code == 0


def test_an_extracted_encoder_starts_a_training(
    trained: Path, files: Path, tmp_path: Path, xectool: Callable[..., Any]
) -> None:
    target = tmp_path / "encoder.safetensors"
    run = xectool("inspect-ckpt", trained / "checkpoint_best.pt", "--extract", "encoder", "--output", target)
    assert run.code == 0
    assert f"written: {target}" in " ".join(run.err.split())
    line = f"checkpoint.init_from={target}"
    assert line in "".join(run.err.split())
    started = xectool("train", files / "config.yaml", "--run-name", "tuned", "--dry-run", "--set", line)
    assert started.code == 0, started.err


def test_a_damaged_file_is_exit_1_with_the_place(plain: Path, xectool: Callable[..., Any]) -> None:
    content = bytearray(plain.read_bytes())
    weight = torch.load(plain, weights_only=True)["weight"].numpy().tobytes()
    content[content.index(weight) + 5] ^= 4
    plain.write_bytes(content)
    run = xectool("inspect-ckpt", plain, "--json")
    assert (run.code, run.document["status"]) == (1, "bad")
    assert "CRC mismatch in plain/data/0" in run.document["findings"][0]["problem"]
    assert "bytes" in run.document["findings"][0]["where"]


@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_checkpoint_leads_to_another_one_of_its_run(
    trained: Path, files: Path, tmp_path: Path, xectool: Callable[..., Any], cut: bool
) -> None:
    run = tmp_path / "moved"
    shutil.copytree(trained, run)
    damaged, other = run / "checkpoint_last.pt", run / "checkpoint_best.pt"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content[:100_000] if cut else content)
    again = f"xectool train {run}/config.yaml --resume {run} --set mlflow.run_name=null"
    (found, *_) = xectool("inspect-ckpt", damaged, "--json").document["findings"]
    line, _, remark = found["fix"].partition("   # ")
    assert line.startswith(f"xectool inspect-ckpt {other}")
    assert remark == f"another checkpoint of the run; to go on from it: {again}"
    for words in (["inspect-ckpt", other], [*shlex.split(again)[1:], "--dry-run"]):
        assert xectool(*words).code == 0, words
    for words in (["predict", damaged, files / "val.root"], ["train", files / "config.yaml", "--resume", damaged]):
        (found, *_) = xectool(*words, "--json").document["findings"]
        pasted = shlex.join(str(other if word == damaged else word) for word in ["xectool", *words, "--json"])
        assert found["fix"] == f"{pasted}   # {remark}", found
    other.write_bytes(b"")
    (found, *_) = xectool("inspect-ckpt", damaged, "--json").document["findings"]
    assert found["fix"].startswith("use another checkpoint of the run"), "the control: there is none"


def test_a_text_file_is_exit_2_and_named(tmp_path: Path, xectool: Callable[..., Any]) -> None:
    (tmp_path / "a.pt").write_text("hello\n")
    run = xectool("inspect-ckpt", tmp_path / "a.pt", "--json")
    assert (run.code, run.document["status"]) == (2, "error")
    assert "a text file" in run.document["findings"][0]["problem"]


class _Touch:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def test_a_payload_does_not_run_and_is_listed(tmp_path: Path, xectool: Callable[..., Any]) -> None:
    torch.save({"a": torch.ones(2), "b": _Touch(tmp_path / "ran")}, tmp_path / "a.pt")
    run = xectool("inspect-ckpt", tmp_path / "a.pt", "--json")
    assert run.code == 1
    found = run.document["result"]["unsafe_globals"][0]
    assert (found["name"], found["trust"]) == ("posix.system", "code")
    assert (tmp_path / "a.pt").read_bytes()[found["file_offset"] :].startswith(b"cposix\nsystem\n")
    assert not (tmp_path / "ran").exists()
    shown = xectool("inspect-ckpt", tmp_path / "a.pt")
    assert "dangerous" in shown.err
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(tmp_path / "a.pt")

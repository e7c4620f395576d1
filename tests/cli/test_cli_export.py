"""The command `export`: help, success, failure, JSON; `predict` on what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool import engine

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    options = ["checkpoint.save_artifacts=false", f"checkpoint.save_dir={tmp_path_factory.mktemp('exported')}"]
    return engine.train(files / "config.yaml", run_name="exported", overrides=options, max_steps=2)


def test_help_names_formats_and_inputs(xectool: Run) -> None:
    outcome = xectool("export", "--help")
    assert outcome.code == 0
    assert all(word in outcome.out for word in ("--to", "--inputs", "--verify-on", "--tasks", "--weights"))


def test_json_document_holds_the_keys_of_the_contract(xectool: Run, trained: Any, files: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.torchscript"
    outcome = xectool(
        "export", trained.checkpoint_last, "--to", "torchscript", "--output", path, "--verify-on",
        files / "val.root", "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    document = outcome.document
    assert (document["command"], document["status"]) == ("export", "ok")
    result = document["result"]
    wanted = {"path", "format", "inputs", "outputs", "verified_events", "max_abs_diff", "max_rel_diff"}
    assert wanted <= result.keys()
    assert result["verified_events"] == 8
    assert [port["name"] for port in result["inputs"]] == ["npho", "time"]
    assert [found["code"] for found in document["findings"]] == ["X-17"]
    predicted = xectool("predict", path, files / "val.root", "--output", tmp_path / "p.root", "--json")
    assert predicted.document["result"]["events"] == 8


def test_table_shows_ports_weights_and_agreement(xectool: Run, trained: Any, tmp_path: Path) -> None:
    outcome = xectool("export", trained.checkpoint_last, "--to", "safetensors", "-o", tmp_path / "w.safetensors")
    assert outcome.code == 0
    assert all(word in outcome.err for word in ("sigma_energy", "weights: ema", "agrees with the network on 64 events"))


def test_exported_weights_are_still_those_that_were_averaged(
    xectool: Run, files: Path, trained: Any, tmp_path: Path
) -> None:
    """They were called the raw weights of a run that kept no average."""
    path = tmp_path / "w.safetensors"
    assert xectool("export", trained.checkpoint_last, "--to", "safetensors", "-o", path).code == 0
    assert "with the averaged weights, which it holds alone" in " ".join(xectool("inspect-ckpt", path).err.split())
    asked = ("predict", path, files / "val.root", "--output", tmp_path / "p.root", "--json", "--weights")
    assert xectool(*asked, "ema").code == 0
    again = xectool("export", path, "-o", tmp_path / "again.onnx", "--json")
    assert (again.code, again.document["result"]["weights"]) == (0, "ema")
    refused = xectool(*asked, "model")
    assert (refused.code, refused.document["findings"][0]["fix"]) == (2, "--weights ema")


def test_untrained_task_is_refused_with_the_trained_ones(xectool: Run, trained: Any, tmp_path: Path) -> None:
    outcome = xectool("export", trained.checkpoint_last, "--tasks", "angle", "-o", tmp_path / "m.onnx", "--json")
    assert outcome.code == 2
    finding = outcome.document["findings"][0]
    assert finding["code"] == "XT-EXPORT-TASK"
    assert "trained: energy, uvwFI" in finding["problem"]
    assert not (tmp_path / "m.onnx").exists()


def test_missing_checkpoint_and_exported_file_as_source_are_refused(xectool: Run, trained: Any, tmp_path: Path) -> None:
    assert xectool("export", tmp_path / "no.pt").code == 2
    path = tmp_path / "model.pt"
    assert xectool("export", trained.checkpoint_last, "--to", "torchscript", "-o", path).code == 0
    outcome = xectool("export", path, "-o", tmp_path / "again.onnx", "--json")
    assert outcome.code == 2
    assert "use the checkpoint it was exported from" in outcome.document["findings"][0]["problem"]


def test_a_script_is_not_called_as_a_checkpoint_is(
    xectool: Run, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(trained.checkpoint_last).parent)  # where its name would be that of the checkpoint
    outcome = xectool("export", trained.checkpoint_last, "--to", "torchscript", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["result"]["path"] == "checkpoint_last.torchscript"
    again = xectool("export", trained.checkpoint_last, "-o", "x.torchscript", "--to", "onnx")
    assert again.code == 2
    assert "--output x.onnx" in again.err

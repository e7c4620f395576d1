"""A disk that refuses ends in one message, exit code 3, and nothing torn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xectool.checkpoint import store

# Byte code written under the limit would be cut short, and every later import of it fail.
LIMITED = """
import resource, sys
from xectool.__main__ import main
sys.dont_write_bytecode = True
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""
TINY, SMALL = 1000, 1_000_000  # less than config.yaml, less than a checkpoint


Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train(warm: Any, shallow: None) -> Train:
    """Train where no file may be larger than a number of bytes."""
    return lambda limit_bytes, *argv: warm.run("-c", LIMITED, str(limit_bytes), "train", *argv)


@pytest.mark.parametrize("limit_bytes", [TINY, SMALL])
def test_disk_that_refuses_is_exit_3_and_leaves_nothing_torn(
    files: Path, train: Train, limit_bytes: int, xectool: Callable[..., Any]
) -> None:
    name = f"full{limit_bytes}"
    outcome = train(limit_bytes, str(files / "config.yaml"), "--run-name", name, "--json")
    assert outcome.returncode == 3, outcome.stderr
    (found,) = json.loads(outcome.stdout)["findings"]
    assert "File too large: no file may grow beyond " in found["problem"]
    assert found["fix"].startswith("ulimit -f unlimited"), "it is no full disk"
    left = {path.name for path in (files / "runs" / name).iterdir()}
    assert left <= {"config.yaml", "manifest.json", "rec"}
    if "config.yaml" in left:
        assert "mlflow:" in (files / "runs" / name / "config.yaml").read_text()
    if "rec" in left and limit_bytes == SMALL:
        health = xectool("diagnose", "run", files / "runs" / name, "--json").document
        assert health["findings"][0]["code"] == "XT-DISK-FULL"
        assert health["findings"][0]["fix"].startswith("ulimit -f unlimited; xectool train ")


def test_disk_that_fills_inside_an_epoch_costs_no_training_until_its_end(files: Path, train: Train) -> None:
    base = [str(files / "config.yaml"), "--run-name", "fills", "--set", "checkpoint.save_steps=1"]
    base += ["--set", "checkpoint.save_artifacts=false"]
    assert train(10**9, *base, "--max-steps", "1", "--json").returncode == 0
    last = files / "runs" / "fills" / store.LAST_NAME
    before = last.read_bytes()
    outcome = train(SMALL, *base, "--resume", "auto")
    assert outcome.returncode == 3
    assert "training goes on from memory" in outcome.stderr
    assert "epoch 1: train/loss" in outcome.stderr
    assert last.read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("shallow", "warm_estimates")
def test_a_check_of_data_and_the_estimate_say_alike_what_checkpoints_take(
    files: Path, xectool: Callable[..., Any]
) -> None:
    """One counted moments of weights that are not trained, and no numbered checkpoints."""
    numbered = ("--set", "checkpoint.save_interval=1", "--set", "training.epochs=4")
    undrawn = ("--set", "checkpoint.save_artifacts=false")
    run = xectool("train", files / "config.yaml", "--run-name", "sized", *undrawn)
    assert run.code == 0, run.err
    assert "trained of" in run.err
    written = (files / "runs/sized/checkpoint_last.pt").stat().st_size
    estimated = xectool("estimate-memory", files / "config.yaml", "--json").document["result"]["disk"]
    assert estimated["checkpoint_bytes"] == pytest.approx(written, rel=0.25)  # with tables that are made anew
    checked = [
        xectool("check-data", files / "train.root", "--config", files / "config.yaml", *words, "--json").document
        for words in ((), numbered)
    ]
    plain, many = (document["result"]["disk_bytes"]["checkpoints"] for document in checked)
    assert plain == pytest.approx(3 * written, rel=0.1)
    assert many == pytest.approx(7 * written, rel=0.1)

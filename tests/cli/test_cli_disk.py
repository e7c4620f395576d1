"""A disk that refuses ends in one message, exit code 3, and nothing torn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from xectool.checkpoint import store

# -B: byte code written under the limit would be cut short, and every later import of it fail.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, "-B", "-m", "xectool", *sys.argv[2:]])
"""
TINY, SMALL = 1000, 1_000_000  # less than config.yaml, less than a checkpoint


def train(limit_bytes: int, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(limit_bytes), "train", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("limit_bytes", [TINY, SMALL])
def test_disk_that_refuses_is_exit_3_and_leaves_nothing_torn(files: Path, limit_bytes: int) -> None:
    name = f"full{limit_bytes}"
    outcome = train(limit_bytes, str(files / "config.yaml"), "--run-name", name, "--json")
    assert outcome.returncode == 3, outcome.stderr
    (found,) = json.loads(outcome.stdout)["findings"]
    assert "File too large" in found["problem"]
    assert found["fix"]
    left = {path.name for path in (files / "runs" / name).iterdir()}
    assert left <= {"config.yaml", "manifest.json", "rec"}
    if "config.yaml" in left:
        assert "mlflow:" in (files / "runs" / name / "config.yaml").read_text()


def test_disk_that_fills_inside_an_epoch_costs_no_training_until_its_end(files: Path) -> None:
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

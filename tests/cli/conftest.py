"""Run the command line as a user does: another process, or the boundary in this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xectool import engine
from xectool.cli import boundary
from xectool.cli.app import app


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        document = json.loads(self.out)
        assert set(document) == {"command", "status", "result", "findings"}
        return dict(document)


@pytest.fixture(scope="module", autouse=True)
def _few_blocks(room_of_trainings: None) -> None:
    """The trainings have shallow networks: forty of a hundred seconds less."""


@pytest.fixture
def xectool(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*argv: str) -> Outcome:
        capfd.readouterr()
        code = boundary.run(app, [str(word) for word in argv])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train.root (24 events), val.root (8 events) and config.yaml that trains on them."""
    directory = tmp_path_factory.mktemp("cli")
    engine.simulate(str(directory / "train.root"), events=24, seed=1)
    engine.simulate(str(directory / "val.root"), events=8, seed=2)
    (directory / "config.yaml").write_text(
        f"""
kind: regressor
data: {{train_path: {directory}/train.root, val_path: {directory}/val.root, batch_size: 8, chunksize: 16}}
model: {{encoder_dim: 32, hidden_dim: 8, outer_fine_pool: [5, 3], num_fusion_layers: 1}}
tasks:
  energy: {{enabled: true, scale: auto, shift: auto, loss_fn: gaussian_nll, loss_beta: 0.5}}
  uvwFI: {{enabled: true, scale: auto, shift: auto}}
training: {{epochs: 1, warmup_epochs: 0, lr: 1.0e-3, lr_scheduler: cosine}}
checkpoint: {{save_dir: {directory}/runs}}
mlflow: {{enabled: false, run_name: first}}
"""
    )
    return directory

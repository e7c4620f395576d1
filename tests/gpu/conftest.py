"""Commands on a machine with a GPU, each in a process of its own; skipped where there is none.

Tests may run side by side (``-n 8``): those that fill the device wait until no other holds any of it.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from xectool import engine

MODEL = {"encoder_dim": 64, "outer_fine_pool": [5, 3], "num_fusion_layers": 1, "dropout": 0.0}
TARGET = {"enabled": True, "scale": "auto", "shift": "auto"}
KINDS: dict[str, dict[str, Any]] = {
    "regressor": {
        "model": MODEL | {"hidden_dim": 32, "head_dropout": 0.0},
        "tasks": {"energy": TARGET, "uvwFI": TARGET},
    },
    "mae": {"model": MODEL | {"decoder_dim": 16}},
    "inpainter": {"model": MODEL | {"head_type": "cross_attention", "predict_channels": ["npho", "time"]}},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this room, and skip them where nothing can run them."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker("gpu")
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once: time on such a machine can end before the last test does."""
    if report.failed:
        sys.stderr.write(f"\n{report.nodeid}\n{report.longreprtext}\n")


@pytest.fixture(autouse=True)
def _beside_others(request: pytest.FixtureRequest) -> Iterator[None]:
    """Share the device with the tests of other processes, or have it alone where a test is marked ``fills_device``."""
    alone = request.node.get_closest_marker("fills_device") is not None
    with Path(tempfile.gettempdir(), f"xectool-gpu-tests-{getpass.getuser()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@dataclass(frozen=True)
class Ended:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """Its answer, of a command that succeeded."""
        assert self.code == 0, self.out + self.err
        return dict(json.loads(self.out)["result"])

    @property
    def codes(self) -> list[str]:
        """The codes of its findings."""
        return [finding["code"] for finding in json.loads(self.out)["findings"]]


@pytest.fixture(scope="session")
def command() -> Callable[..., Ended]:
    """Return what runs ``xectool ARGV... --json``."""

    def run(*argv: object) -> Ended:
        words = [sys.executable, "-W", "ignore", "-m", "xectool", *map(str, argv), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``train.root`` (320 events) and ``val.root`` (64)."""
    directory = tmp_path_factory.mktemp("data")
    engine.simulate(str(directory / "train.root"), events=320, seed=1)
    engine.simulate(str(directory / "val.root"), events=64, seed=2)
    return directory


@pytest.fixture
def configured(data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return what writes a configuration of a kind; sections given are added to its own."""

    def write(kind: str, **sections: dict[str, Any]) -> Path:
        config: dict[str, Any] = {
            "kind": kind,
            "data": {"train_path": f"{data}/train.root", "val_path": f"{data}/val.root", "batch_size": 16},
            "training": {"epochs": 2, "lr": 1e-3, "warmup_epochs": 0, "ema_decay": None, "compile": "none"},
            "checkpoint": {"save_dir": str(tmp_path / "runs")},
            "mlflow": {"enabled": False},
            **KINDS[kind],
        }
        for name, section in sections.items():
            config[name] = config.get(name, {}) | section
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    return write

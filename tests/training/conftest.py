"""Small simulated files and a run description that trains on them in a second."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from xectool import engine


@pytest.fixture(scope="module", autouse=True)
def _few_blocks(room_of_trainings: None) -> None:
    """The trainings have shallow networks: forty of a hundred seconds less."""


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train_000.root, train_001.root (40 events together) and val.root (16 events)."""
    directory = tmp_path_factory.mktemp("tiny")
    engine.simulate(str(directory / "train.root"), events=40, seed=1, files=2)
    engine.simulate(str(directory / "val.root"), events=16, seed=2)
    return directory


@pytest.fixture
def tiny_config(tiny_data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a configuration; keyword arguments are sections to merge."""

    def write(**sections: dict[str, Any]) -> Path:
        tasks = {"enabled": True, "scale": "auto", "shift": "auto"}
        config: dict[str, Any] = {
            "kind": "regressor",
            "data": {
                "train_path": str(tiny_data / "train_*.root"),
                "val_path": str(tiny_data / "val.root"),
                "batch_size": 8,
                "chunksize": 16,
                "num_shards": 2,
            },
            "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1},
            "tasks": {"energy": dict(tasks), "uvwFI": dict(tasks)},
            "training": {"epochs": 2, "warmup_epochs": 0, "lr": 1e-3, "ema_decay": 0.9, "deterministic": True},
            "checkpoint": {"save_dir": str(tmp_path / "runs"), "save_minutes": None, "save_artifacts": False},
            "mlflow": {"enabled": False, "run_name": "r"},
        }
        for section, values in sections.items():
            config[section] = {**config.get(section, {}), **values} if isinstance(values, dict) else values
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


@pytest.fixture
def sensor_config(tiny_data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the configuration of a MAE or an inpainter; further keywords are keys of its ``model`` section."""

    def write(kind: str, training: dict[str, Any] | None = None, save_steps: int | None = None, **model: Any) -> Path:
        sizes = {"encoder_dim": 64, "num_fusion_layers": 1, "outer_fine_pool": [5, 3]}
        own = {"decoder_dim": 8} if kind == "mae" else {"freeze_encoder": False}
        checkpoint = {"save_dir": str(tmp_path / "runs"), "save_minutes": None, "save_artifacts": False}
        config = {
            "kind": kind,
            "data": {
                "train_path": str(tiny_data / "train_*.root"),
                "val_path": str(tiny_data / "val.root"),
                "batch_size": 8,
                "chunksize": 16,
            },
            "model": {**sizes, **own, **model},
            "training": {"epochs": 2, "lr": 1e-3, "ema_decay": 0.9, "deterministic": True, **(training or {})},
            "checkpoint": checkpoint | ({"save_steps": save_steps} if save_steps else {}),
            "mlflow": {"enabled": False},
        }
        path = tmp_path / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


Spawn = Callable[..., list[subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="session")
def run_ranks(warm: Any) -> Spawn:
    """Run a program as several ranks of one job, as torchrun would, and return how each ended."""

    def run(world_size: int, *argv: object) -> list[subprocess.CompletedProcess[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        shared |= {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world_size)}
        words, ranks = [str(word) for word in argv], [str(rank) for rank in range(world_size)]
        started = [warm.open(*words, **shared, RANK=rank, LOCAL_RANK=rank) for rank in ranks]
        with ThreadPoolExecutor(world_size) as readers:
            said = list(readers.map(lambda process: process.communicate(), started))
        return [
            subprocess.CompletedProcess(words, process.returncode, *text)
            for process, text in zip(started, said, strict=True)
        ]

    return run

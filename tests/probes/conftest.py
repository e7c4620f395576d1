"""Small simulated files, copies of them with chosen numbers, and descriptions of tiny trainings of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from xectool import engine
from xectool.rootio.reader import EventFile
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader

NUM_FILES, EVENTS_PER_FILE = 2, 8
Changes = Mapping[tuple[int, int, str, int], float]
"""(file, entry, branch, column) to the number that is written there."""


@pytest.fixture(scope="module", autouse=True)
def _few_blocks(room_of_trainings: None) -> None:
    """The trainings have shallow networks: forty of a hundred seconds less."""


@pytest.fixture(scope="session")
def clean_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train_000.root and train_001.root, 8 events each, and val.root."""
    directory = tmp_path_factory.mktemp("clean")
    engine.simulate(str(directory / "train.root"), events=NUM_FILES * EVENTS_PER_FILE, seed=1, files=NUM_FILES)
    engine.simulate(str(directory / "val.root"), events=8, seed=2)
    return directory


def copy_with(source: Path, target: Path, changes: Changes) -> Path:
    """Copy the training files with some numbers replaced; return the directory."""
    target.mkdir(parents=True, exist_ok=True)
    for number in range(NUM_FILES):
        name = f"train_{number:03d}.root"
        with EventFile(str(source / name)) as file:
            columns = {branch: file.read_column(branch) for branch in file.branch_names}
        for (where, entry, branch, column), value in changes.items():
            if where == number:
                columns[branch].reshape(EVENTS_PER_FILE, -1)[entry, column] = value
        specs = {branch: (values.dtype, values.shape[1:]) for branch, values in columns.items()}
        with TreeWriter(target / name, specs) as writer:
            writer.extend(columns)
    return target


@pytest.fixture
def poisoned(clean_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Changes], Path]:
    """Write the training files with some numbers replaced."""
    return lambda changes: copy_with(clean_data, tmp_path_factory.mktemp("poisoned"), changes)


@pytest.fixture
def write_config(clean_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a configuration of a kind; keyword arguments are sections to merge, ``train`` a directory of files."""

    def write(kind: str = "regressor", train: Path | None = None, **sections: Any) -> Path:
        directory = tmp_path_factory.mktemp("config")
        config = tiny(kind, train or clean_data, clean_data, directory)
        for section, values in sections.items():
            config[section] = {**config.get(section, {}), **values} if isinstance(values, dict) else values
        path = directory / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    return write


def tiny(kind: str, train: Path, val: Path, directory: Path) -> dict[str, Any]:
    """Return the description of a training that takes a second."""
    config: dict[str, Any] = {
        "kind": kind,
        "data": {
            "train_path": str(train / "train_*.root"), "val_path": str(val / "val.root"), "batch_size": 4,
            "chunksize": 16,
        },
        "model": {"encoder_dim": 32, "num_fusion_layers": 1, "outer_fine_pool": [5, 3]},
        "training": {"epochs": 2, "warmup_epochs": 0, "lr": 1e-3, "ema_decay": None},
        "checkpoint": {
            "save_dir": str(directory / "runs"), "save_minutes": None, "save_artifacts": False,
            "save_predictions": False,
        },
        "mlflow": {"enabled": False, "run_name": "r"},
    }  # fmt: skip
    if kind == "regressor":
        task = {"enabled": True, "scale": "auto", "shift": "auto"}
        config["tasks"] = {"energy": dict(task), "uvwFI": dict(task)}
        config["model"] |= {"hidden_dim": 8}
    if kind == "mae":
        config["model"] |= {"decoder_dim": 16}
    return config


@pytest.fixture(scope="session")
def train_tiny(
    clean_data: Path, tmp_path_factory: pytest.TempPathFactory, lean: Callable[[], AbstractContextManager[None]]
) -> Callable[..., tuple[Path, Path]]:
    """Train: 8 steps, full checkpoints after 4 and 8; returns the configuration and the last checkpoint."""

    def train(**training: Any) -> tuple[Path, Path]:
        directory = tmp_path_factory.mktemp("trained")
        path = directory / "config.yaml"
        config = tiny("regressor", clean_data, clean_data, directory)
        path.write_text(yaml.safe_dump(config | {"training": config["training"] | training}))
        with lean():
            return path, Path(str(engine.train(path).checkpoint_last))

    return train


@pytest.fixture(scope="session")
def trained(train_tiny: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    """A configuration and the last checkpoint of its run."""
    return train_tiny()


@pytest.fixture(scope="module")
def overflowing(clean_data: Path, tmp_path_factory: pytest.TempPathFactory, shallow_module: None) -> tuple[Path, int]:
    """A run in which one event, left in, overflows; and its first bad step."""
    directory = tmp_path_factory.mktemp("overflowing")
    with EventFile(str(clean_data / "train_000.root")) as file:
        columns = {branch: file.read_column(branch) for branch in file.branch_names}
    columns["npho"][5, 321] = -1e37
    specs = {branch: (values.dtype, values.shape[1:]) for branch, values in columns.items()}
    with TreeWriter(directory / "train.root", specs) as writer:
        writer.extend(columns)
    assert np.isfinite(columns["npho"]).all()
    task = {"enabled": True, "scale": "auto", "shift": "auto"}
    config = {
        "kind": "regressor",
        "data": {
            "train_path": str(directory / "train.root"),
            "val_path": str(clean_data / "val.root"),
            "batch_size": 4,
        },
        "normalization": {"npho_scheme": "linear"},
        "model": {"encoder_dim": 32, "num_fusion_layers": 1, "hidden_dim": 8, "outer_fine_pool": [5, 3]},
        "tasks": {"energy": task},
        "training": {"epochs": 2, "warmup_epochs": 0, "ema_decay": None, "channel_dropout_rate": 0.0},
        "guards": {"quarantine": False, "max_bad_fraction": 1.0, "on_input_scale": "warn"},
        "checkpoint": {
            "save_dir": str(directory),
            "save_minutes": None,
            "save_artifacts": False,
            "save_predictions": False,
        },
        "mlflow": {"enabled": False, "run_name": "r"},
    }  # fmt: skip
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    run = Path(engine.train(path).run_dir)
    return run, next(record.step for record in RunReader(run).steps() if record.nonfinite)

"""Small seeded files with truth, and the configuration that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from xectool.config.data import DataConfig
from xectool.rootio.writer import TreeWriter

NUM_SENSORS = 4760
BRANCHES = {
    "npho": ("f4", (NUM_SENSORS,)),
    "relative_time": ("f4", (NUM_SENSORS,)),
    "energyTruth": ("f4", ()),
    "timeTruth": ("f8", ()),
    "uvwTruth": ("f4", (3,)),
    "emiAng": ("f4", (2,)),
    "run": ("i4", ()),
    "event": ("i4", ()),
}


def make_events(size: int, seed: int, run: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    event = np.arange(size)
    # npho carries run and event in its first sensors, so that a test can see which row it got.
    npho = np.repeat(rng.random((size, 1), np.float32), NUM_SENSORS, axis=1)
    npho[:, 0], npho[:, 1] = run, event
    uvw = np.stack([rng.uniform(-30, 30, size), rng.uniform(-70, 70, size), rng.uniform(0, 38, size)], axis=1)
    return {
        "npho": npho,
        "relative_time": -npho,
        "energyTruth": rng.uniform(0.02, 0.06, size).astype(np.float32),
        "timeTruth": rng.normal(0, 1e-8, size),
        "uvwTruth": uvw.astype(np.float32),
        "emiAng": rng.uniform(60, 120, (size, 2)).astype(np.float32),
        "run": np.full(size, run, np.int32),
        "event": event.astype(np.int32),
    }


@dataclass(frozen=True)
class Dataset:
    directory: Path
    sizes: tuple[int, ...]

    def config(self, **changes: object) -> DataConfig:
        return DataConfig(train_path=str(self.directory), val_path=str(self.directory), **changes)


def write_events(path: Path, events: dict[str, np.ndarray], **options: str) -> Path:
    branches = {name: spec for name, spec in BRANCHES.items() if name in events}
    with TreeWriter(path, branches, compression="zstd:1", **options) as writer:
        writer.extend(events)
    return path


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    directory = tmp_path_factory.mktemp("events")
    sizes = (1, 7, 180, 0, 90)
    for index, size in enumerate(sizes):
        write_events(directory / f"part{index}.root", make_events(size, index, 1000 + index))
    return Dataset(directory, sizes)


@pytest.fixture(scope="session", name="make_events")
def _make_events():
    return make_events


@pytest.fixture(scope="session", name="write_events")
def _write_events():
    return write_events

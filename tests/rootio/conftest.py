"""Small files in every layout."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.rootio.writer import TreeWriter

BRANCHES = {
    "npho": ("f4", (4760,)),
    "relative_time": ("f4", (4760,)),
    "energyTruth": ("f8", ()),
    "uvwTruth": ("f4", (3,)),
    "run": ("i4", ()),
    "event": ("i8", ()),
}


def make_rows(size: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "npho": rng.poisson(1.0, (size, 4760)).astype(np.float32),
        "relative_time": rng.normal(size=(size, 4760)).astype(np.float32),
        "energyTruth": rng.uniform(0.01, 0.06, size),
        "uvwTruth": rng.normal(size=(size, 3)).astype(np.float32),
        "run": np.full(size, 7, np.int32),
        "event": np.arange(size, dtype=np.int64) * 2**33,
    }


def write_rows(path, rows, **options):
    with TreeWriter(path, {name: BRANCHES[name] for name in rows}, **options) as writer:
        writer.extend(rows)
    return path


@pytest.fixture(scope="session", name="make_rows")
def _make_rows():
    return make_rows


@pytest.fixture(scope="session", name="write_rows")
def _write_rows():
    return write_rows


@pytest.fixture(scope="session")
def rows():
    return make_rows(24)

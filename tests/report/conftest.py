from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from xectool.rootio.writer import TreeWriter

Columns = dict[str, np.ndarray]


def write_predictions(path: Path, columns: Columns) -> Path:
    count = len(next(iter(columns.values())))
    identity = {
        "file_index": np.zeros(count),
        "entry": np.arange(count),
        "run": np.full(count, 7),
        "event": np.arange(count),
    }
    rows = {name: values.astype(np.int64) for name, values in identity.items()}
    rows |= {name: values.astype(np.float32) for name, values in columns.items()}
    branches = {name: (values.dtype, values.shape[1:]) for name, values in rows.items()}
    with TreeWriter(path, branches) as writer:
        writer.extend(rows)
    return path


@pytest.fixture
def predictions(tmp_path: Path) -> Callable[[Columns], Path]:
    return lambda columns: write_predictions(tmp_path / "predictions.root", columns)


@pytest.fixture
def energies() -> Columns:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.015, 0.06, (400, 1))
    width = truth * np.sqrt(0.003**2 / truth + 0.012**2)
    prediction = truth + width * rng.standard_normal((400, 1))
    return {"truth_energy": truth, "pred_energy": prediction, "sigma_energy": width}

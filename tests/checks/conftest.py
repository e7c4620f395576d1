"""Good files to damage: simulated once, written in every format and compression."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool.engine.checking import CheckOptions, check_data
from xectool.engine.data_report import DataChecked
from xectool.engine.simulation import simulate
from xectool.rootio.writer import TreeWriter

NUM_EVENTS = 120
Rows = dict[str, np.ndarray]


@pytest.fixture(scope="session")
def good_rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Simulated events with 1 % dead channels, as arrays by branch."""
    path = tmp_path_factory.mktemp("good") / "good.root"
    simulate(str(path), events=NUM_EVENTS, seed=5)
    with uproot.open(path) as file:
        tree = file["tree"]
        return {name: tree[name].array(library="np") for name in tree.keys()}  # noqa: SIM118


@pytest.fixture
def rows(good_rows: Rows) -> Rows:
    """A copy to change."""
    return {name: values.copy() for name, values in good_rows.items()}


@pytest.fixture(scope="session")
def write() -> Callable[..., Path]:
    def write(path: Path, rows: Rows, **options: Any) -> Path:
        specs = {name: (values.dtype, values.shape[1:]) for name, values in rows.items()}
        with TreeWriter(path, specs, **options) as writer:
            writer.extend(rows)
        return path

    return write


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory, good_rows: Rows, write: Callable[..., Path]) -> Path:
    """A good file."""
    return write(tmp_path_factory.mktemp("file") / "good.root", good_rows)


@pytest.fixture(scope="session")
def check() -> Callable[..., DataChecked]:
    def check(*paths: Path, **options: Any) -> DataChecked:
        return check_data([str(path) for path in paths], CheckOptions(**options))

    return check


@pytest.fixture(scope="session")
def codes() -> Callable[[DataChecked], set[str]]:
    """Codes of the findings above a note."""

    def codes(result: DataChecked) -> set[str]:
        return {found.code for found in result.findings if found.severity.value != "info"}

    return codes

"""Fixtures every room uses."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device the numeric tests run on, e.g. cuda:0")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Outputs and checkpoints of the older system; they lie beside the checkout, never in it."""
    path = Path(__file__).resolve().parents[2] / "shared" / "reference"
    if not path.is_dir():
        pytest.skip("the older system's reference files are not beside this checkout")
    return path

"""Configurations written to a file, and what is said of those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from xectool.config.invalid import InvalidConfigError
from xectool.config.load import load_config


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


@pytest.fixture
def refused() -> Callable[..., InvalidConfigError]:
    def error_of(path: Path, overrides: tuple[str, ...] = ()) -> InvalidConfigError:
        with pytest.raises(InvalidConfigError) as caught:
            load_config(path, overrides)
        return caught.value

    return error_of

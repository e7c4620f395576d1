"""The Python API is functions, whatever was imported before."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest
from xectool import engine

FUNCTIONS = ["predict", "simulate", "train"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_stays_one_after_every_module_is_imported(name: str) -> None:
    for module in pkgutil.iter_modules(engine.__path__):
        importlib.import_module(f"xectool.engine.{module.name}")
    assert callable(getattr(engine, name))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = engine.trian


def test_importing_the_api_loads_nothing_heavy() -> None:
    code = "import sys; from xectool import engine; print(sorted({'torch', 'uproot', 'pydantic'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

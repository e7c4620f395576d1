"""The Python API is functions, whatever was imported before."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest
from xectool import engine
from xectool.engine.checking import CheckOptions
from xectool.errors import XecError

FUNCTIONS = ["predict", "simulate", "train"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_stays_one_after_every_module_is_imported(name: str) -> None:
    for module in pkgutil.iter_modules(engine.__path__):
        importlib.import_module(f"xectool.engine.{module.name}")
    assert callable(getattr(engine, name))


def test_a_notebook_completes_what_is_loaded_later() -> None:
    """`dir(engine)` held none of the functions: TAB after `engine.` showed nothing."""
    assert {*FUNCTIONS, "diagnose", "runs"} <= set(dir(engine))
    assert {"run", "nan_batch", "mlflow"} <= set(dir(engine.diagnose))
    assert "__doc__" in dir(engine)
    assert all(callable(getattr(engine, name)) for name in set(engine.__all__) - {"config", "diagnose", "runs"})


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = engine.trian


def test_importing_the_api_loads_nothing_heavy() -> None:
    code = "import sys; from xectool import engine; print(sorted({'torch', 'uproot', 'pydantic'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [300 * "y", f"{300 * 'y'}/a.root", "~nobody-of-that-name/a.root", ""])
def test_a_name_that_no_file_can_have_is_a_mistake_of_the_caller(name: str) -> None:
    for call in (
        lambda: engine.check_data([name]),
        lambda: engine.check_data(["@" + name]),
        lambda: engine.check_data([__file__], CheckOptions(config=name)),
        lambda: engine.inspect_ckpt(name),
        lambda: engine.export(name),
        lambda: engine.predict(name, [__file__]),
    ):
        with pytest.raises(XecError):
            call()

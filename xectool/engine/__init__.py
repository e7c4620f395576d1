"""The Python API: one function a command, plain values in, a frozen result out.

``from xectool import engine`` loads nothing heavy; each function imports what it needs on its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xectool.engine.config as config
    import xectool.engine.runs as runs
    from xectool.engine.prediction import predict
    from xectool.engine.simulation import simulate
    from xectool.engine.training import train

__all__ = ["config", "predict", "runs", "simulate", "train"]

# A function lives in a module of another name: importing a module binds its name here, and would hide the function.
_FUNCTIONS = {"predict": "prediction", "simulate": "simulation", "train": "training"}
_MODULES = ("config", "runs")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"xectool.engine.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"xectool.engine.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'xectool.engine' has no attribute '{name}'")

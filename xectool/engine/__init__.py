"""The Python API: one function a command, plain values in, a frozen result out.

``from xectool import engine`` loads nothing heavy; each function imports what it needs on its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xectool.engine.config as config
    import xectool.engine.runs as runs
    from xectool.engine.predict import predict
    from xectool.engine.simulate import simulate
    from xectool.engine.train import train

__all__ = ["config", "predict", "runs", "simulate", "train"]

_MODULES = {"config", "runs"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'xectool.engine' has no attribute '{name}'")
    module = importlib.import_module(f"xectool.engine.{name}")
    value = module if name in _MODULES else getattr(module, name)
    # Importing a submodule binds its own name here; the function of that name takes its place.
    globals()[name] = value
    return value

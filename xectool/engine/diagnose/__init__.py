"""The ``diagnose`` commands: one function a subcommand, each loaded on its first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xectool.engine.arguments import typed

if TYPE_CHECKING:
    from xectool.engine.diagnose.compiling import compile
    from xectool.engine.diagnose.gradient_norms import gradients
    from xectool.engine.diagnose.hanging import hang, stacks
    from xectool.engine.diagnose.loading_speed import loader
    from xectool.engine.diagnose.log_files import log
    from xectool.engine.diagnose.machine import environment
    from xectool.engine.diagnose.memory_use import memory
    from xectool.engine.diagnose.module_costs import modules
    from xectool.engine.diagnose.nonfinite import nan_batch
    from xectool.engine.diagnose.ranks_together import distributed
    from xectool.engine.diagnose.record_query import query
    from xectool.engine.diagnose.repeating import reproducibility
    from xectool.engine.diagnose.replaying import replay
    from xectool.engine.diagnose.run_health import loss, run
    from xectool.engine.diagnose.run_status import status
    from xectool.engine.diagnose.tracking_database import mlflow

__all__ = [
    "compile",
    "distributed",
    "environment",
    "gradients",
    "hang",
    "loader",
    "log",
    "loss",
    "memory",
    "mlflow",
    "modules",
    "nan_batch",
    "query",
    "replay",
    "reproducibility",
    "run",
    "stacks",
    "status",
]

# A function lives in a module of another name: importing a module binds its name here, and would hide the function.
_FUNCTIONS = {
    "compile": "compiling",
    "distributed": "ranks_together",
    "environment": "machine",
    "gradients": "gradient_norms",
    "hang": "hanging",
    "loader": "loading_speed",
    "log": "log_files",
    "loss": "run_health",
    "memory": "memory_use",
    "mlflow": "tracking_database",
    "modules": "module_costs",
    "nan_batch": "nonfinite",
    "query": "record_query",
    "replay": "replaying",
    "reproducibility": "repeating",
    "run": "run_health",
    "stacks": "hanging",
    "status": "run_status",
}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        found = getattr(importlib.import_module(f"xectool.engine.diagnose.{_FUNCTIONS[name]}"), name)
        return typed(found, f"engine.diagnose.{name}")
    raise AttributeError(f"module 'xectool.engine.diagnose' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return what a notebook completes: the functions, none of which is loaded before its first use."""
    return sorted({"__doc__", "__file__", "__name__", *__all__})

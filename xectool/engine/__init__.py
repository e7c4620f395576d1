"""The Python API: one function a command, plain values in, a frozen result out.

``from xectool import engine`` loads nothing heavy; each function imports what it needs on its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xectool.engine.arguments import typed

if TYPE_CHECKING:
    import xectool.engine.config as config
    import xectool.engine.diagnose as diagnose
    import xectool.engine.runs as runs
    from xectool.engine.checking import check_data
    from xectool.engine.comparison import compare
    from xectool.engine.converting import convert
    from xectool.engine.explanation import explain
    from xectool.engine.exporting import export
    from xectool.engine.inspection import inspect_ckpt
    from xectool.engine.launching import command_again, ranks_wanted, train_ranks
    from xectool.engine.live import control, watch
    from xectool.engine.lr_sweeping import lr_sweep
    from xectool.engine.memory_estimate import estimate_memory
    from xectool.engine.prediction import predict
    from xectool.engine.preparing import prepare
    from xectool.engine.ranks.outcome import is_launched, run_as_rank
    from xectool.engine.repairing import repair
    from xectool.engine.reporting import report
    from xectool.engine.simulation import simulate
    from xectool.engine.slurm.script import JobRequest
    from xectool.engine.submitting import submit
    from xectool.engine.training import train

__all__ = [
    "JobRequest",
    "check_data",
    "command_again",
    "compare",
    "config",
    "control",
    "convert",
    "diagnose",
    "estimate_memory",
    "explain",
    "export",
    "inspect_ckpt",
    "is_launched",
    "lr_sweep",
    "predict",
    "prepare",
    "ranks_wanted",
    "repair",
    "report",
    "run_as_rank",
    "runs",
    "simulate",
    "submit",
    "train",
    "train_ranks",
    "watch",
]

# A function lives in a module of another name: importing a module binds its name here, and would hide the function.
_FUNCTIONS = {
    "JobRequest": "slurm.script",
    "check_data": "checking",
    "command_again": "launching",
    "compare": "comparison",
    "control": "live",
    "convert": "converting",
    "estimate_memory": "memory_estimate",
    "explain": "explanation",
    "export": "exporting",
    "inspect_ckpt": "inspection",
    "is_launched": "ranks.outcome",
    "lr_sweep": "lr_sweeping",
    "predict": "prediction",
    "prepare": "preparing",
    "ranks_wanted": "launching",
    "repair": "repairing",
    "report": "reporting",
    "run_as_rank": "ranks.outcome",
    "simulate": "simulation",
    "submit": "submitting",
    "train": "training",
    "train_ranks": "launching",
    "watch": "live",
}
_MODULES = ("config", "diagnose", "runs")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"xectool.engine.{name}")
    if name in _FUNCTIONS:
        found = getattr(importlib.import_module(f"xectool.engine.{_FUNCTIONS[name]}"), name)
        return found if isinstance(found, type) else typed(found, f"engine.{name}")
    raise AttributeError(f"module 'xectool.engine' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return what a notebook completes: the functions, none of which is loaded before its first use."""
    return sorted({"__doc__", "__file__", "__name__", *__all__})

"""Makes the trainings of real processes cheap, for tests whose subject is neither the network nor the speed.

In a folder of ``PYTHONPATH`` every Python process reads it first, those that ``xectool`` starts too. Networks have one
block a stage instead of two to four, and with ``LEAN_PAUSE_S`` a training rests so long before each step.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


def flatten(backbones: Any) -> None:
    """Build one block a stage: half the CPU of a training, all its operations."""
    backbones.STAGE_DEPTHS, backbones.NUM_HEX_LAYERS = (1, 1), 1


def rest(trainer: Any) -> None:
    """Sleep before each step as long as the environment says."""
    step, pause_s = trainer.Trainer._step, float(os.environ.get("LEAN_PAUSE_S", "0"))

    def slow_step(self: Any, *args: Any) -> Any:
        time.sleep(pause_s)
        return step(self, *args)

    if pause_s:
        trainer.Trainer._step = slow_step


CHANGES = {"xectool.models.backbones": flatten, "xectool.training.trainer": rest}


class _Changed:
    """Finds the modules that are changed, and changes them once they have run."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in CHANGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_change(module: Any) -> None:
            run(module)
            CHANGES[name](module)

        loader.exec_module = run_and_change
        return spec


for loaded in CHANGES.keys() & sys.modules.keys():
    CHANGES[loaded](sys.modules[loaded])
sys.meta_path.insert(0, _Changed)  # type: ignore[arg-type]

"""What is told of validations: a module that is not finite there, a truth in another unit, lost moments on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import uproot
from torch import nn
from xectool import engine
from xectool.checkpoint import store
from xectool.config.load import load_config
from xectool.errors import CheckpointError
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.process.device import plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.triage.validated import finiteness

Config = Callable[..., Path]
ENERGY = {"energy": {"enabled": True, "scale": "auto", "shift": "auto"}, "uvwFI": {"enabled": False}}


def test_a_module_that_is_not_finite_in_evaluation_is_named_and_poisoned_events_are_not_its_fault(
    tiny_config: Config,
) -> None:
    data = open_data(load_config(tiny_config(tasks=ENERGY)).config)
    parts = build_parts(data, plan_execution(data.config.training, "cpu"), Ranks())
    assert finiteness(parts, parts.model, 1.0) == {"finite": True}
    assert finiteness(parts, parts.model, math.nan) == {"finite": False}, "a truth, or events further on"
    name, norm = next((n, m) for n, m in parts.model.named_modules() if isinstance(m, nn.LayerNorm))
    hook = norm.register_forward_hook(lambda module, given, output: output if module.training else output / 0 * 0)
    assert finiteness(parts, parts.model, math.nan) == {
        "finite": False,
        "module": name,
        "module_class": type(norm).__name__,
    }
    assert parts.model.training
    hook.remove()
    # Between two modules: it is none of the one that is handed it.
    forward = type(parts.model).forward_normalized
    parts.model.forward_normalized = lambda x, valid=None: forward(parts.model, x / 0 * 0, valid)  # type: ignore[method-assign]
    assert finiteness(parts, parts.model, math.nan)["module"] == type(parts.model).__name__
    del parts.model.forward_normalized
    with torch.no_grad():
        norm.weight[0] = math.inf
    assert finiteness(parts, parts.model, math.nan) == {"finite": False, "weights": [f"{name}.weight"]}


def events(run_dir: str, kind: str) -> list[Any]:
    return [event for event in RunReader(Path(run_dir)).events() if event.kind == kind]


def test_a_resume_with_a_validation_truth_in_another_unit_records_it(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    config = tiny_config(tasks=ENERGY)
    first = engine.train(config, max_steps=1)
    assert [event.data["target_unit"] for event in events(first.run_dir, "baseline")] == [{}]
    source, target = Path(load_config(config).config.data.val_path), tmp_path / "other_unit.root"
    with uproot.open(source) as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["energyTruth"] = columns["energyTruth"] * 1000
    with TreeWriter(target, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
    again = engine.train(config, overrides=[f"data.val_path={target}"], resume=first.run_dir, max_steps=2)
    assert events(again.run_dir, "baseline")[-1].data["val_target_unit"] == {"energy": f"MeV in {target}:tree"}
    assert events(again.run_dir, "baseline")[-1].data["val_target_unit_files"] == {"energy": [f"{target}:tree"]}


def test_a_checkpoint_that_lost_its_moments_is_refused(tiny_config: Config) -> None:
    config = tiny_config(tasks=ENERGY)
    first = engine.train(config, max_steps=2)
    path = Path(first.run_dir) / store.LAST_NAME
    saved = store.load(path)
    saved.training["optimizer"]["state"] = {}
    store.save(path, replace(saved))
    with pytest.raises(CheckpointError, match="of step 2 and holds no optimizer state"):
        engine.train(config, resume=first.run_dir, max_steps=3)

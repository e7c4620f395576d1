"""A training of a small network on simulated events, for benchmarks that look at the loop and not at the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from xectool import engine

EVENTS = 1000
SMALL_MODEL = {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1}


def write_small_run(directory: Path, seed: int, batch_size: int, **sections: dict[str, Any]) -> Path:
    """Simulate events and write a configuration of energy and position; ``sections`` are added to it."""
    data, val = directory / f"train{seed}.root", directory / f"val{seed}.root"
    engine.simulate(str(data), events=EVENTS, seed=seed)
    engine.simulate(str(val), events=100, seed=1000 + seed)
    task = {"enabled": True, "scale": "auto", "shift": "auto"}
    config = {
        "kind": "regressor",
        "data": {"train_path": str(data), "val_path": str(val), "batch_size": batch_size},
        "model": SMALL_MODEL,
        "tasks": {"energy": task, "uvwFI": dict(task)},
        "checkpoint": {"save_dir": str(directory / "runs"), "save_artifacts": False},
        **sections,
    }
    path = directory / f"c{seed}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path

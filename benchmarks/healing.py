"""What five poisoned events cost a run that heals itself: its final validation loss beside those of clean runs.

Four runs a seed: the clean file; the poisoned file with ``guards.on_spike: rewind``; the clean file without the same
five events, from the first step on; and the clean file without five others. The second against the third is what
healing itself changes, the fourth against the first how far a run of this size scatters by itself. ``--pairs`` takes
the first two alone, for sizes at which a run takes long.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from xectool import engine
from xectool.runlog.reader import RunReader
from xectool.training.trainer import Trainer

from benchmarks.diagnosis.files import Rows, changed
from benchmarks.diagnosis.hooks import before_fit

NUM_POISONED = 5


def poison(rows: np.ndarray) -> Callable[[Rows, int], None]:
    """Return what puts five faults into events: two truths, all readings of one, an infinite and an absurd reading."""

    def change(columns: Rows, _: int) -> None:
        columns["energyTruth"][rows[0]] *= 1000
        columns["energyTruth"][rows[1]] *= -3000
        columns["npho"][rows[2]] *= 1000
        columns["npho"][rows[3], 7] = np.inf
        columns["npho"][rows[4], 7] = 1e30

    return change


def final_loss(directory: Path, name: str, data: Path, seed: int, epochs: int) -> tuple[float, int]:
    """Train; return the last validation loss and how many events were put in quarantine."""
    task = {"enabled": True, "scale": "auto", "shift": "auto"}
    config: dict[str, Any] = {
        "kind": "regressor",
        "data": {"train_path": str(data), "val_path": str(directory / "val.root"), "batch_size": 8},
        "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1},
        "tasks": {"energy": task, "uvwFI": task},
        "training": {"epochs": epochs, "seed": seed, "lr": 1e-3, "lr_scheduler": "cosine"},
        "checkpoint": {"save_dir": str(directory / "runs"), "save_artifacts": False},
        "mlflow": {"enabled": False, "run_name": name},
        "guards": {"on_spike": "rewind"},
    }
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    result = engine.train(path)
    left_out = [e.data["total"] for e in RunReader(Path(result.run_dir)).events() if e.kind == "quarantine"]
    return float(result.metrics["val/loss"]), max(left_out, default=0)


def without(rows: np.ndarray, run: Callable[[], tuple[float, int]]) -> float:
    """Return the loss of a run whose loader never serves these entries of its only file."""
    fit = Trainer.fit
    before_fit(lambda trainer: trainer.parts.train_loader.exclude(np.zeros(len(rows), np.int64), rows))
    try:
        return run()[0]
    finally:
        Trainer.fit = fit  # type: ignore[method-assign]


def row(directory: Path, seed: int, events: int, epochs: int, *, pairs: bool = False) -> str:
    """Return the line of one seed; of ``pairs`` the clean and the healed run alone."""
    engine.simulate(str(directory / "clean.root"), events=events, seed=seed)
    engine.simulate(str(directory / "val.root"), events=max(40, events // 4), seed=1000 + seed)
    chosen = np.random.default_rng(seed).choice(events, 2 * NUM_POISONED, replace=False)
    same, other = chosen[:NUM_POISONED], chosen[NUM_POISONED:]
    clean = directory / "clean.root"
    (bad,) = changed([clean], directory / "bad", poison(same))
    whole, _ = final_loss(directory, "whole", clean, seed, epochs)
    healed, found = final_loss(directory, "healed", bad, seed, epochs)
    others: list[float] = []
    if not pairs:
        others.append(without(same, lambda: final_loss(directory, "same", clean, seed, epochs)))
        others.append(without(other, lambda: final_loss(directory, "other", clean, seed, epochs)))
    beside = [f"{loss:.5f} ({100 * (loss / whole - 1):+.2f} %)" for loss in (healed, *others)]
    cells = [seed, f"{whole:.5f}", beside[0], f"{found} of {NUM_POISONED}", *(beside[1:] or ["", ""])]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--events", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--pairs", action="store_true", help="the clean and the healed run alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}\n")
    print("| seed | clean | five poisoned, healed | found | clean without the same five | without five others |")
    print("|---|---|---|---|---|---|")
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "bad").mkdir()
            print(row(Path(name), seed, options.events, options.epochs, pairs=options.pairs), flush=True)


if __name__ == "__main__":
    main()

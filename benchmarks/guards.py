"""False alarms and cost of all guards: sound runs of a small network, with the time the guards take inside real steps.

Every event of a kind that names a fault counts as a false alarm. The cost is CPU time of the training thread between
entering and leaving a guard, so caches are as cold as they are in a training.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from xectool import engine
from xectool.runlog.reader import RunReader
from xectool.training.guards.set import GuardSet
from xectool.training.healing.plausible import PlausibleEvents
from xectool.training.symptoms.spike import SpikeDetector
from xectool.training.trainer import Trainer

from benchmarks.small_run import write_small_run
from benchmarks.thread_clock import ThreadClock

BATCH, EPOCHS = 4, 8  # 250 steps an epoch
STEP_S = 0.010
SOUND = frozenset(
    {
        "run_start", "input_scale", "baseline", "startup", "validation", "audit", "ranks", "checkpoint", "grad_norm",
        "schedule_restart", "tracker", "signal", "control_socket", "finished",
    }
)  # fmt: skip
MACHINE = frozenset({"data_wait", "memory_warning", "disk_low", "hang"})
"""Said of a busy machine as well; they are counted apart."""
WATCHED = (
    (GuardSet, "before_step"),
    (GuardSet, "after_step"),
    (PlausibleEvents, "look"),
    (SpikeDetector, "judge"),
    (SpikeDetector, "accept"),
)


class Meter:
    """CPU seconds the guards took in each step."""

    def __init__(self) -> None:
        self.guards = ThreadClock()
        self.steps: list[float] = []

    def attach(self) -> None:
        """Time every moment at which a guard looks at a step."""
        for kind, name in WATCHED:
            self.guards.watch(kind, name)
        whole = Trainer._step

        def step(trainer: Trainer, *arguments: Any) -> None:
            self.guards.seconds = 0.0
            whole(trainer, *arguments)
            self.steps.append(self.guards.seconds)

        Trainer._step = step  # type: ignore[method-assign]


def train(directory: Path, seed: int, epochs: int) -> Counter[str]:
    """Train on sound events; return what the run recorded, by kind."""
    path = write_small_run(
        directory,
        seed,
        BATCH,
        training={"epochs": epochs, "seed": seed, "lr": 5e-4, "lr_scheduler": "cosine", "warmup_epochs": 1},
        mlflow={"enabled": False},
        guards={"on_spike": "rewind"},
    )
    result = engine.train(path, run_name=f"seed{seed}")
    return Counter(event.kind for event in RunReader(Path(result.run_dir)).events())


def row(seed: int, found: Counter[str], costs: list[float]) -> str:
    """Return the line of one run."""
    alarms = Counter({kind: count for kind, count in found.items() if kind not in SOUND | MACHINE})
    machine = Counter({kind: count for kind, count in found.items() if kind in MACHINE})
    middle = statistics.median(costs)
    mean = statistics.fmean(costs)
    said = [", ".join(f"{kind} {count}" for kind, count in part.items()) or "none" for part in (alarms, machine)]
    return (
        f"| {seed} | {len(costs)} | {said[0]} | {said[1]} | {1e6 * middle:.0f} us ({100 * middle / STEP_S:.1f} %) | "
        f"{1e6 * mean:.0f} us ({100 * mean / STEP_S:.1f} %) |"
    )


def main() -> None:
    """Train some seeds and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    meter = Meter()
    meter.attach()
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| seed | steps | false alarms | of the machine | median a step, of 10 ms | mean |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as name:
        for seed in range(1, options.seeds + 1):
            found = train(Path(name), seed, options.epochs)
            print(row(seed, found, meter.steps), flush=True)
            meter.steps = []


if __name__ == "__main__":
    main()

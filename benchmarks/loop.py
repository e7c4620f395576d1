"""What a training spends beside its steps: recorder, guards, control, progress and tracking together.

A real ``engine.train`` with everything on: CPU of the training thread in an epoch, without the step itself and
without putting the batches together, a step. Norms of blocks inside the step are in ``benchmarks.recorder``.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from xectool import engine
from xectool.data.batch_sources import CachedBatches, WindowBatches
from xectool.training.state import Progress
from xectool.training.step import Stepper
from xectool.training.trainer import Trainer

from benchmarks.small_run import write_small_run
from benchmarks.thread_clock import ThreadClock

STEP_S = 0.050
BATCH = 2


class Meter:
    """CPU seconds of the training thread between the ends of two steps, without the work itself."""

    def __init__(self) -> None:
        self.work = ThreadClock()
        self.steps: dict[str, list[float]] = {"first epoch": [], "later epochs": []}
        self._began = 0.0

    def attach(self) -> None:
        """Time the steps, the batches and the epochs of every training from now on."""
        for kind, name in ((Stepper, "run"), (WindowBatches, "batch"), (CachedBatches, "batch")):
            self.work.watch(kind, name)
        step = Trainer._step

        def counted(trainer: Trainer, progress: Progress, *arguments: Any) -> None:
            within = progress.batch > 0
            step(trainer, progress, *arguments)
            now = time.thread_time()
            if within:
                part = "first epoch" if progress.epoch == 1 else "later epochs"
                self.steps[part].append(now - self._began - self.work.seconds)
            self._began, self.work.seconds = now, 0.0

        Trainer._step = counted  # type: ignore[method-assign]


def main() -> None:
    """Train once and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    meter = Meter()
    meter.attach()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        training = {"epochs": options.epochs, "warmup_epochs": 0}
        tracker = {"tracking_uri": f"sqlite:///{directory}/mlflow.db"}
        engine.train(write_small_run(directory, 1, BATCH, training=training, mlflow=tracker), run_name="loop")
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| beside the step | steps | median CPU | of 50 ms | mean CPU | of 50 ms |\n|---|---|---|---|---|---|")
    for part, costs in ((part, costs) for part, costs in meter.steps.items() if costs):
        shown = [(f"{1e6 * cost:.0f} us", f"{100 * cost / STEP_S:.2f} %") for cost in (median(costs), fmean(costs))]
        print(f"| {part} | {len(costs)} | {' | '.join(cell for pair in shown for cell in pair)} |")


if __name__ == "__main__":
    main()

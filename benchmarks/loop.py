"""What a training spends beside its steps: recorder, guards, control, progress and tracking together.

A real ``engine.train`` with everything on: CPU of the training thread in an epoch, without the step itself and
without putting the batches together, a step, and which part takes how much of it. The clocks of the parts cost more
than some parts, so they run in every second step, and the whole is that of the others. The loop itself, which is what
no part takes, is also that of a training without them. Where the mean of all parts over all steps is above ``--limit``
of 50 ms it ends with exit code 1: a training of many epochs has a smaller share of first ones, in which every event is
looked at. Norms of blocks inside the step are in ``benchmarks.recorder``.
With ``--attached S``: what all threads of the training spend beside the step while ``watch`` looks and ``ctl`` asks
every two seconds from another process, against the ten seconds before each time, for S seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import torch
from xectool import engine
from xectool.data.batch_sources import CachedBatches, WindowBatches
from xectool.engine.live import Watch
from xectool.training.guards.set import GuardSet
from xectool.training.healing.healer import Healer
from xectool.training.record.recorder import FlightRecorder
from xectool.training.stepping.epoch_stats import EpochStats
from xectool.training.stepping.state import Progress
from xectool.training.stepping.step import Stepper
from xectool.training.trainer import Trainer

from benchmarks.small_run import write_small_run
from benchmarks.thread_clock import ThreadClock

STEP_S = 0.050
BATCH = 2
SHARED = multiprocessing.get_context("spawn")
BLOCK_S = 10.0
LOOK_EVERY_S = 2.0
LIMIT: Final = "most of 50 ms that all parts may take in the mean of all steps; more ends with exit code 1 (default 1)"
FIRST, LATER = "first epoch", "later epochs"
PARTS: Final[dict[str, tuple[tuple[type, str], ...]]] = {
    "recorder": ((FlightRecorder, "begin"), (FlightRecorder, "step")),
    "guards": ((GuardSet, "before_step"), (GuardSet, "after_step"), (Trainer, "_look_at_weights")),
    "readings": ((Trainer, "_look_at_readings"),),
    "healing": ((Healer, "take"),),
    "progress": ((EpochStats, "add"), (Trainer, "_show")),
    "control": ((Trainer, "_must_stop"), (Trainer, "_save_if_wanted")),
    "tracker": ((Trainer, "_ask_tracker"),),
}
"""What is called between two steps, by the part that it belongs to."""


class Meter:
    """CPU seconds of the training thread between the ends of two steps, without the work itself."""

    def __init__(self) -> None:
        self.work = ThreadClock()
        self.parts = {part: ThreadClock(beside=self.work) for part in PARTS}
        self.steps: dict[str, list[float]] = {FIRST: [], LATER: []}
        self.shares: dict[str, list[dict[str, float]]] = {FIRST: [], LATER: []}
        self.blocks: dict[int, list[float]] = {}  # CPU of all threads a step, by the number of the block
        self.block = SHARED.Value("i", -1)
        self._began = self._all = 0.0
        self._parts_run = True

    def attach(self) -> None:
        """Time the steps, the batches and the epochs of every training from now on."""
        for kind, name in ((Stepper, "run"), (WindowBatches, "batch"), (CachedBatches, "batch")):
            self.work.watch(kind, name)
        for part, methods in PARTS.items():
            for kind, name in methods:
                self.parts[part].watch(kind, name)
        step = Trainer._step

        def counted(trainer: Trainer, progress: Progress, *arguments: Any) -> None:
            within = progress.batch > 0
            step(trainer, progress, *arguments)
            now, everything = time.thread_time(), time.process_time()
            if within:
                epoch = FIRST if progress.epoch == 1 else LATER
                if self._parts_run:
                    self.shares[epoch].append({part: clock.seconds for part, clock in self.parts.items()})
                else:
                    self.steps[epoch].append(now - self._began - self.work.seconds)
                    self.blocks.setdefault(self.block.value, []).append(everything - self._all - self.work.seconds)
            self._parts_run = not self._parts_run
            for clock in self.parts.values():
                clock.seconds, clock.runs = 0.0, self._parts_run
            self.work.seconds = 0.0
            self._began, self._all = time.thread_time(), time.process_time()  # not what was done here

        Trainer._step = counted  # type: ignore[method-assign]


def attend(run: Path, block: Any, seconds: float) -> None:
    """Watch a training and ask it for its own clipping in every second block of time, then stop it.

    Args:
        run: Its directory.
        block: Number of the block, for the training to read; -1 outside.
        seconds: How long to go on.
    """
    while not (run / "checkpoint_last.pt").exists():  # the first epoch is another matter
        time.sleep(0.5)
    watching, looks, cpu_s = Watch(run), 0, 0.0
    for number in range(int(seconds / BLOCK_S)):
        block.value, end = number, time.monotonic() + BLOCK_S
        while number % 2 and time.monotonic() < end:
            began = time.process_time()
            watching.look()
            engine.control(run, "clip", value=1.0)
            looks, cpu_s = looks + 1, cpu_s + time.process_time() - began
            time.sleep(LOOK_EVERY_S)
        time.sleep(max(0.0, end - time.monotonic()))
    block.value = -1
    print(f"{looks} looks and requests, {1e3 * cpu_s / max(looks, 1):.1f} ms of CPU each in a process of their own\n")
    engine.control(run, "stop")


def print_pairs(blocks: dict[int, list[float]]) -> None:
    """Print what the blocks with somebody attached spent more than those before them."""
    pairs = [
        (fmean(blocks[number - 1]), fmean(blocks[number])) for number in sorted(blocks) if number > 0 and number % 2
    ]
    more = [attached - alone for alone, attached in pairs]
    shown = [f"{1e6 * cost:+.0f} us ({cost / STEP_S:+.2%})" for cost in (median(more), min(more), max(more))]
    print(f"\n| pairs | beside the step, alone | more with watch and ctl: median | least | most |\n{'|---' * 5}|")
    print(f"| {len(pairs)} | {1e6 * fmean(alone for alone, _ in pairs):.0f} us | {' | '.join(shown)} |")


def print_shares(meter: Meter) -> None:
    """Print what each part takes of it, on the mean of every second step of an epoch."""
    print(f"\n| part | {FIRST}: mean CPU | of 50 ms | {LATER}: mean CPU | of 50 ms |\n{'|---' * 5}|")
    rows = {part: [fmean(step[part] for step in meter.shares[epoch]) for epoch in (FIRST, LATER)] for part in PARTS}
    whole = [fmean(meter.steps[epoch]) for epoch in (FIRST, LATER)]
    rows["the loop itself"] = [cost - sum(row[n] for row in rows.values()) for n, cost in enumerate(whole)]
    for part, costs in sorted(rows.items(), key=lambda row: -sum(row[1])):
        print(f"| {part} | {' | '.join(f'{1e6 * cost:.0f} us | {cost / STEP_S:.2%}' for cost in costs)} |")


def main() -> None:
    """Train once, print Markdown tables, and fail where the loop costs too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=1.0, metavar="PERCENT", help=LIMIT)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--attached", type=float, metavar="S", help="look and ask from outside, in turn, for S seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    meter = Meter()
    meter.attach()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        training = {"epochs": 100_000 if options.attached else options.epochs, "warmup_epochs": 0}
        tracker = {"tracking_uri": f"sqlite:///{directory}/mlflow.db"}
        config = write_small_run(directory, 1, BATCH, training=training, mlflow=tracker)
        if options.attached:
            arguments = (directory / "runs" / "loop", meter.block, options.attached)
            outside = SHARED.Process(target=attend, args=arguments)
            outside.start()
            stack.callback(outside.join)
        engine.train(config, run_name="loop")
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| beside the step | steps | median CPU | of 50 ms | mean CPU | of 50 ms |\n|---|---|---|---|---|---|")
    for part, costs in ((part, costs) for part, costs in meter.steps.items() if costs):
        shown = [(f"{1e6 * cost:.0f} us", f"{100 * cost / STEP_S:.2f} %") for cost in (median(costs), fmean(costs))]
        print(f"| {part} | {len(costs)} | {' | '.join(cell for pair in shown for cell in pair)} |")
    print_shares(meter)
    if options.attached:
        print_pairs(meter.blocks)
    whole = fmean([cost for costs in meter.steps.values() for cost in costs]) / STEP_S
    parts = fmean([sum(step.values()) for steps in meter.shares.values() for step in steps]) / STEP_S
    print(f"\nmean of all steps: parts {parts:.2%} of 50 ms, limit {options.limit:g} %; with the loop {whole:.2%}")
    if parts > options.limit / 100:
        sys.exit(1)


if __name__ == "__main__":
    main()

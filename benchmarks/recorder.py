"""What the flight recorder costs inside a real step: the same step with and without it, in turn and in random order.

A third variant is the same as the one without; what it seems to cost is the noise of the measurement. A loop around the
recorder alone would tell a tenth of the truth: there its code and data stay in the caches.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml
from torch import nn
from xectool import engine
from xectool.config.load import load_config
from xectool.data.batch import EventBatch
from xectool.runlog.writer import RunWriter
from xectool.training.process.device import plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.record.heartbeat import Heartbeat
from xectool.training.record.recorder import FlightRecorder, StepTiming
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress

from benchmarks.small_run import SMALL_MODEL

VARIANTS = ("without", "again", "with")


class PlainNorm:
    """The total norm alone, as ``clip_grad_norm_`` takes it."""

    def gradient_norms(self, parameters: list[nn.Parameter]) -> tuple[torch.Tensor, dict[str, float]]:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return nn.utils.get_total_norm(gradients), {}


@dataclass
class Loop:
    """Takes steps on the same few batches, with the recorder or without."""

    parts: RunParts
    flight: FlightRecorder
    batches: list[EventBatch]
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.blocks = self.parts.stepper.blocks

    def step(self, recorded: bool) -> None:
        window, stepper = [self.batches[self.progress.step % len(self.batches)]], self.parts.stepper
        stepper.blocks = self.blocks if recorded else PlainNorm()
        stepper.on_phase = self.flight.phase if recorded else _nothing
        began = time.perf_counter()
        if recorded:
            self.flight.phase("data_wait")
            self.flight.begin(self.progress, window)
        result = stepper.run(window, 1e-5)
        self.progress.step += 1
        if recorded:
            self.flight.step(self.progress, window, result, StepTiming(1e-5, 0.0, time.perf_counter() - began))


def _nothing(name: str) -> None:
    pass


def measure(loop: Loop, rounds: int, synchronize: Callable[[], None]) -> dict[str, list[tuple[float, float]]]:
    """Return thread CPU and wall seconds of each variant, one pair a round."""
    chance, costs = random.Random(1), {name: [] for name in VARIANTS}
    for number in range(rounds + 3):
        for name in chance.sample(VARIANTS, 3):
            synchronize()
            cpu, wall = time.thread_time(), time.perf_counter()
            loop.step(name == "with")
            synchronize()
            if number >= 3:  # the first rounds warm up
                costs[name].append((time.thread_time() - cpu, time.perf_counter() - wall))
    return costs


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval by resampling."""
    chance = random.Random(2)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(500))
    return statistics.median(values), medians[12], medians[487]


def rows(title: str, costs: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    """Yield the lines of the table of one model."""
    for kind, name in enumerate(("thread CPU", "wall")):
        base = statistics.median(cost[kind] for cost in costs["without"])
        for variant in ("again", "with"):
            pairs = zip(costs[variant], costs["without"], strict=True)
            middle, low, high = interval([1e6 * (one[kind] - other[kind]) for one, other in pairs])
            label = "noise: the same step twice" if variant == "again" else "recorder"
            share = f"{middle / base / 1e4:+.2f} % [{low / base / 1e4:+.2f}, {high / base / 1e4:+.2f}]"
            yield f"| {title} | {name} | {1e3 * base:.1f} ms | {label} | {middle:+.0f} us | {share} |"


def build(directory: Path, model: dict[str, object], batch_size: int, device: str) -> RunParts:
    """Return the parts of a run on simulated events."""
    task = {"enabled": True}
    config = {
        "kind": "regressor",
        "data": {
            "train_path": str(directory / "t.root"),
            "val_path": str(directory / "v.root"),
            "batch_size": batch_size,
        },
        "model": model,
        "tasks": {"energy": task, "timing": task, "uvwFI": task},
        "training": {"epochs": 1, "warmup_epochs": 0, "device": device},
        "mlflow": {"enabled": False},
    }
    (directory / "c.yaml").write_text(yaml.safe_dump(config))
    settings = load_config(str(directory / "c.yaml"), []).config
    return build_parts(open_data(settings), plan_execution(settings.training, device), Ranks())


def own_share(writer: RunWriter) -> float:
    """Return the share of the steps' time that the recorder says it took."""
    from xectool.runlog.reader import RunReader

    return RunReader(writer.run_dir).live()[0].own_share


def main() -> None:
    """Measure a small and the default model and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cuda = options.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}\n")
    print(
        "| step | measured | median step | variant | difference | share of the step [95 %] |\n|---|---|---|---|---|---|"
    )
    cases = [("small model, 2 events", SMALL_MODEL, 2), ("default model, 4 events", {}, 4)]
    if cuda:
        cases = [("small model, 64 events", SMALL_MODEL, 64), ("default model, 64 events", {}, 64)]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        engine.simulate(str(directory / "t.root"), events=512, seed=1)
        engine.simulate(str(directory / "v.root"), events=8, seed=2)
        for number, (title, model, batch_size) in enumerate(cases):
            parts = build(directory, model, batch_size, options.device)
            parts.model.train()
            with RunWriter(directory / f"run{number}") as writer, Heartbeat(writer.status, parts.execution.device):
                loop = Loop(parts, FlightRecorder(parts, writer), list(parts.train_loader.epoch(1))[:8])
                costs = measure(loop, options.rounds, torch.cuda.synchronize if cuda else nullcontext)
                print("\n".join(rows(title, costs)))
                print(f"| {title} | the recorder's own clock | | | | {100 * own_share(writer):.2f} % |")
            parts.train_loader.close()


if __name__ == "__main__":
    main()

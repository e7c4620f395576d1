"""``python -m benchmarks.prediction``: eager, compiled and ONNX Runtime on the same events, in turn in one run.

A regressor of four tasks and the default geometry, random weights. Ratios are events per CPU-second over those of the
eager network in the same batches, medians of the rounds; what getting ready takes stands beside them.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.config.load import config_from_dict
from xectool.engine.exports.loading import load_exported
from xectool.models.build import build_model
from xectool.training.memory_estimate.measure import random_batch

from benchmarks.pairs import Comparison, Cost, compare, measure

TASKS = ("angle", "energy", "timing", "uvwFI")
Forward = Callable[..., dict[str, Tensor]]


class Events:
    """A network and events to predict.

    Args:
        width: Encoder width.
        events: Number of events.
    """

    def __init__(self, width: int, events: int) -> None:
        tasks = {name: {"enabled": True, "scale": 1.0, "shift": 0.0} for name in TASKS}
        told = {"kind": "regressor", "tasks": tasks, "model": {"encoder_dim": width}, "training": {"amp": "off"}}
        self.config = config_from_dict(told, "benchmark")
        torch.manual_seed(1)
        self.network: nn.Module = build_model(self.config).eval()
        batch = random_batch(self.config, events, 0)
        self.npho, self.time, self.events = batch.npho, batch.time, events

    @torch.inference_mode()
    def run(self, forward: Forward, size: int) -> dict[str, Tensor]:
        """Predict all events in batches and return the outputs of the last."""
        found: dict[str, Tensor] = {}
        for start in range(0, self.events, size):
            found = forward(self.npho[start : start + size], self.time[start : start + size])
        return found

    def save(self, path: Path) -> Path:
        """Write a checkpoint of the network."""
        meta = {"kind": "regressor", "config": self.config.to_dict(), "epoch": 1, "step": 1}
        store.save(path, Checkpoint({**meta, "progress": {"history": []}}, dict(self.network.state_dict())))
        return path


def batches(rounds: int = 3) -> Comparison:
    """Batches of 256 against the default of the CPU, 64 at this width."""
    work = Events(256, 256)
    name = "prediction, encoder 256: batches of 256 / of 64"
    first, second = (lambda: work.run(work.network, 256)), (lambda: work.run(work.network, 64))
    return compare(name, first, second, rounds, amount=work.events)


def eager_batches(work: Events, sizes: Sequence[int], rounds: int) -> str:
    """Return a row: events per CPU-second of the eager network in batches of each size, measured in turn."""
    work.run(work.network, sizes[0])
    costs: dict[int, list[Cost]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            costs[size].append(measure(lambda size=size: work.run(work.network, size)))  # type: ignore[misc]
    rates = [f"{work.events / statistics.median(cost.cpu_s for cost in costs[size]):.0f}" for size in sizes]
    return " | ".join(rates)


def ready_onnx(work: Events) -> tuple[Forward, Cost]:
    """Return the network in ONNX Runtime and what getting ready took: export, comparison and opening."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = work.save(Path(folder) / "checkpoint.pt"), Path(folder) / "network.onnx"
        cost = measure(lambda: engine.export(source, output=target))
        return load_exported(target, "onnx", "auto", "cpu").network, cost


def ready_compiled(work: Events, size: int) -> tuple[Forward, Cost]:
    """Return the compiled network and what its first batch took; the compiler's cache is empty."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        fast: Forward = torch.compile(work.network, dynamic=False)
        return fast, measure(lambda: work.run(fast, size))


def row(work: Events, name: str, forward: Forward, size: int, rounds: int) -> str:
    """Return a row: ratios of an engine over eager in batches of a size, and the largest difference of an output."""
    result = compare(name, lambda: work.run(work.network, size), lambda: work.run(forward, size), rounds, work.events)
    wanted, found = work.run(work.network, size), work.run(forward, size)
    largest = max(float((wanted[task] - found[task]).abs().max() / wanted[task].abs().max()) for task in TASKS)
    rates = [work.events / statistics.median(c.cpu_s for c in costs) for costs in (result.baseline, result.ours)]
    ratios = f"{result.ratio('cpu_s'):.2f} | {result.ratio('wall_s'):.2f}"
    return f"{name} | {size} | {rates[0]:.0f} | {rates[1]:.0f} | {ratios} | {largest:.0e}"


def report(width: int, options: argparse.Namespace) -> None:
    """Measure one width in this process and print its rows."""
    work = Events(width, options.events)
    start = f"| {width} | {torch.get_num_threads()} |"
    if options.sweep:
        print(start, eager_batches(work, options.batches, options.rounds), "|", flush=True)
        return
    if options.compiled:
        forward, cost = ready_compiled(work, options.batches[0])
        _print_rows(work, start, "compiled", forward, cost, options)
        return
    forward, cost = ready_onnx(work)
    _print_rows(work, start, "onnx", forward, cost, options)


def _print_rows(work: Events, start: str, name: str, forward: Forward, cost: Cost, options: argparse.Namespace) -> None:
    for size in options.batches:
        ready = f"{cost.wall_s:.0f} | {cost.cpu_s:.0f}"
        print(start, row(work, name, forward, size, options.rounds), "|", ready, "|", flush=True)


def main() -> None:
    """Print one table; each width and number of threads has a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 1024])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--events", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sweep", action="store_true", help="the eager network only, batches against each other")
    parser.add_argument("--compiled", action="store_true", help="torch.compile in place of ONNX Runtime: minutes each")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(options.threads[0])
        report(options.one, options)
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}; events per CPU-second\n")
    columns = [str(size) for size in options.batches] if options.sweep else [
        "engine", "batch", "eager", "engine", "CPU ratio", "wall ratio", "outputs differ by", "ready after s", "CPU s",
    ]  # fmt: skip
    print("| width | threads |", " | ".join(columns), "|\n|" + "---|" * (len(columns) + 2), flush=True)
    for width in options.widths:
        for threads in options.threads:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.prediction", *sys.argv[1:]]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            chosen = ["--one", str(width), "--threads", str(threads)]
            subprocess.run([*command, *chosen], check=True, env=environment)


if __name__ == "__main__":
    main()

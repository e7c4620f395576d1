"""``make bench``: every comparison, as a table of ratios."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from xectool import engine
from xectool.config.load import config_from_dict
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.source import open_source

from benchmarks.baselines import plain_uproot
from benchmarks.model_step import pair_of
from benchmarks.pairs import Comparison, compare
from benchmarks.prediction import batches

BATCH = 64
CHUNK = 4096


def startup() -> Comparison:
    """``xectool --help`` against a Typer hello-world."""
    hello = [sys.executable, "-m", "benchmarks.baselines.typer_hello", "--help"]
    ours = [sys.executable, "-m", "xectool", "--help"]

    def run(command: list[str]) -> None:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    return compare("start: Typer hello-world / xectool --help", lambda: run(hello), lambda: run(ours), rounds=9)


def loading(path: str, events: int) -> Comparison:
    """One shuffled epoch of batches against uproot.iterate with a chunk-local shuffle."""
    config = config_from_dict({"kind": "regressor", "tasks": {"energy": {"enabled": True}}}, "benchmark")
    source = open_source(config.data, [path], tasks=("energy", "uvwFI"))
    plan = DataPlan(source.files, batch_size=BATCH, seed=1, chunksize=CHUNK)

    def ours() -> None:
        with EventLoader(source, plan, options=LoaderOptions(num_threads=2)) as loader:
            assert sum(batch.num_events for batch in loader.epoch(1)) == events

    def baseline() -> None:
        assert sum(len(npho) for npho, _ in plain_uproot.batches(path, BATCH, CHUNK, 1)) == events

    name = "load: plain uproot (chunk-local shuffle) / xectool (global shuffle)"
    return compare(name, baseline, ours, rounds=5, amount=events)


def stepping() -> Comparison:
    """One training step against the same network in plain PyTorch; `benchmarks.model_step` shows more sizes."""
    pair = pair_of(256, 16)
    name = "training step, encoder 256, batch 16: plain PyTorch / xectool"
    return compare(name, pair.run_plain, pair.run_ours, rounds=5)


def main() -> None:
    """Run every comparison and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4000)
    events = parser.parse_args().events
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "bench.root")
        engine.simulate(path, events=events, seed=1)
        results = [startup(), loading(path, events), stepping(), batches()]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}; above 1 means xectool is cheaper\n")
    print("| work (baseline / xectool) | wall ratio | CPU ratio | xectool |\n|---|---|---|---|")
    for result in results:
        print(result.row())


if __name__ == "__main__":
    main()

"""How much longer the search for non-finite numbers takes than one pass of the loader over the same events.

``python -m benchmarks.nan_batch`` simulates events, links them as many files, and takes both in turn in one process.
The search is the whole command: configuration, opening files, building the network, scan, tries on the network. Both
read the training events and the 4000 of validation.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
import yaml
from xectool import engine
from xectool.config.load import load_config
from xectool.config.root import RegressorConfig
from xectool.data.source import open_source
from xectool.training.process.device import plan_execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import RunData, training_loader

BATCH = 256


def write_config(directory: Path, events: int, simulated: int) -> Path:
    """Simulate some events, link them until there are enough, and describe a training on them."""
    engine.simulate(str(directory / "one.root"), events=simulated, seed=1)
    names = []
    for number in range(-(-events // simulated)):
        names.append(str(directory / f"part_{number:04d}.root"))
        os.link(directory / "one.root", names[-1])
    task = {"enabled": True, "scale": 0.01, "shift": 0.04}
    config = {
        "kind": "regressor",
        "data": {"train_path": names, "val_path": names[0], "batch_size": BATCH, "num_threads": 2},
        "tasks": {"energy": task},
        "checkpoint": {"save_dir": str(directory)},
        "mlflow": {"enabled": False},
    }
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def loader_pass(config: Path) -> tuple[float, int]:
    """Return seconds and events of one pass of the loaders of training and validation, nothing else."""
    loaded = load_config(config).config
    assert isinstance(loaded, RegressorConfig)
    train, val = (open_source(loaded.data, which, tuple(loaded.tasks.enabled()), True) for which in ("train", "val"))
    execution, threads = plan_execution(loaded.training, "cpu"), torch.get_num_threads()
    torch.set_num_threads(1)  # it is the faster so where the cores are few
    began, events = time.perf_counter(), 0
    for source in (train, val):
        with training_loader(RunData(source, source, loaded), execution, Ranks()) as loader:
            events += sum(batch.num_events for batch in loader.epoch(1))
    seconds = time.perf_counter() - began
    torch.set_num_threads(threads)
    return seconds, events


def main() -> None:
    """Measure in turn and print the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--simulated", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = write_config(Path(directory), options.events, options.simulated)
        loader_pass(config)  # the files are then in memory for both
        ratios, rates = [], []
        for _ in range(options.rounds):
            seconds, events = loader_pass(config)
            began = time.perf_counter()
            result = engine.diagnose.nan_batch(config, device="cpu")
            search = time.perf_counter() - began
            assert not result.found
            assert result.events_scanned == events - options.simulated  # the loader also read those of validation
            ratios.append(search / seconds)
            rates.append(events / search)
            print(f"# loader {seconds:.1f} s, search {search:.1f} s, {result.events_tried} tried", flush=True)
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: "
        f"nan-batch / one loader pass over {events} events = {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}), {statistics.median(rates):.0f} events/s"
    )


if __name__ == "__main__":
    main()

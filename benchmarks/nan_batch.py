"""How much longer the search for non-finite numbers takes than one pass of the loader over the same events.

``python -m benchmarks.nan_batch`` simulates events, links them as many files, and takes both in turn in one process.
The search is the whole command: configuration, opening files, building the network, scan, tries on the network.
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
from xectool.probes.nonfinite.subject import of_config

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
    """Return seconds and events of one pass of the training loader, nothing else."""
    subject = of_config(load_config(config).config, None, "cpu")
    assert subject.batches is not None
    began = time.perf_counter()
    events = sum(batch.num_events for batch in subject.batches())
    seconds = time.perf_counter() - began
    subject.close()
    return seconds, events


def main() -> None:
    """Measure in turn and print the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--simulated", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
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
            assert result.events_scanned == events
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

"""``check-data --deep`` against one pass of the loader over the same file: ``python -m benchmarks.check_data``."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from xectool.checks.probing import probe
from xectool.checks.sample import SampleScan, ScanSettings
from xectool.config.data import DataConfig
from xectool.config.normalization import NormalizationConfig
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.engine.simulation import simulate


def loader_pass(path: Path) -> tuple[float, float]:
    data = DataConfig(train_path=str(path))
    source = open_source(data, "train", ())
    plan = DataPlan(source.files, data.batch_size, 1, chunksize=data.chunksize, num_shards=data.num_shards)
    began = time.perf_counter(), time.process_time()
    with EventLoader(source, plan, options=LoaderOptions.from_config(data, "cpu")) as loader:
        count = sum(len(batch.npho) for batch in loader.epoch(0))
    spent = time.perf_counter() - began[0], time.process_time() - began[1]
    return count / spent[0], count / spent[1]


def check_pass(path: Path) -> tuple[float, float]:
    files = [probe(str(path))]
    began = time.perf_counter(), time.process_time()
    settings = ScanSettings(DataConfig(), NormalizationConfig(), (), None)
    count = SampleScan(settings, files).run().scanned
    spent = time.perf_counter() - began[0], time.process_time() - began[1]
    return count / spent[0], count / spent[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.root"
        simulate(str(path), events=options.events)
        rounds = [(loader_pass(path), check_pass(path)) for _ in range(options.rounds)]
    for name, index in (("loader", 0), ("check-data", 1)):
        wall, cpu = (statistics.median(one[index][axis] for one in rounds) for axis in (0, 1))
        print(f"{name:12} {wall:8.0f} events/s wall {cpu:8.0f} events per CPU-second")
    for axis, what in enumerate(("wall", "CPU")):
        ratio = statistics.median(check[axis] / loader[axis] for loader, check in rounds)
        print(f"check-data / loader, {what}: {ratio:.2f}")


if __name__ == "__main__":
    main()

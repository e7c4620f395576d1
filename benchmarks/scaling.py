"""Cost of plan, files and ranks as they grow: ``python -m benchmarks.scaling``; events are counted, not read.

``--read 1e6`` also reads up to so many simulated ones, an epoch each, from files of 20 000; beyond that the same file
again under other names, so that a million takes 300 MB of disk, and of the page cache, and not 14 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from xectool.config.data import DataConfig
from xectool.data.blocks import SourceFile
from xectool.data.cache.tables import PreparedTables
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.engine.simulation import simulate
from xectool.rootio.writer import TreeWriter
from xectool.training.process.memory import peak_resident_bytes

BATCH, CLUSTER, FILE_EVENTS = 256, 1040, 20_000
BRANCHES: dict[str, Any] = {
    "npho": ("f4", (4760,)), "relative_time": ("f4", (4760,)), "energyTruth": ("f4", ()),
    "run": ("i4", ()), "event": ("i4", ()),
}  # fmt: skip


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def counted_files(events: int, files: int) -> list[SourceFile]:
    each = events // files
    return [SourceFile(f"{i}.root", "tree", each, tuple(range(0, each, CLUSTER))) for i in range(files)]


def plans(most: int) -> None:
    print("| events | files | plan s | epoch's order ms | step us | memory MB |\n|---|---|---|---|---|---|")
    for events in (10**3, 10**4, 10**5, 10**6, 10**7, 10**8):
        if events > most:
            break
        files = counted_files(events, max(1, events // FILE_EVENTS))
        tracemalloc.start()
        made, plan = timed(
            lambda files=files: DataPlan(files, BATCH, 1, num_shards=64, chunksize=65_536, world_size=64)
        )
        ordered, _ = timed(lambda plan=plan: plan.order(1))
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        steps = np.linspace(0, plan.num_steps - 1, 200).astype(int).tolist()
        stepped, _ = timed(lambda plan=plan, steps=steps: [plan.batch_places(1, step, 0) for step in steps])
        row = (made, 1e3 * ordered, 1e6 * stepped / len(steps), memory / 1e6)
        print(
            f"| {events:.0e} | {len(files)} | {row[0]:.3f} | {row[1]:.1f} | {row[2]:.0f} | {row[3]:.1f} |", flush=True
        )


def ranks(events: int) -> None:
    """How many events a rank decompresses for each one it is served, from ROOT."""
    print("\n| ranks | num_shards 8 | num_shards = ranks | from the cache |\n|---|---|---|---|")
    for world in (1, 2, 4, 8, 16, 64):
        found = []
        for shards in (8, max(8, world)):
            plan = DataPlan(
                counted_files(events, 50), BATCH, 1, num_shards=shards, chunksize=8192 * shards // 8, world_size=world
            )
            read = sum(piece.num_events for piece in plan.blocks(1, 0))
            found.append(read / plan.events_of_rank(0))
        print(f"| {world} | {found[0]:.1f} | {found[1]:.1f} | 1.0 |")


def files(most: int, directory: str) -> None:
    print("\n| files of 5 events | open s | with prepared index s | an opened file ms |\n|---|---|---|---|")
    rng = np.random.default_rng(1)
    for count in (1, 10, 100, 1000, 5000):
        if count > most:
            break
        place = Path(directory) / str(count)
        for number in range(count):
            write_small(place / f"{number:05}.root", rng, number)
        config = DataConfig(train_path=str(place))
        tables = PreparedTables(Path(directory) / "tables", True)
        opened, _ = timed(lambda config=config: open_source(config, "train", ("energy",)))
        open_source(config, "train", ("energy",), tables=tables)
        indexed, _ = timed(
            lambda config=config, tables=tables: open_source(config, "train", ("energy",), tables=tables)
        )
        print(f"| {count} | {opened:.2f} | {indexed:.3f} | {1e3 * opened / count:.2f} |", flush=True)


def write_small(path: Path, rng: np.random.Generator, run: int) -> None:
    npho = np.repeat(rng.random((5, 1), np.float32), 4760, axis=1)
    rows = {"npho": npho, "relative_time": npho, "energyTruth": npho[:, 0], "run": np.full(5, run, np.int32)}
    with TreeWriter(path, BRANCHES, compression="zstd:1") as writer:
        writer.extend(rows | {"event": np.arange(5, dtype=np.int32)})


# As the command line begins, before anything loads uproot.
_AS_THE_TOOL = (
    "from xectool.rootio.lean import leave_out_pyarrow; leave_out_pyarrow(); import benchmarks.scaling as this"
)
_AS_THE_TOOL += "; this.main()"


def reading(most: int, directory: str) -> None:
    print("\n| events read | files | CPU us an event | wall us an event | peak MB |\n|---|---|---|---|---|")
    for events in (10**3, 10**4, 10**5, 10**6):
        if events > most:
            break
        place = Path(directory) / f"read{events}"
        for number in range(max(1, events // FILE_EVENTS)):
            if number == 0:
                simulate(str(place / "0.root"), events=min(events, FILE_EVENTS), seed=1)
            else:
                os.link(place / "0.root", place / f"{number}.root")
        command = [sys.executable, "-c", _AS_THE_TOOL, "--one", str(place)]
        said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert said["events"] == events
        row = (1e6 * said["cpu_s"] / events, 1e6 * said["wall_s"] / events, said["peak_bytes"] / 1e6)
        print(f"| {events:.0e} | {said['files']} | {row[0]:.1f} | {row[1]:.1f} | {row[2]:.0f} |", flush=True)


def read_one(directory: str) -> dict[str, float]:
    """Read all files of a directory once, with the defaults of a training."""
    source = open_source(DataConfig(train_path=directory), "train", ("energy",))
    began, cpu, events = time.perf_counter(), time.process_time(), 0
    with EventLoader(source, DataPlan(source.files, BATCH, 1)) as loader:
        for batch in loader.epoch(1):
            events += batch.num_events
    spent = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    return spent | {"events": events, "files": len(source.files), "peak_bytes": peak_resident_bytes()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10**8, help="most events of a plan")
    parser.add_argument("--files", type=int, default=1000, help="most files that are opened")
    parser.add_argument("--read", type=float, default=0, metavar="EVENTS", help="most events that are read")
    parser.add_argument("--one", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(read_one(options.one)))
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}; seconds of CPU\n")
    plans(options.events)
    ranks(min(options.events, 10**6))
    with tempfile.TemporaryDirectory() as directory:
        files(options.files, directory)
        reading(int(options.read), directory)


if __name__ == "__main__":
    main()

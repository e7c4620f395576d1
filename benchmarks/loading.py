"""Events from ROOT files and from the cache against the older system's way: ``python -m benchmarks.loading``.

Pairs in one run, CPU of this process with its threads; first batch and peak memory in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uproot
from xectool.config.data import DataConfig
from xectool.config.normalization import NormalizationConfig
from xectool.data.cache.building import build_missing
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.codec import Codec, Compact, Lossless
from xectool.data.cache.store import CacheStore
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.engine.simulation import simulate
from xectool.models.normalize import Normalizer
from xectool.rootio.inflate import inflate_range
from xectool.training.process.memory import peak_resident_bytes

from benchmarks.baselines import chunked_uproot
from benchmarks.pairs import Comparison, Cost, compare, measure

BATCH, TASKS = 256, ("energy", "uvwFI")
CLUSTER = 1040  # ROOT's own, of two float32 branches of 4760 numbers; the first cluster has one event a basket


def _default(events: int) -> list[int]:
    return [1] * min(CLUSTER, events) + [CLUSTER] * -(-max(0, events - CLUSTER) // CLUSTER)


LAYOUTS: dict[str, tuple[Any, Callable[[int], Iterable[int]]]] = {
    "ROOT's default (1040 baskets of one event, then 1040 events each)": (uproot.ZLIB(1), _default),
    "tiny baskets (one event)": (uproot.ZLIB(1), lambda n: [1] * n),
    "uproot zlib, 1000 events a basket": (uproot.ZLIB(1), lambda n: [1000] * -(-n // 1000)),
    "LZ4, 1000 events a basket": (uproot.LZ4(1), lambda n: [1000] * -(-n // 1000)),
    "ZSTD, 1000 events a basket": (uproot.ZSTD(5), lambda n: [1000] * -(-n // 1000)),
}


def write(path: Path, events: dict[str, np.ndarray], compression: Any, baskets: Iterable[int]) -> None:
    """Write a tree with so many events in each basket."""
    with uproot.recreate(path, compression=compression) as file:
        tree = file.mktree("tree", {name: np.dtype((v.dtype, v.shape[1:])) for name, v in events.items()})
        start = 0
        for count in baskets:
            tree.extend({name: values[start : start + count] for name, values in events.items()})
            start += count


def opened(path: str, codec: Codec | None = None, directory: str = "") -> EventSource:
    """Return the events of a file, with a whole cache where a codec is given."""
    source = open_source(DataConfig(train_path=path), "train", TASKS)
    if codec is None:
        return source
    store = CacheStore(Path(directory) / codec.name)
    store.prepare()
    cache = CachedEvents(source, codec, store)
    build_missing(cache)
    return EventSource(source.files, source.branches, (), cache)


class Ours:
    """One epoch after the other through one loader, as a training reads them."""

    def __init__(self, source: EventSource, num_threads: int, normalizer: Normalizer | None = None) -> None:
        plan = DataPlan(source.files, BATCH, 1, chunksize=8192)
        self.loader = EventLoader(source, plan, options=LoaderOptions(num_threads=num_threads))
        self._normalizer, self._epoch, self._events = normalizer, 0, source.num_events

    def __call__(self) -> None:
        count, self._epoch = 0, self._epoch + 1
        for batch in self.loader.epoch(self._epoch):
            count += batch.num_events
            if self._normalizer is not None:
                self._normalizer(batch.npho, batch.time)
        assert count == self._events


def baseline(path: str, events: int) -> Callable[[], None]:
    def run() -> None:
        assert sum(len(x) for x, _ in chunked_uproot.loader([path], BATCH)) == events

    return run


def decompression(path: str) -> Callable[[], None] | None:
    """Return what inflates all sensor baskets and nothing else, the limit of any reader; None where there are none."""
    body = Path(path).read_bytes()
    packed = []
    with uproot.open(f"{path}:tree") as tree:
        if "RNTuple" in type(tree).__name__:
            return None
        for branch in (tree["npho"], tree["relative_time"]):
            starts, sizes = branch.member("fBasketSeek"), branch.member("fBasketBytes")
            for start, size in zip(starts[: branch.num_baskets], sizes[: branch.num_baskets], strict=True):
                basket = memoryview(body)[start : start + size]
                key_bytes, num_bytes = int.from_bytes(basket[14:16], "big"), int.from_bytes(basket[6:10], "big")
                if key_bytes + num_bytes == size:  # not compressed
                    return None
                packed.append((basket[key_bytes:], num_bytes))

    def run() -> None:
        for blocks, num_bytes in packed:
            inflate_range(blocks, 0, num_bytes)

    return run


def pairs(name: str, path: str, source: EventSource, options: argparse.Namespace) -> list[Comparison]:
    """Compare raw batches, and batches normalised on the CPU, with the older way."""
    normalizer = Normalizer(NormalizationConfig())
    found = []
    also = ((", normalised on this CPU", normalizer),) if "zlib" in name else ()
    for label, norm in (("", None), *also):
        ours = Ours(source, options.threads, norm)
        work = baseline(path, options.events)
        found.append(compare(f"{name}{label}", work, ours, rounds=options.rounds, amount=options.events))
        ours.loader.close()
    limit = decompression(path) if source.cache is None else None
    if limit is not None:
        work = baseline(path, options.events)
        label = "&emsp;decompression alone: no reader gets beyond"
        found.append(compare(label, work, limit, rounds=options.rounds, amount=options.events))
    return found


def against_weaver(python: str, name: str, path: str, options: argparse.Namespace) -> list[Comparison]:
    """Compare raw batches with those of weaver-core's first and second epoch, which runs in a Python of its own."""
    ours, mine = Ours(opened(path), options.threads), list[Cost]()
    theirs: dict[str, list[Cost]] = {"first epoch of a process": [], "epoch after it": []}
    ours()
    for _ in range(options.rounds):
        command = [python, str(Path(__file__).parent / "baselines" / "weaver_loader.py"), path, str(BATCH)]
        said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout.splitlines()[-1])
        for costs, epoch in zip(theirs.values(), said, strict=True):
            assert epoch["events"] == options.events
            costs.append(Cost(epoch["wall_s"], epoch["cpu_s"]))
        mine.append(measure(ours))
    ours.loader.close()
    return [
        Comparison(f"{name}, weaver-core's {which} / xectool", costs, mine, options.events)
        for which, costs in theirs.items()
    ]


def alone(kind: str, path: str, directory: str, threads: int) -> dict[str, float]:
    """Return seconds to the first batch and peak memory of one whole pass, in this process."""
    imported, began, first = peak_resident_bytes(), time.perf_counter(), 0.0
    if kind == "older":
        for _ in chunked_uproot.loader([path], BATCH):
            first = first or time.perf_counter() - began
    else:
        codec = {"root": None, "lossless": Lossless(), "compact": Compact([100.0])}[kind]
        source = opened(path, codec, directory)
        plan = DataPlan(source.files, BATCH, 1, chunksize=8192)
        with EventLoader(source, plan, options=LoaderOptions(num_threads=threads)) as loader:
            for _ in loader.epoch(1):
                first = first or time.perf_counter() - began
    return {"first_s": first, "peak_mb": peak_resident_bytes() / 1e6, "imported_mb": imported / 1e6}


# As the command line begins, before anything loads uproot.
_AS_THE_TOOL = (
    "from xectool.rootio.lean import leave_out_pyarrow; leave_out_pyarrow(); import benchmarks.loading as this"
)


def processes(path: str, directory: str, threads: int) -> None:
    print("\n| one pass in a process of its own | first batch s | peak MB | of it imports |\n|---|---|---|---|")
    for kind in ("older", "root", "lossless", "compact"):
        begin = ["-m", "benchmarks.loading"] if kind == "older" else ["-c", f"{_AS_THE_TOOL}; this.main()"]
        command = [sys.executable, *begin, "--alone", kind, path, directory]
        command += ["--threads", str(threads)]
        runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)]
        first, peak, imported = (
            statistics.median(run[k] for run in runs) for k in ("first_s", "peak_mb", "imported_mb")
        )
        print(f"| {kind} | {first:.2f} | {peak:.0f} | {imported:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--file", help="a file of your own, for instance one that ROOT wrote, instead of the layouts")
    parser.add_argument("--weaver", metavar="PYTHON", help="a Python that has weaver-core: compared with that too")
    parser.add_argument("--alone", nargs=3, metavar=("KIND", "FILE", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        print(json.dumps(alone(*options.alone, options.threads)))
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}; older / xectool, above 1 means xectool is cheaper\n")
    print("| file | wall ratio | CPU ratio | xectool |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        run(options, directory)


def run(options: argparse.Namespace, directory: str) -> None:
    files = {"your file": options.file} if options.file else written(options.events, directory)
    if options.file:
        options.events = open_source(DataConfig(train_path=options.file), "train", TASKS).num_events
    for name, path in files.items():
        for row in pairs(name, path, opened(path), options):
            print(row.row(), flush=True)
        if options.weaver:
            for row in against_weaver(options.weaver, name, path, options):
                print(row.row(), flush=True)
    path = list(files.values())[min(2, len(files) - 1)]
    for codec in (Lossless(), Compact([100.0])):
        for row in pairs(f"warm cache, {codec.name} / ROOT zlib", path, opened(path, codec, directory), options):
            print(row.row(), flush=True)
    processes(path, directory, options.threads)


def written(events: int, directory: str) -> dict[str, str]:
    """Write the layouts from one simulated file."""
    base = Path(directory) / "base.root"
    simulate(str(base), events=events, seed=1, compression="none")
    with uproot.open(f"{base}:tree") as tree:
        names = ["npho", "relative_time", "energyTruth", "uvwTruth", "run", "event"]
        content = tree.arrays(names, library="np")
    files = {}
    for number, (name, (compression, baskets)) in enumerate(LAYOUTS.items()):
        files[name] = str(Path(directory) / f"layout{number}.root")
        write(Path(files[name]), content, compression, baskets(events))
    return files


if __name__ == "__main__":
    main()

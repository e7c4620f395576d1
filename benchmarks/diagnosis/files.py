"""Event files of a benchmark: simulated once a seed, and copies in which single numbers are changed.

Axes: E events, S sensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uproot
from xectool import engine
from xectool.rootio.writer import TreeWriter
from xectool.simulation.dataset import BRANCHES

Rows = dict[str, np.ndarray[Any, Any]]
VARIANTS = 2


@dataclass(frozen=True)
class EventFiles:
    """Training and validation files of one simulated detector."""

    train: tuple[Path, ...]
    val: Path
    num_train: int


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the random numbers of one case: the same for a seed and a name whatever else is run."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def simulated(root: Path, seed: int) -> list[EventFiles]:
    """Simulate the data sets of a seed: other sizes, files, energies, dead channels and pile-up each."""
    found = []
    for number in range(VARIANTS):
        rng = generator(seed, f"data {number}")
        place, events, files = root / f"data_{seed}_{number}", int(rng.integers(48, 112)), int(rng.integers(1, 4))
        options: dict[str, Any] = {
            "dead_fraction": float(rng.uniform(0, 0.05)),
            "pileup": float(rng.choice([0.0, 0.2])),
            "detector_seed": int(rng.integers(1, 1000)),
        }
        first = int(rng.integers(1, 500_000))
        train = engine.simulate(place / "train.root", events=events, files=files, seed=first, **options)
        val = engine.simulate(place / "val.root", events=int(rng.integers(12, 21)), seed=first + 1, **options)
        found.append(EventFiles(tuple(map(Path, train.files)), Path(val.files[0]), events))
    return found


def changed(files: Sequence[Path], directory: Path, change: Callable[[Rows, int], None]) -> list[Path]:
    """Write copies of files with other numbers in them.

    Args:
        files: What is copied.
        directory: Where to.
        change: Given the branches of a file, arrays of E rows, and its index; changes them in place.
    """
    written = []
    for index, source in enumerate(files):
        with uproot.open(source) as opened:
            rows: Rows = {name: np.array(opened["tree"][name].array(library="np")) for name in BRANCHES}
        change(rows, index)
        written.append(directory / source.name)
        with TreeWriter(written[-1], BRANCHES) as writer:
            writer.extend(rows)
    return written

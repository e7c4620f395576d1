"""What makes a run slow or uneven: its files, its disk, its tracking database, its ranks."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from xectool.checkpoint import store
from xectool.data.loader import EventLoader
from xectool.training.ranks.base import Ranks

from benchmarks.diagnosis.catalogue import fault
from benchmarks.diagnosis.lab import Lab


def slow_reading(seconds: float) -> None:
    """Make every batch of the training wait."""
    weighted = EventLoader.weighted

    def waiting(self: EventLoader, batch: Any) -> Any:
        time.sleep(seconds)
        return weighted(self, batch)

    EventLoader.weighted = waiting  # type: ignore[method-assign]


def slow_saving(seconds: float) -> None:
    """Make every checkpoint wait where its bytes are flushed."""
    whole = store._require_whole

    def waiting(part: Path) -> None:
        time.sleep(seconds)
        whole(part)

    store._require_whole = waiting


@fault("every batch 0.15 to 0.4 s late", "flow", "XT-LOADER-SLOW")
def loader(lab: Lab) -> None:
    lab.configure(steps=70, training={"grad_accum_steps": 1})
    seconds = float(lab.rng.uniform(0.15, 0.4))
    lab.train(lambda: slow_reading(seconds))


@fault("a file system that takes 4 to 8 s for a checkpoint", "flow", "XT-CKPT-SLOW")
def saving(lab: Lab) -> None:
    lab.configure(("regressor", "mae"), steps=40)
    seconds = float(lab.rng.uniform(4, 8))
    lab.train(lambda: slow_saving(seconds))


@fault("a locked tracking database", "flow", "XT-DB-LOCKED")
def locked(lab: Lab) -> None:
    lab.configure(steps=50)
    path = lab.directory / "mlflow.db"
    lab.set(mlflow={"enabled": True, "tracking_uri": f"sqlite:///{path}"})
    lab.train(max_steps=3)  # makes the database
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        lab.train(resume="auto")
    finally:
        holder.close()


@fault("a second rank that is behind", "flow", "XT-UNEVEN-RANKS", constructed="the answer of the second rank")
def ranks(lab: Lab) -> None:
    lab.configure(steps=40)
    behind = int(lab.rng.integers(1, 9))

    def gather(self: Ranks, value: Any) -> list[Any]:
        return [value, value - behind] if isinstance(value, int) else [value]

    lab.train(lambda: setattr(Ranks, "gather", gather))

"""Incident folders of a run: which one is looked at, and its events as the step had them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from xectool.config.document import CONFIG_FILE
from xectool.data.batch import EventBatch
from xectool.errors import UsageError
from xectool.probes.instruments.minimal import load_batch
from xectool.probes.repetition.history import RunHistory
from xectool.training.record.incidents import DIRECTORY as INCIDENTS


def chosen_incident(history: RunHistory, number: int | None) -> tuple[Path, dict[str, Any]] | None:
    """Return folder and facts of an incident of a run: of that number, else the first one that was not finite.

    Raises:
        UsageError: There is no incident of that number.
    """
    known = history.incidents()
    if number is not None:
        for folder, facts in known:
            if int(folder.name) == number:
                return folder, facts
        names = ", ".join(folder.name for folder, _ in known) or "none"
        raise UsageError(
            f"the run has no incident {number}; it has {names}", where=str(history.run_dir), fix="leave out --incident"
        )
    nonfinite = [item for item in known if item[1].get("kind") == "nonfinite" and history.incident_counts(item[1])]
    # Every rank writes a folder of the step, and the events at fault are in those of some ranks only.
    same = [item for item in nonfinite if item[1].get("step") == nonfinite[0][1].get("step")]
    return next((item for item in same if item[1].get("suspects")), next(iter(same), None))


def run_of(path: Path) -> tuple[RunHistory, Path, dict[str, Any]] | None:
    """Return run, folder and facts of the incident whose events a file holds; None where it is of no run at hand."""
    folder = path.resolve().parent
    run_dir = folder.parent.parent
    if folder.parent.name != INCIDENTS or path.name != "batch.npz" or not (run_dir / CONFIG_FILE).is_file():
        return None
    history = RunHistory(run_dir)
    return next(((history, own, facts) for own, facts in history.incidents() if own == folder), None)


def incident_window(history: RunHistory, path: Path, facts: dict[str, Any]) -> tuple[EventBatch, ...]:
    """Return the kept events of an incident as the batches of its step."""
    (whole,) = load_batch(path).window
    start, stop = int(facts["batch_start"]), int(facts["batch_stop"])
    size, count = history.config.data.batch_size, stop - start
    # The folder keeps the events of a step in a row; of older runs full batches tell where one ended.
    full = [size] * (count - 1) if (count - 1) * size < whole.num_events <= count * size else []
    sizes = [int(events) for events in facts.get("batch_events") or [*full, whole.num_events - sum(full)]]
    edges = np.cumsum([0, *sizes])
    rows = [np.arange(low, high) for low, high in pairwise(edges)]
    return tuple(
        replace(whole.take(row), epoch=int(facts["epoch"]), step=start + number) for number, row in enumerate(rows)
    )


def incident_files(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the paths that the file indices of the events of an incident mean, as far as it names them."""
    known = {int(index): str(path) for index, path in facts.get("files", {}).items()}
    return tuple(known.get(index, "") for index in range(max(known, default=-1) + 1))

"""Events that a run has left out, at their places among the files that are read now."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from xectool.data.excluded import ExcludedEvents
from xectool.data.loader import EventLoader
from xectool.runlog.records import StepRecord
from xectool.training.events.quarantine import index_by_name

Place = tuple[int, int]  # index of the file, entry


class LeftOut:
    """What the loader of a replay does not serve, step by step as the run left it out.

    Args:
        loader: Serves the training events.
        events: Events as a quarantine lists them; ``step`` says from which step on. Those of other files are passed
            over.
    """

    def __init__(self, loader: EventLoader, events: Iterable[dict[str, Any]]) -> None:
        self._loader, self._events = loader, dict[Place, dict[str, Any]]()
        index = index_by_name(loader.source.files)
        for event in events:
            file = index(str(event["file"]))
            if file is not None:
                self._events.setdefault((file, int(event["entry"])), event)

    def before(self, step: int, served: Collection[Place] = ()) -> None:
        """Leave out what the run left out at a step or before, but for some places, and nothing else."""
        gone = [at for at, event in self._events.items() if int(event["step"]) <= step and at not in served]
        files, entries = np.array(gone, np.int64).reshape(-1, 2).T
        self._loader.excluded = ExcludedEvents().with_events(files, entries)

    def of_step(self, record: StepRecord) -> dict[Place, dict[str, Any]]:
        """Return the events of the batches of a step that the run had left out by then, by their places."""
        plan, batches = self._loader.plan, range(record.batch_start, record.batch_stop)
        parts = [plan.batch_events(record.epoch, batch, self._loader.rank) for batch in batches]
        planned = {place for files, entries in parts for place in zip(files.tolist(), entries.tolist(), strict=True)}
        return {
            place: event
            for place, event in self._events.items()
            if place in planned and int(event["step"]) <= record.step
        }

"""The events with the largest loss of a pass, kept in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xectool.tasks.base import WorstEvent

if TYPE_CHECKING:
    from xectool.data.batch import EventBatch

_FIELDS = np.dtype(
    [("loss", "f8"), ("file_index", "i8"), ("entry", "i8"), ("run", "i8"), ("event", "i8")],
)


class WorstEvents:
    """Keeps the events of largest loss; ties go to the earlier file and entry, so the order of batches is irrelevant.

    Args:
        capacity: How many to keep.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept = np.zeros(0, dtype=_FIELDS)

    def update(self, loss: np.ndarray, candidates: np.ndarray, batch: EventBatch) -> None:
        """Add a batch.

        Args:
            loss: Each event's contribution to the objective, shape (B,); not finite counts as infinite.
            candidates: Which events have a truth at all, shape (B,).
            batch: Their identity.
        """
        rows = np.zeros(len(loss), dtype=_FIELDS)
        rows["loss"] = np.where(np.isfinite(loss), loss, np.inf)
        for name in ("file_index", "entry", "run", "event"):
            rows[name] = getattr(batch, name)
        self._keep(rows[candidates])

    def top(self, count: int) -> list[WorstEvent]:
        """Return up to ``count`` events, largest loss first."""
        return [WorstEvent(*row.item()) for row in self._kept[:count]]

    def state(self) -> dict[str, np.ndarray]:
        """Return the kept events as plain arrays."""
        return {name: self._kept[name].copy() for name in _FIELDS.names or ()}

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Add events kept elsewhere."""
        rows = np.zeros(len(state["loss"]), dtype=_FIELDS)
        for name, values in state.items():
            rows[name] = values
        self._keep(rows)

    def _keep(self, rows: np.ndarray) -> None:
        joined = np.concatenate([self._kept, rows])
        order = np.lexsort((joined["entry"], joined["file_index"], -joined["loss"]))
        self._kept = joined[order[: self.capacity]]

"""Prediction files, read column by column.

Axes: B events, D components of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.rootio.reader import EventFile

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TaskPredictions:
    """Events of one task that have a known truth and a finite prediction.

    Attributes:
        task: Task name.
        rows: Which entries of the file these are, shape (B,).
        prediction: Physical units, shape (B, D).
        truth: Physical units, shape (B, D).
        sigma: Predicted standard deviations, shape (B, D), or None.
        num_nonfinite: Events left out because their prediction is not finite.
        num_unknown: Events left out because their truth is not known.
    """

    task: str
    rows: npt.NDArray[np.int64]
    prediction: FloatArray
    truth: FloatArray
    sigma: FloatArray | None
    num_nonfinite: int
    num_unknown: int

    @property
    def residual(self) -> FloatArray:
        """Prediction minus truth, angles in degrees wrapped into [-180, 180), shape (B, D)."""
        difference = self.prediction - self.truth
        return (difference + 180.0) % 360.0 - 180.0 if self.task == "angle" else difference


class PredictionFile:
    """A prediction file with its columns on demand.

    Args:
        path: ROOT file with the tree ``tree``.
    """

    def __init__(self, path: Path) -> None:
        self._file = EventFile(path, "tree")
        self.num_events = self._file.num_entries

    def __enter__(self) -> PredictionFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def tasks(self) -> list[str]:
        """Tasks with predictions, in the order of the file."""
        return [name.removeprefix("pred_") for name in self._file.branch_names if name.startswith("pred_")]

    def column(self, branch: str) -> FloatArray | None:
        """Return a branch as float64, shape (B, D), or None where the file has none."""
        if branch not in self._file.branch_names:
            return None
        values = self._file.read_column(branch).astype(np.float64)
        return values.reshape(len(values), int(np.prod(values.shape[1:])))

    def truth(self, task: str) -> FloatArray | None:
        """Return the truth of a task with nan for unknown values, shape (B, D), or None where the file has none."""
        values = self.column(f"truth_{task}")
        return None if values is None else np.where(np.abs(values) < UNKNOWN_ABOVE, values, np.nan)

    def identity(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return file_index, entry, run and event, each of shape (B,)."""
        names = ("file_index", "entry", "run", "event")
        return {name: self._file.read_column(name).astype(np.int64) for name in names}

    def task(self, task: str) -> TaskPredictions | None:
        """Return the events of a task that can be compared with the truth, or None without a truth branch."""
        prediction, truth = self.column(f"pred_{task}"), self.truth(task)
        if prediction is None or truth is None or prediction.shape != truth.shape:
            return None
        known, finite = np.isfinite(truth).all(axis=1), np.isfinite(prediction).all(axis=1)
        rows = np.flatnonzero(known & finite)
        sigma = self.column(f"sigma_{task}")
        return TaskPredictions(
            task=task,
            rows=rows,
            prediction=prediction[rows],
            truth=truth[rows],
            sigma=None if sigma is None else sigma[rows],
            num_nonfinite=int((known & ~finite).sum()),
            num_unknown=int((~known).sum()),
        )

"""Residuals of predicted sensors as histograms, read in pieces: memory does not grow with the file.

Axes: R rows (predicted sensors), F faces, N signal bins, K residual bins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xectool.detector import faces
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.rootio.reader import EventFile

FloatArray = npt.NDArray[np.float64]

CONTAINED = 0.68
PIECE_ROWS = 1 << 18
SIGNAL_EDGES = np.geomspace(1.0, 1e6, 31)
MIN_ROWS = 20


@dataclass(frozen=True)
class ResidualAxis:
    """How residuals are binned; the outermost bins take everything beyond.

    Attributes:
        name: ``npho_pull``, ``npho_relative`` or ``time``.
        label: As it is written on an axis.
        limit: Half the range.
    """

    name: str
    label: str
    limit: float

    @property
    def edges(self) -> FloatArray:
        """Edges of the residual bins, shape (K + 1,)."""
        return np.linspace(-self.limit, self.limit, 1201)


PULL = ResidualAxis("npho_pull", r"$(n_\mathrm{pred} - n)\,/\,\sqrt{n}$", 30.0)
RELATIVE = ResidualAxis("npho_relative", r"$(n_\mathrm{pred} - n)\,/\,n$", 3.0)
TIME = ResidualAxis("time", r"$t_\mathrm{pred} - t$ [ns]", 30.0)
AXES = (PULL, RELATIVE, TIME)


@dataclass
class SensorResiduals:
    """Counts of residuals by face and signal.

    Attributes:
        counts: For each axis, shape (F, N, K).
        num_rows: Hidden sensors with a known truth.
        num_dead: Sensors without a truth.
        num_nonfinite: Predictions that are not finite; in no histogram.
    """

    counts: dict[str, npt.NDArray[np.int64]] = field(
        default_factory=lambda: {
            axis.name: np.zeros((len(faces.FACES), len(SIGNAL_EDGES) - 1, len(axis.edges) - 1), np.int64)
            for axis in AXES
        }
    )
    num_rows: int = 0
    num_dead: int = 0
    num_nonfinite: int = 0

    def add(self, rows: dict[str, npt.NDArray[np.generic]]) -> None:
        """Add a piece of a prediction file."""
        truth, predicted = (rows[name].astype(np.float64) for name in ("truth_npho", "pred_npho"))
        known = (rows["mask_type"] == 0) & (truth < UNKNOWN_ABOVE)
        finite = np.isfinite(predicted)
        self.num_dead += int((~known).sum())
        self.num_nonfinite += int((known & ~(finite & np.isfinite(rows["pred_time"].astype(np.float64)))).sum())
        self.num_rows += int(known.sum())
        signal = np.clip(np.searchsorted(SIGNAL_EDGES, truth, side="right") - 1, 0, len(SIGNAL_EDGES) - 2)
        face = rows["face"].astype(np.int64)
        # Where npho is not predicted it reads 1e10.
        usable = known & finite & (predicted < UNKNOWN_ABOVE)
        difference, floor = predicted - truth, np.maximum(truth, 1.0)
        self._count(PULL, difference / np.sqrt(floor), usable, face, signal)
        self._count(RELATIVE, difference / floor, usable, face, signal)
        times = [rows[name].astype(np.float64) for name in ("truth_time", "pred_time")]
        timed = (rows["mask_type"] == 0) & (abs(times[0]) < UNKNOWN_ABOVE) & (abs(times[1]) < UNKNOWN_ABOVE)
        self._count(TIME, 1e9 * (times[1] - times[0]), timed, face, signal)

    def _count(
        self,
        axis: ResidualAxis,
        residual: FloatArray,
        usable: npt.NDArray[np.bool_],
        face: npt.NDArray[np.int64],
        signal: npt.NDArray[np.intp],
    ) -> None:
        counts = self.counts[axis.name]
        bins = counts.shape[2]
        place = np.floor((residual[usable] / axis.limit + 1) * bins / 2).clip(0, bins - 1).astype(np.int64)
        flat = (face[usable] * counts.shape[1] + signal[usable]) * bins + place
        counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)


def read_residuals(path: Path) -> SensorResiduals:
    """Return the residuals of a sensor prediction file.

    Raises:
        DataFileError: The file cannot be read, or is no such file.
    """
    found = SensorResiduals()
    for rows in pieces(path, ("mask_type", "face", "truth_npho", "pred_npho", "truth_time", "pred_time")):
        found.add(rows)
    return found


def pieces(path: Path, branches: tuple[str, ...]) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
    """Yield columns of a prediction file, at most :data:`PIECE_ROWS` rows at once."""
    with EventFile(path, "tree") as file:
        for start in range(0, file.num_entries, PIECE_ROWS):
            stop = min(start + PIECE_ROWS, file.num_entries)
            yield {branch: file.read_column(branch, start, stop) for branch in branches}


def width(counts: npt.NDArray[np.int64], limit: float) -> float:
    """Return the 68th percentile of the absolute residual of one histogram, shape (K,).

    Below 20 rows, and where it falls into the outermost bins, which hold everything beyond, it is not known: nan.
    """
    if counts.sum() < MIN_ROWS:
        return float("nan")
    half = len(counts) // 2
    folded = np.concatenate([[0], (counts[half:] + counts[:half][::-1]).cumsum()])
    found = CONTAINED * folded[-1]
    return float(np.interp(found, folded, np.linspace(0, limit, half + 1))) if found <= folded[-2] else float("nan")


def bias(counts: npt.NDArray[np.int64], limit: float) -> float:
    """Return the median residual of one histogram, shape (K,); nan where it is not known, as for :func:`width`."""
    if counts.sum() < MIN_ROWS:
        return float("nan")
    summed = np.concatenate([[0], counts.cumsum()])
    found = 0.5 * summed[-1]
    if not summed[1] <= found <= summed[-2]:
        return float("nan")
    return float(np.interp(found, summed, np.linspace(-limit, limit, len(counts) + 1)))

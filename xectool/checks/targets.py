"""Sums of the truth of each task: range, spread, order, and what is no number.

Axes: B events of a block, D components of a target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from xectool.checks.cells import KEPT_CELLS, Cell, Place
from xectool.config.tasks import TaskConfig
from xectool.detector.constants import LARGEST_LEGAL, UNKNOWN_ABOVE
from xectool.detector.truth_ranges import NEVER_ZERO, impossible, other_unit, typical_size

Array = npt.NDArray[Any]


FEWEST_EVENTS: Final = 20
"""Events that tell whether a truth is one and the same in all."""
_ROWS_A_FILE: Final = 1000


class OddUnit(NamedTuple):
    """A file whose truth is in another unit, and its typical size."""

    path: str
    unit: str
    size: float


@dataclass
class TargetScan:
    """The truth of one task over a sample.

    Attributes:
        branch: Its branch.
        width: Components.
        known: Events whose truth is known.
        unknown: Events that carry the marker 1e10.
        nonfinite: Events of which a number is NaN, infinite or beyond 1e10.
        first: The first of those numbers; the sensor is the component.
        odd_files: The files that hold such.
        lowest: Smallest of each component, with its place.
        highest: Largest of each component, with its place.
        odd_units: Files whose truth is in another unit, each judged by itself.
        file_orders: Files with the correlation of an event with the next, (D,), and how many pairs it rests on.
        unfilled: Files with events whose truth was never filled, and how many.
        zeros: Files with entries whose truth is 0 in all components, as (n,).
        task: The task, whose range tells which truths are impossible; empty where that is not asked.
        impossible: Files with entries whose truth no event can have, as (n,).
        first_impossible: The first of them, by its largest number.
    """

    branch: str
    width: int
    known: int = 0
    unknown: int = 0
    nonfinite: int = 0
    first: list[Cell] = field(default_factory=list)
    odd_files: list[str] = field(default_factory=list)
    nonpositive: int = 0
    odd_units: list[OddUnit] = field(default_factory=list)
    file_orders: list[tuple[str, Array, int]] = field(default_factory=list)
    unfilled: list[tuple[str, int]] = field(default_factory=list)
    zeros: list[tuple[str, Array]] = field(default_factory=list)
    task: str = ""
    impossible: list[tuple[str, Array]] = field(default_factory=list)
    first_impossible: Cell | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the events that were kept all have the same truth, and are enough to tell."""
        rows = self.kept.rows
        return len(rows) >= FEWEST_EVENTS and bool((rows == rows[0]).all())

    def __post_init__(self) -> None:
        self.lowest: list[Cell | None] = [None] * self.width
        self.highest: list[Cell | None] = [None] * self.width
        self.kept = RowReservoir(self.width)
        self.file_means: list[tuple[str, int, Array]] = []
        self._file, self._file_rows = _Moments(self.width), RowReservoir(self.width, _ROWS_A_FILE)
        self.order, self._file_order = _Order(self.width), _Order(self.width)
        self._zeros = 0

    def add(self, values: Array, place: Place) -> None:
        """Add the truth of a block, shape (B, D)."""
        finite = np.abs(values) <= LARGEST_LEGAL  # NaN compares false
        bad = np.flatnonzero(~finite.all(axis=1))
        self.nonfinite += len(bad)
        if len(bad) and place.path not in self.odd_files[-1:]:
            self.odd_files.append(place.path)
        for row in bad[: KEPT_CELLS - len(self.first)]:
            part = int(np.flatnonzero(~finite[row])[0])
            self.first.append(place.cell(int(row), part, float(values[row, part])))
        known = finite.all(axis=1) & (np.abs(np.where(finite, values, 0)) <= UNKNOWN_ABOVE).all(axis=1)
        self.unknown += len(values) - int(np.count_nonzero(known)) - len(bad)
        rows = np.flatnonzero(known)
        if not len(rows):
            return
        chosen = values[rows].astype(np.float64)
        self.known += len(rows)
        self.nonpositive += int(np.count_nonzero((chosen <= 0).any(axis=1)))
        zero = (chosen == 0).all(axis=1)
        self._zeros += int(np.count_nonzero(zero))
        if self.task in NEVER_ZERO and zero.any():
            self.zeros.append((place.path, place.entries[rows[zero]]))
        self._extremes(chosen, rows, place)
        self._beyond(chosen, rows, place)
        self.kept.add(chosen)
        self._file.add(chosen)
        self._file_rows.add(chosen)
        self.order.add(chosen)
        self._file_order.add(chosen)

    def end_file(self, path: str, task: str) -> None:
        """Close the sums of one file: a wrong one among many good ones does not show in theirs."""
        rows = self._file_rows.rows
        if self._file.count:
            self.file_means.append((path, self._file.count, self._file.mean))
            self.file_orders.append((path, self._file_order.correlation, self._file_order.pairs))
        unit = other_unit(task, rows) if len(rows) >= FEWEST_EVENTS else ""
        if unit:
            self.odd_units.append(OddUnit(path, unit, typical_size(rows)))
        if self._zeros and task in NEVER_ZERO:
            self.unfilled.append((path, self._zeros))
        self._zeros = 0
        self._file, self._file_rows = _Moments(self.width), RowReservoir(self.width, _ROWS_A_FILE)
        self._file_order = _Order(self.width)

    def _beyond(self, chosen: Array, rows: Array, place: Place) -> None:
        bad = np.flatnonzero(impossible(self.task, chosen) if self.task else np.zeros(len(chosen), bool))
        if not len(bad):
            return
        if self.first_impossible is None:
            part = int(np.abs(chosen[bad[0]]).argmax())
            self.first_impossible = place.cell(int(rows[bad[0]]), part, float(chosen[bad[0], part]))
        self.impossible.append((place.path, place.entries[rows[bad]]))

    def _extremes(self, chosen: Array, rows: Array, place: Place) -> None:
        for part in range(self.width):
            low, high = int(chosen[:, part].argmin()), int(chosen[:, part].argmax())
            before = self.lowest[part]
            if before is None or chosen[low, part] < before.value:
                self.lowest[part] = place.cell(int(rows[low]), part, float(chosen[low, part]))
            before = self.highest[part]
            if before is None or chosen[high, part] > before.value:
                self.highest[part] = place.cell(int(rows[high]), part, float(chosen[high, part]))


class _Moments:
    """Count and mean of rows."""

    def __init__(self, width: int) -> None:
        self.count, self._sum = 0, np.zeros(width)

    def add(self, rows: Array) -> None:
        self.count += len(rows)
        self._sum += rows.sum(axis=0)

    @property
    def mean(self) -> Array:
        return self._sum / max(self.count, 1)


class _Order:
    """Correlation of each event with the next along the stream."""

    def __init__(self, width: int) -> None:
        self.pairs = 0
        self._last: Array | None = None
        self._shift: Array = np.zeros(width)
        self._sums = np.zeros((5, width))

    def add(self, rows: Array) -> None:
        if self._last is None:
            self._shift = rows.mean(axis=0)  # sums of centred numbers keep their digits
            centred = rows - self._shift
        else:
            centred = np.concatenate([self._last[None], rows - self._shift])
        first, second = centred[:-1], centred[1:]
        self._sums += np.stack(
            [first.sum(0), second.sum(0), (first * first).sum(0), (second * second).sum(0), (first * second).sum(0)]
        )
        self.pairs += len(first)
        self._last = centred[-1]

    @property
    def correlation(self) -> Array:
        """Lag-1 correlation of each component; 0 where it is constant."""
        if self.pairs < 2:
            return np.zeros(self._sums.shape[1])
        mean_a, mean_b, square_a, square_b, product = self._sums / self.pairs
        spread = (square_a - mean_a**2) * (square_b - mean_b**2)
        safe = spread > 1e-20 * (square_a * square_b)
        found = np.zeros(len(spread))
        np.divide(product - mean_a * mean_b, np.sqrt(np.where(safe, spread, 1.0)), out=found, where=safe)
        return found


class RowReservoir:
    """An evenly spaced choice of rows of a stream, at most ``size``."""

    def __init__(self, width: int, size: int = 100_000) -> None:
        self.size, self.stride, self._seen = size, 1, 0
        self._parts: list[Array] = []
        self._count, self._width = 0, width

    def add(self, rows: Array) -> None:
        """Offer rows, shape (B, D)."""
        chosen = rows[-self._seen % self.stride :: self.stride]
        self._seen += len(rows)
        self._parts.append(chosen)
        self._count += len(chosen)
        while self._count > self.size:
            kept = np.concatenate(self._parts)[::2]
            self._parts, self._count, self.stride = [kept], len(kept), 2 * self.stride

    @property
    def rows(self) -> Array:
        """The kept rows, shape (n, D)."""
        return np.concatenate(self._parts) if self._parts else np.empty((0, self._width))


def typical_error(rows: Any) -> float:
    """Return the 68 % quantile of the distance to the median, mean over components: the error of knowing nothing."""
    return float(np.quantile(np.abs(rows - np.median(rows, axis=0)), 0.6827, axis=0).mean())


def scaled_error(settings: TaskConfig, rows: Any) -> tuple[float, float]:
    """Return the scale of a task and its typical error in units of that scale; 1 of one that is fitted to it."""
    if settings.log_transform:
        rows = np.log(np.maximum(rows, 1e-300))
    if settings.loss_fn.startswith("relative"):
        rows = rows / np.maximum(np.abs(np.median(rows, axis=0)), 1e-300)
    spread = float(np.sqrt(rows.var(axis=0).mean()))
    if settings.scale == "auto":  # a few wild truths stretch the spread, and are told of themselves
        return spread, 1.0 if spread > 0 else 0.0
    scale = float(settings.scale or 1.0)
    return scale, typical_error(rows) / scale if scale > 0 else 0.0

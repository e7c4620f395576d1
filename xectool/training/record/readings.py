"""Report numbers of the files that no event can hold; the network sees a dead sensor or an unknown truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.data.events import EventSource
from xectool.data.extremes import NPHO_HIGH, NPHO_LOW, TIME_HIGH, TIME_LOW, TRUTH_HIGH, Usual
from xectool.detector.constants import DEAD_EVENTS, LARGEST_LEGAL, NUM_SENSORS, UNKNOWN_ABOVE
from xectool.errors import counted, event_named
from xectool.models.normalize import NphoScheme

MAX_NAMED = 10  # readings, or events with more of them, named one by one; the rest is counted
FEW_SENSORS = 3  # of an event that are named one by one
FEWEST_EVENTS = 8  # that tell a dead sensor from a single NaN
MOST_FAINT = 0.5  # of the sensors below the threshold, whose times the network does not see


class InvalidReading(NamedTuple):
    """A line on an invalid number, and whether it is NaN, infinite or as large as 1e10: the rest is noise.

    The event is told as ``[file_index, entry, run, event]``, as other records tell it.
    """

    line: str
    is_no_number: bool
    event: list[int]


class ReadingWatch:
    """Looks at the numbers of one epoch, in which every event occurs once.

    Photons that are NaN, infinite, beyond 1e10 or below the domain of the scheme are reported, times of living sensors
    that are NaN, infinite or beyond 1e10 (not where most faint sensors of the event have such a time), and truth that
    is infinite or beyond. 1e10, the mark of what is not known, is not, nor is NaN as such a mark in a truth, or as that
    of a dead sensor: in nearly all events, as `check-data` takes it.

    Args:
        config: Gives the scheme, and whether anything is looked at (``data.log_invalid_npho``).
        source: Knows the files by the index that the events have.
    """

    def __init__(self, config: RunConfig, source: EventSource) -> None:
        self._source = source
        norm = config.normalization
        self._lowest = NphoScheme(norm.npho_scheme, norm.npho_scale, norm.npho_scale2).lowest
        self._threshold = norm.npho_threshold
        legal = (-LARGEST_LEGAL, LARGEST_LEGAL)
        bounds = {NPHO_LOW: (self._lowest, math.inf), TIME_LOW: legal}
        self._usual = Usual(bounds | dict.fromkeys((NPHO_HIGH, TIME_HIGH, TRUTH_HIGH), legal))
        self._active = config.data.log_invalid_npho
        self._epoch: int | None = None
        self._passed = False
        self._events, self._nan = 0, torch.zeros(NUM_SENSORS, dtype=torch.int64)  # looked at; NaN of each sensor
        self.num_invalid, self._num_named = 0, 0

    def look(self, batch: EventBatch) -> list[InvalidReading]:
        """Return a line for each invalid number of a batch, as far as there is still room for names.

        Args:
            batch: On the CPU; of another epoch than the first one looked at, it is passed over.
        """
        self._epoch = batch.epoch if self._epoch is None else self._epoch
        if not self._active or batch.epoch != self._epoch or not batch.num_events:
            return []
        self._events += batch.num_events
        if self._usual.holds(batch.extremes):
            return []
        lines = []
        for name, values, invalid in self._invalid(batch):
            self.num_invalid += int(invalid.sum())
            for row, places in _by_event(invalid) if self._num_named < MAX_NAMED else ():
                shown = places if len(places) <= FEW_SENSORS else places[:1]
                shown = shown[: max(0, MAX_NAMED - self._num_named)]
                self._num_named += len(shown)
                others = len(places) - 1 if len(shown) < len(places) else 0
                lines += [self._line(batch, name, values, row, place, others) for place in shown]
        return lines

    def passing(self, batches: Iterator[EventBatch], tell: Callable[[InvalidReading], None]) -> Iterator[EventBatch]:
        """Yield the batches of a validation; in the first one ``tell`` gets the line of each invalid number."""
        first, self._passed = not self._passed, True
        for batch in batches:
            for found in self.look(batch) if first else ():
                tell(found)
            yield batch

    def summary(self) -> str:
        """Return one line on all invalid numbers, or an empty string where there were none."""
        if not self.num_invalid:
            return ""
        return (
            f"{counted(self.num_invalid, 'invalid number')} in epoch {self._epoch}; those sensors are treated as dead, "
            "such truth as unknown (data.log_invalid_npho: false to say nothing)"
        )

    def _invalid(self, batch: EventBatch) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield name, values and which of them are invalid, of what holds any; shape (B, S), or (B, D) of a truth."""
        if not _within(batch.npho, self._lowest):
            wrong = ~((batch.npho >= self._lowest) & (batch.npho <= LARGEST_LEGAL))
            yield "photon number", batch.npho, wrong & ~(batch.npho.isnan() & self._dead(batch))
        if not _within(batch.time, -LARGEST_LEGAL):
            absent, known = ~(batch.time.abs() <= LARGEST_LEGAL), batch.npho <= UNKNOWN_ABOVE
            faint = known & (batch.npho < self._threshold)
            # Where most faint sensors of an event have no time, that is how the file marks them.
            marked = (absent & faint).sum(dim=1) > MOST_FAINT * faint.sum(dim=1)
            yield "time", batch.time, absent & known & ~(faint & marked[:, None])
        for task, truth in batch.targets.items():
            yield f"truth of {task}", truth, truth.abs() > LARGEST_LEGAL

    def _dead(self, batch: EventBatch) -> Tensor:
        """Return which sensors, shape (S,), are NaN in nearly all events that were looked at, a batch's among them."""
        self._nan += batch.npho.isnan().sum(dim=0)
        return (self._nan >= DEAD_EVENTS * self._events) & (self._events >= FEWEST_EVENTS)

    def _line(self, batch: EventBatch, name: str, values: Tensor, row: int, place: int, others: int) -> InvalidReading:
        identity = [int(column[row]) for column in (batch.file_index, batch.entry, batch.run, batch.event)]
        index, entry, *numbers = identity
        event = f"{event_named(*numbers)}, entry {entry} of {self._source.files[index].name}"
        more = f" and {counted(others, 'other sensor')}" if others else ""
        sensor = "" if name.startswith("truth") else f", sensor {place}{more}"
        value = float(values[row, place])
        line = f"invalid {name} {value:g}: {event}{sensor}"
        return InvalidReading(line, not abs(value) <= UNKNOWN_ABOVE, identity)


def _by_event(invalid: Tensor) -> Iterator[tuple[int, list[int]]]:
    """Yield each row, shape (B, ...), that has anything, with its places."""
    for row in invalid.any(dim=1).nonzero()[:, 0].tolist():
        yield row, invalid[row].nonzero()[:, 0].tolist()


def _within(values: Tensor, lowest: float) -> bool:
    low, high = torch.aminmax(values)  # both are NaN where one number is
    return float(low) >= lowest and float(high) <= LARGEST_LEGAL

"""Files that no single event gives away: one sensor that outshines all, a gain that drifts, another time offset.

Axes: B events, S sensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch

from xectool.data.batch import EventBatch
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.models.normalize import Normalizer
from xectool.training.healing.file_light import FACTOR

FEWEST_EVENTS: Final = 8  # of a file, whose middle says what is usual there
AT_ONCE: Final = 16  # events that are taken as they come; then one a batch, so that they lie all over the file
MOST_EVENTS: Final = 64
JUDGED_AT: Final = (FEWEST_EVENTS, AT_ONCE, 24, 32, MOST_EVENTS)  # events of a file; at each it would take too long
MOST_FILES: Final = 64
HOT_SHARE: Final = 0.5  # of the light of an event; a gamma right before a sensor gives it a tenth
HOT_EVENTS: Final = 0.9
TIMES_APART: Final = 2.0  # network units, 0.23 us; medians of sound files lie within nanoseconds
DRIFT_EVENTS: Final = 24
GAIN: Final = 2.0  # of light per energy; of sound events 90 % lie within 0.8 to 1.6, and medians of files within 5 %
GAIN_SIGMA: Final = 5.0
ENERGY: Final = "energy"


@dataclass(frozen=True)
class Sign:
    """What a file shows: a message, the indices of the files it is about, and what it means."""

    message: str
    files: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class _Event:
    entry: int
    light: float
    brightest: int
    share: float
    time: float
    energy: float

    @property
    def log_yield(self) -> float:
        """Logarithm of the light per energy, NaN where the energy is not known."""
        return math.log(self.light / self.energy) if self.energy > 0 else math.nan


class FileSigns:
    """The first events of each file, and one a batch after that.

    Args:
        normalizer: Says what the unit of time is.
    """

    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        self._events: dict[int, list[_Event]] = {}
        self._times: dict[int, float] = {}
        self._said: set[tuple[str, int]] = set()

    def look(self, window: Sequence[EventBatch]) -> Iterator[Sign]:
        """Take events of a window; yield each sign of each file once.

        Args:
            window: Batches of B events, photons and times of shape (B, S).
        """
        for batch in window:
            for index in self._take(batch):
                yield from self._new("hot", index, self._hot(index))
                yield from self._new("drift", index, self._drift(index))
                yield from self._new("time", -1, self._apart(index))
                if not {("hot", index), ("drift", index)} & self._said:
                    yield from self._new("yield", index, self._parts_differ(index))
                    yield from self._new("yields", -1, self._yields_differ(index))

    def _new(self, kind: str, index: int, sign: Sign | None) -> Iterator[Sign]:
        if sign is not None and (kind, index) not in self._said:
            self._said.add((kind, index))
            yield sign

    def _take(self, batch: EventBatch) -> set[int]:
        """Take events of files of which few are known; return the files of which as many are as they are judged at."""
        taken: dict[int, int] = {}
        for row, index in enumerate(batch.file_index.tolist()):
            known = len(self._events.get(index, ()))
            fits = known < AT_ONCE or (known < MOST_EVENTS and not taken.get(index))
            if fits and (known or len(self._events) < MOST_FILES) and (event := self._measured(batch, row)):
                self._events.setdefault(index, []).append(event)
                taken[index] = taken.get(index, 0) + 1
        counts = {index: len(self._events[index]) for index in taken}
        return {i for i, count in counts.items() if any(count - taken[i] < at <= count for at in JUDGED_AT)}

    def _measured(self, batch: EventBatch, row: int) -> _Event | None:
        photons, times = batch.npho[row], batch.time[row]
        photons = torch.where(photons.abs() <= UNKNOWN_ABOVE, photons, 0.0)
        light = float(photons.sum(dtype=torch.float64))
        if not light > 0:
            return None
        brightest = int(photons.argmax())
        timed = times[(photons >= max(self._normalizer.npho_threshold, 1.0)) & (times.abs() <= UNKNOWN_ABOVE)]
        time = float(timed.median()) / self._normalizer.time_scale if len(timed) else math.nan
        truth = batch.targets.get(ENERGY)
        energy = math.nan if truth is None else float(truth[row, 0])
        energy = energy if 0 < energy < UNKNOWN_ABOVE else math.nan
        return _Event(int(batch.entry[row]), light, brightest, float(photons[brightest]) / light, time, energy)

    def _hot(self, index: int) -> Sign | None:
        events = self._events[index]
        sensors = [event.brightest for event in events if event.share > HOT_SHARE]
        most = max(set(sensors), key=sensors.count, default=-1)
        if sensors.count(most) < HOT_EVENTS * len(events):
            return None
        share = median(event.share for event in events)
        return Sign(
            f"sensor {most} has {share:.0%} of the light in nearly all events", (index,), "that sensor is broken"
        )

    def _drift(self, index: int) -> Sign | None:
        events = sorted(self._events[index], key=lambda event: event.entry)
        quarter = len(events) // 4
        if len(events) < DRIFT_EVENTS:
            return None
        first, last = (median(event.light for event in part) for part in (events[:quarter], events[-quarter:]))
        ratio = max(first, last) / min(first, last)
        if ratio < FACTOR:
            return None
        course = "rises" if last > first else "falls"
        return Sign(
            f"the light {course} {ratio:.3g}-fold from its first to its last entries", (index,), "its gain drifts"
        )

    def _apart(self, index: int) -> Sign | None:
        times = [event.time for event in self._events[index] if math.isfinite(event.time)]
        if len(times) >= FEWEST_EVENTS:
            self._times[index] = median(times)
        known = self._times
        if len(known) < 2:
            return None
        late, early = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
        apart = known[late] - known[early]
        if apart <= TIMES_APART:
            return None
        seconds = apart * self._normalizer.time_scale
        message = f"the times lie {seconds:.3g} s ({apart:.3g} in network units) later than in the earliest file"
        return Sign(message, (late, early), "their time offsets or units differ")

    def _parts_differ(self, index: int) -> Sign | None:
        """Return that one part of a file has another light per energy than another: its gain drifts or jumps."""
        known = sorted((event for event in self._events[index] if event.energy > 0), key=lambda event: event.entry)
        quarter = len(known) // 4
        if len(known) < DRIFT_EVENTS:
            return None
        parts = [known[start : start + quarter] for start in range(0, 4 * quarter, quarter)]
        low, high = (choose(parts, key=_middle) for choose in (min, max))
        if not _gains_differ(low, high):
            return None
        entries = [f"{part[0].entry} to {part[-1].entry}" for part in (high, low)]
        ratio = math.exp(_middle(high) - _middle(low))
        message = f"entries {entries[0]} have {ratio:.3g} times the light per energy of entries {entries[1]}"
        return Sign(message, (index,), "its gain drifts or jumps")

    def _yields_differ(self, index: int) -> Sign | None:
        """Return that a file has another light per energy than another, of those of which enough is known."""
        own = [event for event in self._events[index] if event.energy > 0]
        if len(own) < FEWEST_EVENTS:
            return None
        sound = {i: events for i, events in self._events.items() if not {("hot", i), ("yield", i)} & self._said}
        for other, events in sound.items() if ("yield", index) not in self._said else ():
            known = [event for event in events if event.energy > 0]
            low, high = sorted((own, known), key=_middle) if len(known) >= FEWEST_EVENTS else (own, own)
            if _gains_differ(low, high):
                files = (index, other) if high is own else (other, index)
                ratio = math.exp(_middle(high) - _middle(low))
                return Sign(f"its light per energy is {ratio:.3g} times that of another file", files, "gains differ")
        return None


def _middle(events: Sequence[_Event]) -> float:
    return median(event.log_yield for event in events)


def _gains_differ(low: Sequence[_Event], high: Sequence[_Event]) -> bool:
    """Return whether light and light per energy differ, and not by the noise of single events.

    An energy in another unit leaves the light as it is, and beams of other energies the light per energy.
    """
    apart = _middle(high) - _middle(low)
    light = [median(math.log(event.light) for event in part) for part in (high, low)]
    noise = math.hypot(*(_error(part) for part in (low, high)))
    return apart > math.log(GAIN) and light[0] - light[1] > math.log(GAIN) / 2 and apart > GAIN_SIGMA * noise


def _error(events: Sequence[_Event]) -> float:
    """Return the standard error of the middle, from the median distance to it."""
    middle = _middle(events)
    distance = median(abs(event.log_yield - middle) for event in events)
    return 1.25 * 1.48 * distance / math.sqrt(len(events))

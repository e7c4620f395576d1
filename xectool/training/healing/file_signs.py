"""Files that no single event gives away: one sensor that outshines all, a gain that drifts, another time offset.

Axes: B events, S sensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import torch

from xectool.data.batch import EventBatch
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.detector.dark_faces import dark_faces
from xectool.detector.photon_statistics import FEWEST_EVENTS, photon_statistics
from xectool.models.normalize import Normalizer
from xectool.training.healing.file_courses import face_goes_off, faces_off, times_apart, true_times_apart
from xectool.training.healing.file_gains import (
    MEASURES,
    PART_EVENTS,
    MeasuredEvent,
    Sign,
    beyond_detector,
    other_gain,
    parts_differ,
)
from xectool.training.healing.file_light import FACTOR

# Events that are taken as they come, as many as parts of a file are told by: small files have no more batches in the
# epoch that is looked at. Then one a batch, so that they lie all over the file.
AT_ONCE: Final = PART_EVENTS
COUNTED: Final = 16  # of them, beside a true energy
MOST_EVENTS: Final = 64
# At each event it would take too long. A file read in batches of 8 has shown 56 of 280 events when the epoch ends, and
# perhaps one part of it only in the first 32.
JUDGED_AT: Final = (FEWEST_EVENTS, COUNTED, AT_ONCE, 32, 40, 48, 56, MOST_EVENTS)
MOST_FILES: Final = 64
HOT_SHARE: Final = 0.5  # of the light of an event; a gamma right before a sensor gives it a tenth
HOT_LEAD: Final = 3.0  # times the second brightest sensor; the middle of sound events is 1.15
HOT_EVENTS: Final = 0.9
ENERGY, TIMING = "energy", "timing"
_LATEST: Final = 1e-5  # s, of a true time in its unit


class FileSigns:
    """The first events of each file, and one a batch after that.

    Args:
        normalizer: Says what the unit of time is.

    Attributes:
        most_files: Files that are looked at, those that come first.
    """

    def __init__(self, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        self.most_files = MOST_FILES
        self._events: dict[int, list[MeasuredEvent]] = {}
        self._said: set[tuple[str, int]] = set()
        self._undecided: dict[str, Sign] = {}

    def look(self, window: Sequence[EventBatch]) -> Iterator[Sign]:
        """Take events of a window; yield each sign of each file once.

        Args:
            window: Batches of B events, photons and times of shape (B, S).
        """
        for batch in window:
            for index in self._take(batch):
                yield from self._new("hot", index, self._hot(index))
                yield from self._new("drift", index, self._drift(index))
                yield from self._new("face", index, face_goes_off(index, self._events))
                for sign in faces_off(self._events):
                    yield from self._new("face", sign.files[0], sign)
                yield from self._times()
                yield from self._gains(index)

    def _times(self) -> Iterator[Sign]:
        """Yield that the light of a file is late, or else its truth."""
        scale = self._normalizer.time_scale
        yield from self._decided("time", times_apart(self._events, scale))
        if ("time", -1) not in self._said and "time" not in self._undecided:
            yield from self._decided("true time", true_times_apart(self._events, scale))

    def _decided(self, kind: str, sign: Sign | None) -> Iterator[Sign]:
        """Yield a sign of one file beside the others; keep one of two, either of which may be odd, for `rest`."""
        self._undecided.pop(kind, None)
        if sign is not None and sign.undecided:
            self._undecided[kind] = sign
        else:
            yield from self._new(kind, -1, sign)

    def rest(self) -> Iterator[Sign]:
        """Yield what further files might have decided, once there are none."""
        while self._undecided:
            kind, sign = self._undecided.popitem()
            yield from self._new(kind, -1, sign)

    def _gains(self, index: int) -> Iterator[Sign]:
        """Yield what is odd about the gain of a file that shows nothing else."""
        if {("hot", index), ("drift", index), ("pedestal", index), ("scale", index)} & self._said:
            return
        for kind, sign in beyond_detector(index, self._events[index]):
            yield from self._new(kind, index, sign)
            return
        for measure in MEASURES:
            yield from self._new(measure.kind, index, parts_differ(index, self._events[index], measure))
            odd = {i for kind, i in self._said if kind in ("hot", "pedestal", measure.kind)}
            if index not in odd:
                rest = {i: events for i, events in self._events.items() if i not in odd}
                yield from self._new(f"{measure.kind} of all", -1, other_gain(index, rest, measure))

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
            new = known or len(self._events) < self.most_files
            if fits and new and (event := self._measured(batch, row, counts=known < COUNTED)):
                self._events.setdefault(index, []).append(event)
                taken[index] = taken.get(index, 0) + 1
        counts = {index: len(self._events[index]) for index in taken}
        return {i for i, count in counts.items() if any(count - taken[i] < at <= count for at in JUDGED_AT)}

    def _measured(self, batch: EventBatch, row: int, *, counts: bool) -> MeasuredEvent | None:
        """Return what is remembered of an event; counts where they are asked for, or nothing else tells its gain."""
        photons, times = batch.npho[row], batch.time[row]
        photons = torch.where(photons.abs() <= UNKNOWN_ABOVE, photons, 0.0)
        light = float(photons.sum(dtype=torch.float64))
        if not light > 0:
            return None
        (first, second), (brightest, _) = (found.tolist() for found in photons.topk(2))
        timed = times[(photons >= max(self._normalizer.npho_threshold, 1.0)) & (times.abs() <= UNKNOWN_ABOVE)]
        time = float(timed.median()) / self._normalizer.time_scale if len(timed) else math.nan
        energy, true_time = (_truth(batch, task, row) for task in (ENERGY, TIMING))
        energy = energy if 0 < energy < UNKNOWN_ABOVE else math.nan
        true_time = true_time / self._normalizer.time_scale if abs(true_time) < _LATEST else math.nan
        wanted = counts or not energy > 0
        readings = batch.npho[row].numpy(force=True)
        told = photon_statistics(readings) if wanted else (math.nan, math.nan)
        lead, more = first / max(second, 1.0), (true_time, dark_faces(readings))
        return MeasuredEvent(int(batch.entry[row]), light, brightest, first / light, time, energy, *told, lead, *more)

    def _hot(self, index: int) -> Sign | None:
        events = self._events[index]
        sensors = [event.brightest for event in events]
        most = max(set(sensors), key=sensors.count)
        share, lead = (median(values) for values in zip(*((event.share, event.lead) for event in events), strict=True))
        if sensors.count(most) < HOT_EVENTS * len(events) or (share <= HOT_SHARE and lead <= HOT_LEAD):
            return None
        return Sign(
            f"sensor {most} has {share:.0%} of the light in nearly all events", (index,), "that sensor is broken"
        )

    def _drift(self, index: int) -> Sign | None:
        events = sorted(self._events[index], key=lambda event: event.entry)
        quarter = len(events) // 4
        if len(events) < PART_EVENTS:
            return None
        first, last = (median(event.light for event in part) for part in (events[:quarter], events[-quarter:]))
        ratio = max(first, last) / min(first, last)
        if ratio < FACTOR:
            return None
        course = "rises" if last > first else "falls"
        return Sign(
            f"the light {course} {ratio:.3g}-fold from its first to its last entries", (index,), "its gain drifts"
        )


def _truth(batch: EventBatch, task: str, row: int) -> float:
    """Return the first number of a truth, NaN where there is none."""
    truth = batch.targets.get(task)
    return math.nan if truth is None else float(truth[row, 0])

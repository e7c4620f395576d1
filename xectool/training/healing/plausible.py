"""Events whose readings no event can have: named when they first come, and left out while there are few of them.

They need not show in the loss. With the logarithmic scheme a thousandfold photon number is only a bright event, and one
without a single reading is what dead channels look like; both teach the network something that is not so.

Axes: B events, S sensors.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor

from xectool.data.batch import EventBatch
from xectool.data.extremes import NPHO_LOW, PHOTONS, TIME_HIGH, TIME_LOW, Usual
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.errors import event_named
from xectool.models.normalize import Normalizer
from xectool.training.events.quarantine import PoisonedEvent
from xectool.training.guards.inputs import FEWEST_PHOTONS, MOST_PHOTONS
from xectool.training.guards.report import Reporter
from xectool.training.healing.file_light import LightByFile
from xectool.training.healing.file_signs import FileSigns
from xectool.training.healing.repeated_readings import RepeatedReadings
from xectool.training.record.incidents import IDENTITY_COLUMNS
from xectool.training.stepping.parts import RunParts
from xectool.training.symptoms.light_energy import ENERGY, LightEnergies
from xectool.training.symptoms.light_places import LightPlaces
from xectool.training.triage.window import without_rows

OF_MEDIAN: Final = 20.0  # and times the events it came with: in another unit all are beyond the bound
FEWEST_EVENTS: Final = 4  # whose median says what is usual
REMEMBERED: Final = 64  # events of the batches before, beside those of a batch that is small
ALONE_PHOTONS: Final = 2e8  # the bound where there are fewer
# Of the size of all readings, that adds up: noise is of both signs and of N sensors leaves 1 / sqrt(N).
OF_ONE_SIGN: Final = 0.5
LARGEST_TIME: Final = 50.0  # network units, mean over the sensors of an event; 0 to 3 is usual
FAR_TIME: Final = 10.0  # network units, one sensor: 1.1 us, longer than a trace (DAT-10)
FAR_SENSORS: Final = 0.2  # of those with light; pile-up and noise make single sensors late, not a fifth of them
SHARE_OF_BUDGET: Final = 2  # half of the places are kept for events that do harm
MOST_OF_BATCH: Final = 0.5  # where more are beyond the bounds it is a matter of units, not of events
NO_READING: Final = "no sensor has a reading"
ABSENT, ABSURD = "XT-NAN-DATA", "XT-SPIKE-EVENT"


@dataclass(frozen=True)
class Implausible:
    """One event that cannot be: its row in the window, and why."""

    row: int
    reason: str

    @property
    def code(self) -> str:
        """Code of the cause."""
        return ABSENT if self.reason == NO_READING else ABSURD


class PlausibleEvents:
    """Looks at each event once, in the first epoch of an attempt; at where the truth lies in the others, too.

    Args:
        parts: What is trained.
        reporter: Hears of every event that is found.
    """

    def __init__(self, parts: RunParts, reporter: Reporter) -> None:
        self.parts = parts
        self.reporter = reporter
        self._normalizer = cast(Normalizer, parts.model.normalizer)
        self._first: int | None = None
        self._truth_epoch: int | None = None
        self._light, self._signs = LightByFile(), FileSigns(self._normalizer)
        self._places, self._validated_places, self._energies = LightPlaces(), LightPlaces(), LightEnergies()
        self._repeated: RepeatedReadings | None = RepeatedReadings()
        self._validated = False
        self._before: deque[float] = deque(maxlen=REMEMBERED)
        guards = parts.config.guards
        self._usual = usual_extremes(self._normalizer)
        self.active = guards.active("G01")
        self._leaves_out = guards.quarantine and guards.on_input_scale == "stop"

    def look(self, window: Sequence[EventBatch]) -> list[Implausible]:
        """Return the implausible events of a window; nothing after the first epoch."""
        epoch = window[0].epoch
        self._first = epoch if self._first is None else self._first
        if not self.active:
            return []
        if epoch != self._first:
            self._first_epoch_over()
            self._compare_truth(window)
            return []
        self._compare_files(window)
        self._compare_places(window)
        for message, index in self._energies.look(window):
            self._energy_elsewhere(f"{self.parts.train_loader.source.files[index].path}: {message}")
        if self._repeated is not None:
            self._repeated.add(window)
        found, start = [], 0
        for batch in window:
            if not self._usual.holds(batch.extremes):
                named = implausible(batch, self._normalizer, self._before)
                found += [Implausible(start + row, reason) for row, reason in named]
            self._remember(batch)
            start += batch.num_events
        return found

    def _remember(self, batch: EventBatch) -> None:
        """Keep the light of what came before: of few events at once nothing says what is usual."""
        if batch.num_events < FEWEST_EVENTS:
            known = batch.extremes
            light = _light(batch)[0].tolist() if known is None else known[:, PHOTONS].tolist()
            self._before.extend(light)

    def _compare_files(self, window: Sequence[EventBatch]) -> None:
        files = self.parts.train_loader.source.files
        for sign in self._signs.look(window):
            paths = [str(files[index].path) for index in sign.files]
            self.reporter.event("files_differ", f"{paths[0]}: {sign.message}", files=paths, meaning=sign.meaning)
        differ = self._light.look(window)
        if differ is None:
            return
        bright, faint = (str(files[index].path) for index in differ[:2])
        self.reporter.event(
            "files_differ",
            f"the events of {bright} have {differ[2]:.3g} times the light of those of {faint}",
            files=[bright, faint],
            ratio=differ[2],
        )

    def _compare_truth(self, window: Sequence[EventBatch]) -> None:
        if window[0].epoch != self._truth_epoch:
            self._truth_epoch = window[0].epoch
            self._places.next_epoch()
        if not self._places.truth_judged:
            self._compare_places(window)

    def _compare_places(self, window: Sequence[EventBatch], sample: str = "train") -> None:
        places, loader = self._places, self.parts.train_loader
        if sample == "val":
            places, loader = self._validated_places, self.parts.val_loader
        for misfit in places.look(window):
            if misfit.file_index is None:
                self.reporter.event("truth_elsewhere", misfit.message, sample=sample, task=misfit.task)
            else:
                path = str(loader.source.files[misfit.file_index].path)
                self.reporter.event("sensor_order", f"{path}: {misfit.message}", files=[path], sample=sample)

    def passing(self, batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
        """Yield the batches of a validation, in the first one with a look at where their light lies."""
        self._first_epoch_over()
        first, self._validated = self.active and not self._validated, True
        for batch in batches:
            if first:
                self._compare_places([batch], "val")
            yield batch

    def _first_epoch_over(self) -> None:
        """Judge what was gathered: at the first validation, or where there is none before the second epoch."""
        self._tell_of_repeated()
        if message := self._energies.rest():
            self._energy_elsewhere(message)

    def _energy_elsewhere(self, message: str) -> None:
        self.reporter.event("truth_elsewhere", message, sample="train", task=ENERGY)

    def _tell_of_repeated(self) -> None:
        """Say which events of training have the readings of another."""
        alike = self._repeated.found() if self._repeated is not None else None
        self._repeated = None
        if alike is None:
            return
        files = self.parts.train_loader.source.files
        (file, entry), (other, other_entry) = alike.first
        paths = [str(files[file].path), str(files[other].path)]
        self.reporter.event(
            "repeated_readings",
            f"{alike.count} events have the readings of another, first entry {other_entry} of {paths[1]} those of "
            f"entry {entry} of {paths[0]}",
            count=alike.count,
            files=sorted(set(paths)),
        )

    def report(self, window: Sequence[EventBatch], found: Sequence[Implausible]) -> list[PoisonedEvent]:
        """Record what was found; return the events to leave out, none where too many are."""
        if not found:
            return []
        events = [self._event(window, item) for item in found]
        quarantine = self.parts.quarantine
        room = quarantine.budget // SHARE_OF_BUDGET - len(quarantine)
        leaves_out = self._leaves_out and len(events) <= room
        first = events[0]
        self.reporter.event(
            "implausible_event",
            f"entry {first.entry} of {first.file} ({event_named(first.run, first.event)}): {found[0].reason}"
            + (f", and {len(events) - 1} more" if len(events) > 1 else ""),
            columns=list(IDENTITY_COLUMNS),
            events=[event.identity for event in events],
            files=sorted({event.file for event in events}),
            reasons=[item.reason for item in found],
            action="leave out" if leaves_out else "record",
        )
        return events if leaves_out else []

    def _event(self, window: Sequence[EventBatch], item: Implausible) -> PoisonedEvent:
        row = item.row
        for batch in window:
            if row < batch.num_events:
                break
            row -= batch.num_events
        index = int(batch.file_index[row])
        path = str(self.parts.train_loader.source.files[index].path)
        place = (int(batch.entry[row]), int(batch.run[row]), int(batch.event[row]))
        return PoisonedEvent(path, index, *place, item.code, self.reporter.step)


def implausible(batch: EventBatch, normalizer: Normalizer, before: Sequence[float] = ()) -> list[tuple[int, str]]:
    """Return row and reason of each event of a batch that cannot be, by a few passes over the raw readings.

    Args:
        batch: B events.
        normalizer: Says what the unit of time is.
        before: Photons of events of the same run, which say what is usual where there are few in the batch.
    """
    if not batch.num_events:
        return []
    photons, known = _light(batch)
    many = batch.num_events >= FEWEST_EVENTS
    others = photons if many else torch.cat((photons, photons.new_tensor(list(before))))
    bound = max(MOST_PHOTONS, OF_MEDIAN * float(others.median())) if len(others) >= FEWEST_EVENTS else ALONE_PHOTONS
    absent, bright, below = ~known.any(dim=1), photons > bound, photons < FEWEST_PHOTONS
    times, far = _times(batch, known, normalizer)
    late = (times > LARGEST_TIME) | (far > FAR_SENSORS)
    if not bool((absent | bright | below | late).any()):
        return []
    sizes = torch.where(known, batch.npho.abs(), 0.0).sum(dim=1, dtype=torch.float64)
    below &= photons < -OF_ONE_SIGN * sizes
    reasons: dict[int, str] = {}
    for row in absent.nonzero().flatten().tolist():
        reasons[row] = NO_READING
    for row in (bright | below).nonzero().flatten().tolist():
        reasons[row] = f"{float(photons[row]):.2g} photons (52.8 MeV make about 2e6)"
    for row in late.nonzero().flatten().tolist():
        reasons.setdefault(row, _late(float(times[row]), float(far[row])))
    return sorted(reasons.items()) if not many or len(reasons) <= MOST_OF_BATCH * batch.num_events else []


def _light(batch: EventBatch) -> tuple[Tensor, Tensor]:
    """Return the photons of each event, shape (B,), and which readings are known, shape (B, S)."""
    known = batch.npho.abs() <= UNKNOWN_ABOVE
    return torch.where(known, batch.npho, 0.0).sum(dim=1, dtype=torch.float64), known


def usual_extremes(normalizer: Normalizer) -> Usual:
    """Return bounds within which `implausible` finds nothing, whatever the other events of a batch are."""
    shift, far = normalizer.time_shift * normalizer.time_scale, FAR_TIME * normalizer.time_scale
    return Usual(
        {
            PHOTONS: (FEWEST_PHOTONS, min(MOST_PHOTONS, ALONE_PHOTONS)),
            NPHO_LOW: (-UNKNOWN_ABOVE, UNKNOWN_ABOVE),
            TIME_LOW: (shift - far, math.inf),
            TIME_HIGH: (-math.inf, shift + far),
        }
    )


def _times(batch: EventBatch, known: Tensor, normalizer: Normalizer) -> tuple[Tensor, Tensor]:
    """Return what the times of each event are, each of shape (B,).

    Returns:
        Mean distance from the shift in network units, and share of the sensors beyond ``FAR_TIME``.
    """
    shift = normalizer.time_shift * normalizer.time_scale
    usual = torch.where(batch.time.abs() <= UNKNOWN_ABOVE, batch.time, shift)
    low, high = torch.aminmax(usual)
    if max(float(high) - shift, shift - float(low)) <= FAR_TIME * normalizer.time_scale:
        none = torch.zeros(batch.num_events, device=usual.device)
        return none, none  # this one pass is all that usual events need
    timed = known & (batch.npho >= normalizer.npho_threshold) & (batch.time.abs() <= UNKNOWN_ABOVE)
    distance = torch.where(timed, (batch.time - shift).abs() / normalizer.time_scale, 0.0)
    count = timed.sum(dim=1).clamp_min(1)
    return distance.sum(dim=1, dtype=torch.float64) / count, (distance > FAR_TIME).sum(dim=1) / count


def _late(mean: float, share: float) -> str:
    if mean > LARGEST_TIME:
        return f"its times are {mean:.2g} in network units (0 to 3 is usual)"
    return f"{share:.0%} of its times are beyond {FAR_TIME:g} in network units (0 to 3 is usual)"


def without(window: Sequence[EventBatch], found: Sequence[Implausible]) -> list[EventBatch]:
    """Return a window without implausible events."""
    return without_rows(window, [item.row for item in found])

"""Events whose readings or truth no event can have: named when they first come, left out while there are few of them.

They need not show in the loss. With the logarithmic scheme a thousandfold photon number is only a bright event, and one
without a single reading is what dead channels look like; both teach the network something that is not so.

Axes: B events, S sensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from xectool.config.impossible_room import room_for_impossible
from xectool.data.batch import EventBatch
from xectool.data.blocks import SourceFile
from xectool.data.extremes import PHOTONS
from xectool.errors import event_named
from xectool.models.normalize import Normalizer
from xectool.training.events.quarantine import PoisonedEvent
from xectool.training.guards.report import Reporter
from xectool.training.healing.file_gains import Sign
from xectool.training.healing.file_light import LightByFile
from xectool.training.healing.file_signs import MOST_FILES, FileSigns
from xectool.training.healing.implausible import (
    FEWEST_EVENTS,
    NO_READING,
    implausible,
    impossible_truths,
    light_of,
    usual_extremes,
)
from xectool.training.healing.reach import EventsInReach
from xectool.training.healing.repeated_readings import RepeatedReadings
from xectool.training.record.incidents import IDENTITY_COLUMNS
from xectool.training.stepping.parts import RunParts
from xectool.training.symptoms.light_energy import ENERGY, LightEnergies
from xectool.training.symptoms.light_places import LightPlaces, Misfit
from xectool.training.triage.window import without_rows

REMEMBERED: Final = 64  # events of the batches before, beside those of a batch that is small
VALIDATION: Final = 0  # epoch of a validation loader
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
        self._validated_energies = LightEnergies(self._energies)
        self._repeated: RepeatedReadings | None = RepeatedReadings()
        self._validated = False
        self._before: deque[float] = deque(maxlen=REMEMBERED)
        self._usual = usual_extremes(self._normalizer)
        self.reach = EventsInReach(parts, reporter)
        self.active = parts.config.guards.active("G01")
        self._room = room_for_impossible(parts.config.guards, parts.train_loader.plan.num_events)

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
            self._energy_elsewhere(f"{self.parts.train_loader.source.files[index].name}: {message}")
        if self._repeated is not None:
            self._repeated.add(window)
        found, start = [], 0
        for batch in window:
            usual = self._usual.holds(batch.extremes)
            self.reach.add(batch, self._normalizer, usual)
            named = impossible_truths(batch, self.parts.baseline.left_out)
            if not usual:
                named |= dict(implausible(batch, self._normalizer, self._before))
            found += [Implausible(start + row, reason) for row, reason in sorted(named.items())]
            self._remember(batch)
            start += batch.num_events
        return found

    def _remember(self, batch: EventBatch) -> None:
        """Keep the light of what came before: of few events at once nothing says what is usual."""
        if batch.num_events < FEWEST_EVENTS:
            known = batch.extremes
            light = light_of(batch)[0].tolist() if known is None else known[:, PHOTONS].tolist()
            self._before.extend(light)

    def _compare_files(self, window: Sequence[EventBatch]) -> None:
        files = self.parts.train_loader.source.files
        self._tell_of_signs(self._signs.look(window), files)
        differ = self._light.look(window)
        if differ is None:
            return
        bright, faint = (files[index].name for index in differ[:2])
        self.reporter.event(
            "files_differ",
            f"the events of {bright} have {differ[2]:.3g} times the light of those of {faint}",
            files=[bright, faint],
            ratio=differ[2],
        )

    def _tell_of_signs(self, signs: Iterator[Sign], files: Sequence[SourceFile]) -> None:
        for sign in signs:
            paths = [files[index].name for index in sign.files]
            validated = sign.files[0] >= len(self.parts.train_loader.source.files)
            told: dict[str, Any] = {"files": paths, "meaning": sign.meaning, "sample": "val" if validated else "train"}
            kind = "truth_elsewhere" if sign.task else "files_differ"
            named = " and ".join(paths if sign.undecided else paths[:1])
            self.reporter.event(kind, f"{named}: {sign.message}", **told | ({"task": sign.task} if sign.task else {}))

    def _all_files(self) -> list[SourceFile]:
        """Return the files as their signs count them: those of the validation are some more."""
        return [file for loader in (self.parts.train_loader, self.parts.val_loader) for file in loader.source.files]

    def _compare_validation(self, batch: EventBatch) -> None:
        """Look at events of the validation as at those of training, of which its files are some more."""
        self._compare_places([batch], "val")
        trained, validated = (loader.source.files for loader in (self.parts.train_loader, self.parts.val_loader))
        further = replace(batch, file_index=batch.file_index + len(trained))
        self._tell_of_signs(self._signs.look([further]), self._all_files())
        for message, index in self._validated_energies.look([batch]):
            self._energy_elsewhere(f"{validated[index].name}: {message}", "val")

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
        self._tell_of_places(places.look(window), loader.source.files, sample)

    def _tell_of_places(self, misfits: Iterator[Misfit], files: Sequence[SourceFile], sample: str) -> None:
        for misfit in misfits:
            if misfit.file_index is None:
                self.reporter.event("truth_elsewhere", misfit.message, sample=sample, task=misfit.task)
            else:
                path = files[misfit.file_index].name
                kind = "copied_light" if misfit.copied else "sensor_order"
                self.reporter.event(kind, f"{path}: {misfit.message}", files=[path], sample=sample)

    def passing(self, batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
        """Yield the batches of a validation, the first time with a look at their files."""
        self._first_epoch_over()
        first, self._validated = self.active and not self._validated, True
        self.parts.val_loader.measured_epoch = VALIDATION if first else None
        if first:
            self._signs.most_files += MOST_FILES
            self._tell_of_places(self._places.rest(), self.parts.train_loader.source.files, "train")
        for batch in batches:
            if first:
                self._compare_validation(batch)
            yield batch
        if first:
            self._tell_of_places(self._validated_places.rest(), self.parts.val_loader.source.files, "val")
            self._tell_of_signs(self._signs.rest(), self._all_files())
            if message := self._validated_energies.rest():
                self._energy_elsewhere(message, "val")

    def _first_epoch_over(self) -> None:
        """Judge what was gathered: at the first validation, or where there is none before the second epoch."""
        self._tell_of_repeated()
        self._tell_of_signs(self._signs.rest(), self._all_files())
        if message := self._energies.rest():
            self._energy_elsewhere(message)

    def _energy_elsewhere(self, message: str, sample: str = "train") -> None:
        self.reporter.event("truth_elsewhere", message, sample=sample, task=ENERGY)

    def _tell_of_repeated(self) -> None:
        """Say which events of training have the readings of another."""
        alike = self._repeated.found() if self._repeated is not None else None
        self._repeated = None
        if alike is None:
            return
        files = self.parts.train_loader.source.files
        (file, entry), (other, other_entry) = alike.first
        paths = [files[file].name, files[other].name]
        self.reporter.event(
            "repeated_readings",
            f"{alike.count} events have the readings of another, first entry {other_entry} of {paths[1]} those of "
            f"entry {entry} of {paths[0]}",
            count=alike.count,
            files=sorted(set(paths)),
        )

    def report(self, window: Sequence[EventBatch], found: Sequence[Implausible]) -> list[PoisonedEvent]:
        """Record what was found; return the events to leave out, none where too many are.

        Raises:
            DataUnusable: More events than single ones are out of reach, and ``guards.on_input_scale`` is ``stop``.
        """
        self.reach.require()
        if not found:
            return []
        events = [self._event(window, item) for item in found]
        leaves_out = len(events) <= self._room - len(self.parts.quarantine)
        first = events[0]
        self.reporter.event(
            "implausible_event",
            f"entry {first.entry} of {first.file} ({event_named(first.run, first.event)}): {found[0].reason}"
            + (f", and {len(events) - 1} more" if len(events) > 1 else ""),
            code=found[0].code,
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
        path = self.parts.train_loader.source.files[index].name
        place = (int(batch.entry[row]), int(batch.run[row]), int(batch.event[row]))
        return PoisonedEvent(path, index, *place, item.code, self.reporter.step)


def without(window: Sequence[EventBatch], found: Sequence[Implausible]) -> list[EventBatch]:
    """Return a window without implausible events."""
    return without_rows(window, [item.row for item in found])

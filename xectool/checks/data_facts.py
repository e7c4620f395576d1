"""All that the rules look at: the samples, the configuration, and what follows from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from xectool.checks.cells import Cell
from xectool.checks.health import SensorHealth, neighbour_likeness, sensor_health
from xectool.checks.identity import Repeated
from xectool.checks.sample import Sample, ScanSettings
from xectool.checks.sharing import Sharing
from xectool.checks.similarity import Likeness, compare_samples
from xectool.checks.spread import NormalizedRow, RawRow, normalized_table, raw_table, suggest, valid_readings
from xectool.config.host_memory import NumEvents, host_memory_bytes
from xectool.config.root import RunConfig
from xectool.detector import faces
from xectool.detector.constants import LARGEST_TIME_S, UNKNOWN_ABOVE
from xectool.errors import XecError, event_named, in_shell

_NEARLY_ALL: Final = 0.99  # of the readings; noise leaves single times of any size
EXPLAIN_UNITS: Final = "xectool explain units   # compare the units"
VALIDATION: Final = "validation sample"
"""What findings of validation files begin with."""


@dataclass
class DataFacts:
    """Facts of one invocation.

    Attributes:
        settings: How the sample was looked at.
        sample: The files that are checked.
        config: The configuration, where one was given.
        other: The sample it is compared with.
        repeated: Run and event numbers that occur twice.
        copies: Events whose photons are equal though their numbers are not.
        shared: Events both samples hold.
        shared_files: Files both samples hold.
        sharing: Who reads what; None without a configuration.
        refusal: What training refuses these files with, or None.
        memory_bytes: Memory this process may take.
        free_disk_bytes: Room where the run is written.
        disk_needed_bytes: What a run writes there, by kind.
        is_on_gpu: Whether the configuration trains on a GPU of this machine.
        num_validated: Events of the validation files, where they were looked at.
        together: The samples of one run, training first, where this is one of several.
        is_compared: Whether the files are only compared with, and no run reads them.
    """

    settings: ScanSettings
    sample: Sample
    config: RunConfig | None = None
    other: Sample | None = None
    repeated: Repeated = field(default_factory=lambda: Repeated(0))
    copies: Repeated = field(default_factory=lambda: Repeated(0))
    shared: Repeated | None = None
    shared_files: tuple[str, ...] = ()
    sharing: Sharing | None = None
    refusal: XecError | None = None
    memory_bytes: int = 0
    free_disk_bytes: int = 0
    disk_needed_bytes: dict[str, float] = field(default_factory=dict)
    is_on_gpu: bool = False
    num_validated: int | None = None
    together: tuple[Sample, ...] = ()
    is_compared: bool = False

    def place_of(self, where: str) -> tuple[str, str]:
        """Return path and tree of a file of the sample, which a name without .root does not tell."""
        return next((file.path, file.tree) for file in self.sample.files if file.where == where)

    def host_memory(self, config: RunConfig) -> dict[str, float]:
        """Return the terms of the host memory of a training on this sample."""
        return host_memory_bytes(config, NumEvents(self.sample.num_events, self.num_validated), self.is_on_gpu)

    @property
    def is_training(self) -> bool:
        """Whether the sample is trained on, as far as is known."""
        return not self.is_compared and (not self.together or self.together[0] is self.sample)

    @property
    def is_complete(self) -> bool:
        """Whether the values of every event were asked for."""
        return self.settings.max_events is None

    @cached_property
    def exchanged(self) -> str:
        """The options that read photons and times from each other's branch, to paste; empty where neither is absurd."""
        kept, data = self.sample.events, self.settings.data
        photons, times = (np.abs(values[np.abs(values) < UNKNOWN_ABOVE]) for values in (kept.npho, kept.time))
        if not (len(photons) and len(times)):
            return ""
        if not 0 < np.quantile(photons, _NEARLY_ALL) < LARGEST_TIME_S < np.median(times):
            return ""
        return (
            f"--set {in_shell(f'data.npho_branch={data.time_branch}')} "
            f"--set {in_shell(f'data.time_branch={data.npho_branch}')}"
        )

    @property
    def whole(self) -> str:
        """The sample in words, for findings that concern all of it."""
        files = self.sample.files
        return files[0].where if len(files) == 1 else f"{len(files)} files, first {files[0].where}"

    @cached_property
    def health(self) -> SensorHealth:
        """State of every sensor."""
        return sensor_health(self.sample.cells.npho, self.sample.events)

    @cached_property
    def readings(self) -> tuple[Any, Any]:
        """Valid photons and times of the kept events, NaN elsewhere."""
        return valid_readings(self.sample.events, self.settings.normalization)

    @cached_property
    def other_readings(self) -> tuple[Any, Any]:
        """Valid photons and times of the kept events of the other sample."""
        return valid_readings(self.other.events, self.settings.normalization) if self.other is not None else ((), ())

    @cached_property
    def raw(self) -> list[RawRow]:
        """The table of raw readings."""
        return raw_table(self.sample.cells, *self.readings)

    @cached_property
    def normalized(self) -> list[NormalizedRow]:
        """The table of normalised readings."""
        return normalized_table(self.sample.cells, *self.readings, self.settings.normalization)

    @cached_property
    def suggested(self) -> dict[str, object]:
        """Normalisation constants that fit better; empty where those in use fit, or where none would."""
        return {} if self.exchanged else suggest(self.sample.cells, *self.readings, self.settings.normalization)

    def cure(self, channel: str) -> str:
        """Return the constants of a channel that suit the readings, to paste, or where to look if none would."""
        own = {name: value for name, value in self.suggested.items() if name.startswith(channel)}
        return settings_line(own) or EXPLAIN_UNITS

    @cached_property
    def likeness(self) -> list[Likeness]:
        """Comparison with the other sample."""
        if self.other is None:
            return []
        return compare_samples(self.sample, self.other, self.settings.normalization)

    @cached_property
    def order_likeness(self) -> float:
        """How well sensors are foretold by their neighbours."""
        return neighbour_likeness(self.sample.events)


def sensor_place(cell: Cell, branch: str) -> str:
    """Return file, branch, entry, run, event, sensor and face of a reading."""
    face = faces.FACES[int(faces.face_ids()[cell.sensor])]
    return f"{event_place(cell, branch)} sensor {cell.sensor} face {face}"


def places_of_values(cells: Sequence[Cell], branch: str) -> tuple[str, ...]:
    """Return the place and the value of readings; of equal ones the first place, and how many have that value."""
    same: dict[float, list[Cell]] = {}
    for cell in cells:
        same.setdefault(cell.value, []).append(cell)
    return tuple(
        f"{sensor_place(first, branch)}: {value:g}"
        + (f" ({1 + len(more)} of the first {len(cells)} have this value)" if more else "")
        for value, (first, *more) in same.items()
    )


def event_place(cell: Cell, branch: str) -> str:
    """Return file, branch, entry, run and event of a value."""
    return f"{cell.path} branch {branch} entry {cell.entry} {event_named(cell.run, cell.event)}"


def settings_line(constants: dict[str, object]) -> str:
    """Return constants as options to paste; empty for none."""
    return " ".join(f"--set normalization.{name}={value}" for name, value in constants.items())

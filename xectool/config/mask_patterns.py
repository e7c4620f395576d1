"""Patterns of dead channels that sensor-level training hides instead of random sensors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from xectool.config.section import Section, describe, knob, read_int, refuse
from xectool.detector.constants import NUM_SENSORS

DATABASES = ("sqlite:", "mysql:")


def _read_texts(value: object) -> object:
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item for item in items):
        raise refuse(f"expected a string or a list of strings, got {describe(value)}")
    return tuple(items)


def _read_runs(value: object) -> object:
    items = [value] if isinstance(value, int | str) and not isinstance(value, bool) else value
    if not isinstance(items, list | tuple):
        raise refuse(f"expected a run number or a list of them, got {describe(value)}")
    return tuple(read_int(item) for item in items)


def _read_patterns(value: object) -> object:
    if not isinstance(value, list | tuple) or not all(isinstance(item, list | tuple) for item in value):
        raise refuse(f"expected a list of lists of sensor ids, got {describe(value)}")
    for pattern in value:
        for sensor in pattern:
            if type(sensor) is not int or not 0 <= sensor < NUM_SENSORS:
                raise refuse(f"{describe(sensor)} is no sensor; ids are 0 to {NUM_SENSORS - 1}")
        if not pattern or len(set(pattern)) < len(pattern):
            raise refuse("a pattern names at least one sensor, and each only once")
    return tuple(tuple(pattern) for pattern in value)


Texts = Annotated[tuple[str, ...], BeforeValidator(_read_texts)]
Runs = Annotated[tuple[int, ...], BeforeValidator(_read_runs)]
SensorPatterns = Annotated[tuple[tuple[int, ...], ...], BeforeValidator(_read_patterns)]


class MaskPatternsConfig(Section):
    """Every event hides the dead channels of one of several recorded runs, chosen at random."""

    origins: Texts = knob((), "Dead channels: text files, data, branch:NAME, sqlite: or mysql: urls", code="CFG-62")
    files: Texts = knob((), "Files that data and branch:NAME look at; one pattern a file", code="CFG-62")
    runs: Runs = knob((), "Runs that a database is asked for; one pattern a run", "run", "CFG-62")
    sensors: SensorPatterns = knob((), "The patterns themselves; training finds them from origins", "sensor", "CFG-62")

    @property
    def wanted(self) -> bool:
        """Whether patterns are hidden instead of random sensors."""
        return bool(self.origins or self.sensors)

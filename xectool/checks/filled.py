"""Readings that an inpainter has written: a file of ``predict --repair`` flags them, and no sensor measured them.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from xectool.checks.facts import BranchFacts, FileFacts, Trouble
from xectool.checks.reading import read_trouble
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import DataFileError, counted
from xectool.findings import Finding, Severity
from xectool.rootio.origin import FLAG_BRANCH
from xectool.rootio.reader import EventFile

_SHOWN: Final = 5


@dataclass(frozen=True)
class Filled:
    """What the flags of a repaired file say.

    Attributes:
        branch: The branch of the flags.
        scanned: Events whose flags were read.
        events: Those in which a sensor was filled.
        sensors: Sensors that were filled in any of them.
        readings: Readings that were filled.
    """

    branch: str
    scanned: int
    events: int
    sensors: int
    readings: int


def count_filled(
    file: EventFile, facts: FileFacts, blocks: Iterable[tuple[int, int]], failed: Callable[[Trouble], None]
) -> Filled | None:
    """Return what the flags of a file say in blocks of entries; None where it has none, or nothing was filled."""
    named = (name for name in facts.branches if name.rpartition("/")[2] == FLAG_BRANCH)
    branch = next((name for name in named if _are_flags(facts.branches[name])), None)
    if branch is None:
        return None
    scanned = events = readings = 0
    sensors = np.zeros(NUM_SENSORS, bool)
    for start, stop in blocks:
        flags = np.empty((stop - start, NUM_SENSORS), np.uint8)
        try:
            file.read_into(branch, start, stop, flags)
        except DataFileError as error:
            failed(read_trouble(error))
            continue
        is_filled = flags != 0
        scanned += len(flags)
        events += int(is_filled.any(axis=1).sum())
        readings += int(is_filled.sum())
        sensors |= is_filled.any(axis=0)
    return Filled(branch, scanned, events, int(sensors.sum()), readings) if readings else None


def _are_flags(branch: BranchFacts) -> bool:
    return branch.width == NUM_SENSORS and np.dtype(branch.dtype or float).kind in "biu"


def repaired_files(code: str, filled: dict[str, Filled]) -> Iterator[Finding]:
    """Yield a note on the files that were repaired, all in one, with the numbers of the first ones."""
    if not filled:
        return
    where, first = next(iter(filled.items()))
    more = f", and {counted(len(filled) - 1, 'further file')}" if len(filled) > 1 else ""
    each = [f"{name}: {item.readings} readings, {item.events} events" for name, item in filled.items()]
    yield Finding(
        code,
        Severity.INFO,
        f"'{where}' was repaired{more}: an inpainter filled {first.readings} readings of "
        f"{counted(first.sensors, 'sensor')} in {first.events} of {counted(first.scanned, 'event')} read",
        f"{where} branch {first.branch}",
        tuple(each[:_SHOWN]) if more else (),
        "train an inpainter on the files before their repair: it would learn what another one said",
    )

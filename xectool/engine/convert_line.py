"""The line of `convert` for the files that a run or a model reads: with all that they need, readings and truth."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from xectool.checks.facts import FileFacts
from xectool.config.data import DataConfig
from xectool.config.inputs import place_of
from xectool.config.left_out import leaving_out
from xectool.config.mends import MOST_FILES
from xectool.detector.constants import DEAD_VALUE, NUM_SENSORS
from xectool.detector.markers import markers_in
from xectool.detector.truth_ranges import RANGES, unit_of_times
from xectool.engine.check_lines import Told
from xectool.engine.written_files import paths_of
from xectool.errors import DataFileError
from xectool.findings import Finding
from xectool.findings.mends import Change, Marker, Mend
from xectool.rootio.reader import EventFile
from xectool.rootio.stored import stored_as

if TYPE_CHECKING:
    from xectool.data.blocks import SourceFile
    from xectool.data.events import EventSource
    from xectool.data.source import SourceBranches

_BRANCHES: Final = ("npho_branch", "time_branch", "run_branch", "event_branch")
_EVENTS: Final = 16  # from the beginning of a file


def converting(findings: Iterable[Finding], data: DataConfig, *sources: EventSource) -> tuple[Finding, ...]:
    """Return findings with the line of `Told.converting`, whose check reads files as a configuration does.

    Args:
        findings: What was found.
        data: The section with the names and the events left out; those of a check without it are not told. Its
            validation is the other sample.
        sources: Of their files that the line writes again the readings are mended as well.
    """
    findings, usual = tuple(findings), DataConfig()
    names = [f"{key}={getattr(data, key)}" for key in _BRANCHES if getattr(data, key) != getattr(usual, key)]
    truths = data.truth_branches.items() - usual.truth_branches.items()
    names += [f"truth_branches.{task}={branch}" for task, branch in sorted(truths)]
    files, others = ([FileFacts(tree.path, tree.tree, "TTree") for tree in trees] for trees in paths_of(data).values())
    named = [[file.where for file in sample] for sample in (files, others)]
    told = [f"data.{name}" for name in names] + ([leaving_out(data)] if data.exclude else [])
    mends = _beside(findings, sources)
    check = Told(named[0], None, told, named[1], files=files, others=others, mends=mends, section=data)
    return check.converting(findings)


def _beside(findings: Iterable[Finding], sources: Iterable[EventSource]) -> list[Mend]:
    """Return what the readings need of the files that are written again for another reason."""
    written = {place_of(mend.path, mend.tree) for found in findings for mend in found.mends}
    files = [(file, source.branches) for source in sources for file in source.files]
    named = [item for item in files if place_of(item[0].path, item[0].tree) in written] if written else []
    return [mend for file, branches in named[:MOST_FILES] for mend in reading_mends(file, branches)]


def reading_mends(source: SourceFile, branches: SourceBranches) -> list[Mend]:
    """Return what brings times of a file to seconds and markers of no reading to 1e10, by its first events."""
    found, stop = list[Mend](), min(_EVENTS, source.num_entries)
    with suppress(DataFileError), EventFile(source.path, source.tree) as file:  # damage, which others tell of
        for channel, branch in (("npho", branches.npho), ("time", branches.time)):
            rows = np.empty((stop, NUM_SENSORS), np.float32)
            file.read_into(branch, 0, stop, rows)
            numbers = markers_in(rows, channel)
            places = [tuple(map(int, np.argwhere(rows == np.float32(number))[0])) for number in numbers]
            rows[np.isin(rows, np.array(numbers, np.float32))] = DEAD_VALUE
            factors = dict(RANGES["timing"].others) if channel == "time" else {}
            stored = map(partial(stored_as, file.path, file.tree, branch), places, numbers)
            change = Change(tuple(map(Marker, stored)), factors.get(unit_of_times(rows), 1.0))
            found += [Mend(file.path, file.tree, branch, change)] if change != Change() else []
    return found

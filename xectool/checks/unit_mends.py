"""Which branches of which files are in another unit, readings and truth alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xectool.checks.data_facts import DataFacts
from xectool.checks.file_rules import impossible_counts
from xectool.checks.targets import TargetScan
from xectool.config.truth_mends import FileUnit, UnitsOfTruth
from xectool.config.unit_mends import UnitMend
from xectool.detector.truth_ranges import RANGES, likely_unit, other_unit, typical_size


def units_of_truth(facts: DataFacts, task: str, scan: TargetScan) -> UnitsOfTruth:
    """Return the units that the truth of a task seems to be in."""
    rows = scan.kept.rows
    files = [facts.place_of(path) for path, _, _ in scan.file_means]
    odd = [FileUnit(*facts.place_of(file.path), file.unit, file.size) for file in scan.odd_units]
    return UnitsOfTruth(task, scan.branch, files, odd, other_unit(task, rows), typical_size(rows))


def unit_mends(facts: DataFacts) -> Iterator[UnitMend]:
    """Yield the branches in another unit whose factor is known, or with markers, of all files of a sample."""
    yield from _of_readings(facts)
    for task, scan in facts.sample.targets.items():
        if scan.known:
            yield from units_of_truth(facts, task, scan).mends()


def _of_readings(facts: DataFacts) -> Iterator[UnitMend]:
    """Yield what mends photons and times: both the unit and the markers of a file."""
    data, factors = facts.settings.data, dict[str, float]()
    for item in () if facts.exchanged else impossible_counts(facts, channel=1):
        cells = item.first["impossible"]
        unit = likely_unit("timing", float(np.median([abs(cell.value) for cell in cells])))
        if factor := dict(RANGES["timing"].others).get(unit):
            factors[cells[0].path] = factor
    for where, markers in facts.sample.markers.items():
        if markers.npho:
            yield UnitMend(*facts.place_of(where), data.npho_branch, 1.0, tuple(markers.npho))
        if markers.time or where in factors:
            yield UnitMend(*facts.place_of(where), data.time_branch, factors.get(where, 1.0), tuple(markers.time))

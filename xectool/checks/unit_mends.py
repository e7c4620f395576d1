"""Which branches of which files are in another unit, readings and truth alike."""

from __future__ import annotations

import numpy as np

from xectool.checks.data_facts import DataFacts
from xectool.checks.file_rules import impossible_counts
from xectool.checks.targets import TargetScan
from xectool.config.truth_mends import FileUnit, UnitsOfTruth
from xectool.detector.truth_ranges import RANGES, likely_unit, other_unit, typical_size
from xectool.findings.mends import Change, Mend


def units_of_truth(facts: DataFacts, task: str, scan: TargetScan) -> UnitsOfTruth:
    """Return the units that the truth of a task seems to be in."""
    rows = scan.kept.rows
    files = [facts.place_of(path) for path, _, _ in scan.file_means]
    odd = [FileUnit(*facts.place_of(file.path), file.unit, file.size) for file in scan.odd_units]
    return UnitsOfTruth(task, scan.branch, files, odd, other_unit(task, rows), typical_size(rows))


def time_mends(facts: DataFacts) -> tuple[Mend, ...]:
    """Return what brings the times of files to seconds, where the factor is known."""
    found = []
    for item in impossible_counts(facts, channel=1):
        cells = item.first["impossible"]
        unit = likely_unit("timing", float(np.median([abs(cell.value) for cell in cells])))
        if factor := dict(RANGES["timing"].others).get(unit):
            place = facts.place_of(cells[0].path)
            found.append(Mend(*place, facts.settings.data.time_branch, Change(factor=factor)))
    return tuple(found)

"""Which branches of which files are in another unit, readings and truth alike."""

from __future__ import annotations

import numpy as np

from xectool.checks.data_facts import DataFacts
from xectool.checks.file_rules import times_in_other_unit
from xectool.checks.targets import TargetScan
from xectool.config.truth_mends import BY_HAND, FileUnit, UnitsOfTruth, possible
from xectool.detector.markers import marker_in_truth, marker_words
from xectool.detector.truth_ranges import RANGES, impossible, likely_unit, other_unit, typical_size
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Marker, Mend


def units_of_truth(facts: DataFacts, task: str, scan: TargetScan) -> UnitsOfTruth:
    """Return the units that the truth of a task seems to be in."""
    rows = scan.kept.rows
    files = [facts.place_of(path) for path, _, _ in scan.file_means]
    odd = [FileUnit(*facts.place_of(file.path), file.unit, file.size) for file in scan.odd_units]
    units = UnitsOfTruth(task, scan.branch, files, odd, other_unit(task, rows), typical_size(rows))
    factor = dict(RANGES[task].others).get(units.seen)
    return units if factor is None else units._replace(beside=_beside(task, scan, factor))


def _beside(task: str, scan: TargetScan, factor: float) -> Change:
    """Return what marks truths that no event can have, in the right unit, and numbers that stand for none."""
    marker = marker_in_truth(scan.kept.rows)
    found = Change(() if marker is None else (Marker(marker),))
    ends = [[cell.value * factor if cell else 0.0 for cell in side] for side in (scan.lowest, scan.highest)]
    return found.joined(possible(task)) if impossible(task, np.array(ends)).any() else found


def truth_marker(facts: DataFacts, task: str, scan: TargetScan) -> Finding | None:
    """Return that a number in a truth stands for "not known", of which another finding does not tell; None else."""
    number = marker_in_truth(scan.kept.rows)
    if number is None or impossible(task, np.full((1, scan.width), number)).any():
        return None
    share = float((scan.kept.rows == number).any(axis=1).mean())
    return Finding(
        "DAT-16",
        Severity.WARNING,
        f"{marker_words(number)} looks like your marker of 'not known' (in {share:.3g} of the events, far from all "
        f"others): the truth of task {task} is learned as if it were that",
        f"{facts.whole} branch {scan.branch}",
        fix=BY_HAND,
        mends=tuple(
            Mend(*facts.place_of(path), scan.branch, Change((Marker(number),))) for path, _, _ in scan.file_means
        ),
    )


def time_mends(facts: DataFacts) -> tuple[Mend, ...]:
    """Return what brings the times of files to seconds, where the factor is known."""
    found = []
    for item in times_in_other_unit(facts):
        cells = item.first["impossible"]
        unit = likely_unit("timing", float(np.median([abs(cell.value) for cell in cells])))
        if factor := dict(RANGES["timing"].others).get(unit):
            place = facts.place_of(cells[0].path)
            found.append(Mend(*place, facts.settings.data.time_branch, Change(factor=factor)))
    return tuple(found)

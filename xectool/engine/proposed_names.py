"""What a check would say of units by the names that it proposes itself: in the same pass, not in the next."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from xectool.checks.facts import FileFacts, Trouble
from xectool.checks.sample import Sample
from xectool.findings import Finding, Report


def with_proposed(
    report: Report, sample: Sample, told: Sequence[str], check: Callable[[Sequence[str]], Sequence[Finding]]
) -> Report:
    """Return a report with what is said of units by names that are proposed, where all files have the same ones.

    What was said by the names that hold is said again there, with one line for all.

    Args:
        report: What was found by the names that were told.
        sample: The files.
        told: Those settings.
        check: Returns what is found by these and further settings.
    """
    troubles = [trouble for verdict in sample.verdicts.values() for trouble in verdict.troubles]
    names = proposed_names(sample.files, [*sample.troubles, *troubles])
    if not names or set(names) <= set(told):
        return report
    said = f"read by the proposed {', '.join(names)}"
    found = [item for item in check((*told, *names)) if item.other_unit]
    places = {(item.code, item.where) for item in found}
    kept = (item for item in report if (item.code, item.where) not in places)
    return Report((*kept, *(replace(item, evidence=(said, *item.evidence)) for item in found)))


def proposed_names(files: Sequence[FileFacts], troubles: Sequence[Trouble]) -> tuple[str, ...]:
    """Return the settings by which trees and branches of other names would be read; none where files do not agree."""
    told = {file.where: set[str]() for file in files}
    for trouble in (*troubles, *(trouble for file in files for trouble in file.troubles)):
        place = trouble.where.partition(" branch ")[0]
        for file in files:
            if place == file.where or (not file.opened and file.shares_file(place)):
                told[file.where].update(_settings(trouble.fix))
    first, *others = told.values() or [set[str]()]
    return tuple(sorted(first)) if all(names == first for names in others) else ()


def _settings(line: str) -> list[str]:
    if not line.startswith("xectool check-data "):
        return []
    words = shlex.split(line, comments=True)
    return [setting for option, setting in itertools.pairwise(words) if option == "--set"]

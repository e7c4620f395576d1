"""What a check would say of units by the names that it proposes itself: in the same pass, not in the next."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from xectool.checks.facts import FileFacts, Trouble
from xectool.checks.file_rules import BranchesExist
from xectool.checks.sample import Sample
from xectool.checks.target_rules import TruthIsSound
from xectool.checks.truth_guesses import guessed
from xectool.checks.value_rules import NormalizedTimesFit, ReadingsAreNumbers
from xectool.config.unit_mends import UnitMend, with_one_line
from xectool.engine.check_lines import Told
from xectool.errors import in_shell
from xectool.findings import Finding, Report

UNIT_RULES: Final = (ReadingsAreNumbers(), NormalizedTimesFit(), TruthIsSound())
EVENTS_FOR_UNITS: Final = 200
"""Events a file that are read by proposed names: of these a unit is known, and all are read by names that are told."""


class ByNames(NamedTuple):
    """What is told of units by other names: the files, the findings, and the branches that are in another unit."""

    sample: Sample
    units: Sequence[Finding]
    mends: Sequence[UnitMend]


def with_proposed(
    report: Report,
    mends: Sequence[UnitMend],
    sample: Sample,
    told: Sequence[str],
    look: Callable[[Sequence[str]], ByNames],
) -> Report:
    """Return a report with what is said of units by names that are proposed, where all files have the same ones.

    One line mends all units, those of the names that hold and of those that are proposed; its check has these.

    Args:
        report: What was found by the names that were told.
        mends: Branches in another unit by those names.
        sample: The files.
        told: Those settings.
        look: Returns what is found by these and further settings.
    """
    names: tuple[str, ...] = ()
    found = ByNames(sample, (), mends)
    while further := [name for name in _proposed_of(found.sample) if name not in (*told, *names)]:
        names = (*names, *further)  # of another tree the branches are known once it is read
        found = look((*told, *names))
    if not names:
        return Report(with_one_line(report, mends))
    said = f"read by the proposed {', '.join(names)}"
    known = {_subject(item) for item in report if item.other_unit}
    new = [replace(item, evidence=(said, *item.evidence)) for item in found.units if _subject(item) not in known]
    rest = [item for item in report if not item.other_unit]
    units = with_one_line((*(item for item in report if item.other_unit), *new), [*mends, *found.mends])
    lines = Told((), overrides=names)
    guesses = () if sample.guesses else guessed(BranchesExist.code, found.sample.guesses, found.sample.files)
    told_of = (replace(item, evidence=(said, *item.evidence), fix=_with(item.fix, names)) for item in guesses)
    return Report((*rest, *told_of, *(replace(item, fix=lines.going_on(item.fix)) for item in units)))


def _with(line: str, names: Sequence[str]) -> str:
    """Return a check with further settings."""
    command, mark, remark = line.partition("   # ")
    return " ".join((command, *(f"--set {in_shell(name)}" for name in names))) + mark + remark


def _proposed_of(sample: Sample) -> tuple[str, ...]:
    troubles = [trouble for verdict in sample.verdicts.values() for trouble in verdict.troubles]
    return proposed_names(sample.files, [*sample.troubles, *troubles])


def _subject(item: Finding) -> tuple[str, str, str]:
    """Return of which branch of which sample a finding tells another unit; its event depends on those that are read."""
    title = item.problem.partition(": ")[0]
    return item.code, item.other_unit, title if title in ("validation sample", "sample to compare with") else ""


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

"""What a check would say of units by the names that it proposes itself: in the same pass, not in the next."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from xectool.checks.branches import check_branches, wanted_branches
from xectool.checks.facts import FileFacts, Trouble
from xectool.checks.file_rules import BranchesExist
from xectool.checks.probing import probe
from xectool.checks.sample import Sample
from xectool.checks.target_rules import TruthIsSound
from xectool.checks.truth_guesses import guess_truths, guessed
from xectool.checks.value_rules import NormalizedTimesFit, ReadingsAreNumbers
from xectool.config.data import DataConfig
from xectool.config.inputs import input_name
from xectool.config.load import config_from_overrides
from xectool.errors import in_shell
from xectool.findings import Finding, Report
from xectool.findings.mends import Mend
from xectool.rootio.reader import EventFile

UNIT_RULES: Final = (ReadingsAreNumbers(), NormalizedTimesFit(), TruthIsSound())
_TRUTH: Final = "data.truth_branches."
EVENTS_FOR_UNITS: Final = 200
"""Events a file that are read by proposed names: of these a unit is known, and all are read by names that are told."""


class ByNames(NamedTuple):
    """What is told of units by other names: the files, findings, files of the other sample and what mends its times."""

    sample: Sample
    units: Sequence[Finding]
    others: Sequence[FileFacts] = ()
    mends: Sequence[Mend] = ()


class Proposed(NamedTuple):
    """A report with what is told by proposed names.

    Attributes:
        report: What was found.
        names: Settings of these names, by which files that are written are to be read.
        mends: What is to be done with guessed truths and times of the other sample, whose unit no finding tells.
    """

    report: Report
    names: tuple[str, ...] = ()
    mends: tuple[Mend, ...] = ()


def with_proposed(
    report: Report,
    sample: Sample,
    told: Sequence[str],
    look: Callable[[Sequence[str]], ByNames],
    others: Sequence[FileFacts] = (),
) -> Proposed:
    """Return a report with what is said of units by names that are proposed, where all files have the same ones.

    Args:
        report: What was found by the names that were told.
        sample: The files.
        told: Those settings.
        look: Returns what is found by these and further settings.
        others: The files of the other sample.
    """
    names: tuple[str, ...] = ()
    found = ByNames(sample, (), others)
    while further := [name for name in _proposed_of(found.sample) if name not in (*told, *names)]:
        names = (*names, *further)  # of another tree the branches are known once it is read
        found = look((*told, *names))
    said = f"read by the proposed {', '.join(names)}"
    known = {_subject(item) for item in report if item.other_unit}
    new = [replace(item, evidence=(said, *item.evidence)) for item in found.units if _subject(item) not in known]
    is_mended = any(item.mends for item in (*report, *new))
    mends, changed = _by_guesses(found, lambda guesses: look((*told, *names, *guesses)).units if is_mended else ())
    truths = (
        ()
        if sample.guesses or not names
        else guessed(BranchesExist.code, found.sample.guesses, found.sample.files, found.others)
    )
    told_of = (replace(item, evidence=(said, *item.evidence), fix=_with(item.fix, names)) for item in truths)
    units = [item for item in report if item.other_unit]
    rest = [replace(item, fix=_completed(item.fix, names)) for item in report if not item.other_unit]
    whole = Report((*rest, *told_of, *units, *new)) if names else report
    return Proposed(whole, (*names, *changed), (*found.mends, *mends))


def _completed(line: str, names: Sequence[str]) -> str:
    """Return a check that has some of the proposed names with all of them: of another tree those of its branches too.

    >>> _completed("xectool check-data a.root --set data.tree_name=ev   # why", ["data.tree_name=ev", "data.x=1"])
    'xectool check-data a.root --set data.tree_name=ev --set data.x=1   # why'
    """
    told = _settings(line)
    return _with(line, [name for name in names if name not in told]) if {*told} & {*names} else line


def names_in(path: str, tree: str) -> tuple[str, ...]:
    """Return the settings by which a sound file of other names is read, with the truth that is guessed by its name."""
    facts, data = probe(path, tree), DataConfig()
    with EventFile(path, tree) as file:
        verdict = check_branches(file, facts, wanted_branches(data, (), data.truth_branches))
        names = proposed_names([facts], (*verdict.troubles, *verdict.notes))
        guesses, _ = guess_truths(file, facts, config_from_overrides(names).data)
    truths = sorted(f"{_TRUTH}{task}={guess.branch}" for task, guess in guesses.items() if guess.by == "name")
    is_told = input_name(facts.path, facts.tree) != facts.path or facts.tree == "tree"
    return (*(() if is_told else (f"data.tree_name={facts.tree}",)), *names, *truths)


def _with(line: str, names: Sequence[str]) -> str:
    """Return a check with further settings."""
    command, mark, remark = line.partition("   # ")
    return " ".join((command, *(f"--set {in_shell(name)}" for name in names))) + mark + remark


def _by_guesses(found: ByNames, look: Callable[[Sequence[str]], Sequence[Finding]]) -> tuple[list[Mend], list[str]]:
    """Return what mends guessed truths in another unit, and the settings that name them: the same line is to do it."""
    guesses = _guessed_of(found)
    units = look(tuple(guesses)) if guesses else ()
    mends = [mend for item in units for mend in item.mends if mend.branch in guesses.values()]
    changed = {mend.branch for mend in mends}
    return mends, [name for name, branch in guesses.items() if branch in changed]


def _guessed_of(by_names: ByNames) -> dict[str, str]:
    """Return the setting and the branch of each truth that is guessed by its name, and that all files have."""
    guessed_in = by_names.sample.guesses.values()
    found = {(task, of.branch) for guesses in guessed_in for task, of in guesses.items() if of.by == "name"}
    files = [file for file in (*by_names.sample.files, *by_names.others) if file.opened]
    everywhere = sorted(item for item in found if all(item[1] in file.branches for file in files))
    return {f"{_TRUTH}{task}={branch}": branch for task, branch in dict(everywhere).items()}


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

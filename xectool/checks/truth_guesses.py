"""Branches of unknown names that may be the truth of a task, by the pieces of their names and by their values.

Axes: n events, D components of a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from xectool.checks.facts import BranchFacts, FileFacts, Trouble, arguments
from xectool.checks.reading import read_trouble
from xectool.checks.truth_names import is_letter, is_made, says_another, says_more, says_task, says_truth
from xectool.config.data import DataConfig
from xectool.config.left_out import entries_left_out
from xectool.config.tasks import TASK_WIDTHS
from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.detector.truth_ranges import RANGES, are_few, impossible, never_filled, other_unit
from xectool.errors import DataFileError, counted, in_shell
from xectool.findings import Finding, Severity
from xectool.rootio.reader import EventFile

Array = npt.NDArray[Any]

_ROWS: Final = 2000  # from the beginning of a file
_LIT_ROWS: Final = 64  # of these the light is read
_FEWEST: Final = 10
_MOST_MARKED: Final = 0.5  # of the events, that have one and the same number which no event can have
_ALIKE: Final = 0.7  # correlation of an energy with the light; the resolution leaves more
_BY_VALUES: Final = ("energy", "uvwFI", "angleVec")
"""Tasks whose values tell them from others: light, the shape of the detector, length 1. A small number is no time."""
_SHOWN: Final = 10


class Guess(NamedTuple):
    """A branch that may be the truth of a task.

    Attributes:
        branch: Its name.
        unit: The unit its values seem to be in; empty where there are too few to tell.
        by: What says so: ``name`` or ``values``.
        others: Further branches of which the same could be said.
    """

    branch: str
    unit: str
    by: str
    others: tuple[str, ...] = ()


def guess_truths(file: EventFile, facts: FileFacts, data: DataConfig) -> tuple[dict[str, Guess], list[Trouble]]:
    """Return which branches of an open file may be the truth of the tasks whose own branch it lacks.

    What a program made of the readings (``E_rec``) is none; events that ``data.exclude`` names are not looked at.

    Returns:
        The guess of each task; what could not be read on the way.
    """
    named = {value for key, value in vars(data).items() if key.endswith("_branch")} | set(data.truth_branches.values())
    free = {name: branch for name, branch in facts.branches.items() if name not in named and not is_made(name)}
    reader = _Values(file, facts, data)
    found: dict[str, Guess] = {}
    for task in (task for task, branch in data.truth_branches.items() if branch not in file.branch_names):
        fitting = [name for name, branch in free.items() if _is_shaped(branch, task) and not says_another(name, task)]
        guess = _by_name(reader, task, fitting) or _by_values(reader, task, fitting)
        if guess is not None:
            found[task] = guess
            del free[guess.branch]
    return found, reader.troubles


def guessed(
    code: str, sample: Mapping[str, dict[str, Guess]], files: Iterable[FileFacts], others: Iterable[FileFacts] = ()
) -> Iterator[Finding]:
    """Yield a warning for each task whose truth may stand in branches of other names, all with one line to paste.

    Args:
        code: Code of the findings.
        sample: Guesses of each file, by path and tree.
        files: Structure of the files.
        others: That of the files of the other sample, which a run reads by the same names.
    """
    places = {facts.where: facts for facts in files}
    every = [*places.values(), *others]
    tasks = dict.fromkeys(task for guesses in sample.values() for task in guesses)
    for task in tasks:
        those = {where: guesses[task] for where, guesses in sample.items() if task in guesses}
        where, first = next(iter(those.items()))
        facts, lacking = places[where], _lacking(first.branch, every)
        unit = f", in {first.unit}" if first.unit not in ("", "1") else ""
        rather = f" (or else {', '.join(first.others)})" if first.others else ""
        many = f"; so in {len(those)} of {len(places)} files" if len(places) > 1 else ""
        if lacking:
            more = f" and {counted(len(lacking) - 1, 'other file')}" if lacking[1:] else ""
            many += f"; {lacking[0]}{more} {'have' if more else 'has'} no such branch"
        yield Finding(
            code,
            Severity.WARNING,
            f"the truth of task {task} has no branch of the usual name and was not looked at: by its {first.by} it may "
            f"be '{first.branch}'{unit}{rather}{many}",
            f"{where} branch {first.branch}",
            tuple(f"{path}: {guess.branch}" for path, guess in list(those.items())[:_SHOWN] if many),
            _fix(facts, sample[where], every, task),
        )


def partly_there(sample: Mapping[str, dict[str, Guess]], files: Sequence[FileFacts]) -> set[str]:
    """Return the places of guessed truths that some files lack: nothing has to be done about these."""
    return {
        f"{where} branch {guess.branch}"
        for where, guesses in sample.items()
        for guess in guesses.values()
        if _lacking(guess.branch, files)
    }


def _fix(facts: FileFacts, guesses: Mapping[str, Guess], files: Sequence[FileFacts], task: str) -> str:
    """Return the check by the names that all files have; a run reads all of its files by the same ones."""
    everywhere = {of: guess.branch for of, guess in guesses.items() if not _lacking(guess.branch, files)}
    if not everywhere:
        return f"leave the task {task} out, or give all files the branch '{guesses[task].branch}'"
    options = " ".join(f"--set {in_shell(f'data.truth_branches.{of}={name}')}" for of, name in everywhere.items())
    partly = [of for of in guesses if of not in everywhere]
    without = f"; without {', '.join(partly)}, whose branch not all files have" if partly else ""
    return f"xectool check-data {arguments(facts.path, facts.tree)} {options}   # if that is what they hold{without}"


def _lacking(branch: str, files: Iterable[FileFacts]) -> list[str]:
    return [facts.where for facts in files if facts.opened and branch not in facts.branches]


class _Values:
    """The first values of branches of a file, without events that are left out.

    Attributes:
        troubles: What could not be read.
    """

    def __init__(self, file: EventFile, facts: FileFacts, data: DataConfig) -> None:
        self._file, self._photons = file, data.npho_branch
        stop = min(file.num_entries, _ROWS)
        self._kept = ~np.isin(np.arange(stop), entries_left_out(data, facts.where))
        self._known: dict[str, Array | None] = {}
        self.troubles: list[Trouble] = []

    def of(self, branch: str, width: int, most: int = _ROWS) -> Array | None:
        """Return the values of a branch, shape (n, width); None where they cannot be read, which is told once."""
        if branch not in self._known:
            values = np.empty((min(len(self._kept), most), width))
            try:
                self._file.read_into(branch, 0, len(values), values)
                self._known[branch] = values[self._kept[: len(values)]]
            except DataFileError as error:
                self._known[branch] = None
                self.troubles.append(read_trouble(error))
        return self._known[branch]

    def light(self) -> Array | None:
        """Return the light of the first events, shape (n,)."""
        if self._photons not in self._file.branch_names:
            return None
        npho = self.of(self._photons, NUM_SENSORS, _LIT_ROWS)
        return None if npho is None else np.where((npho >= 0) & (npho < UNKNOWN_ABOVE), npho, 0.0).sum(axis=1)


def _is_shaped(branch: BranchFacts, task: str) -> bool:
    kinds = ("float", "int", "uint") if task == "n_gamma" else ("float",)
    return branch.width == TASK_WIDTHS[task] and branch.dtype.startswith(kinds)


def _by_name(reader: _Values, task: str, names: list[str]) -> Guess | None:
    """Return the branch whose name says the task, one that says truth before others, if its values are possible.

    A letter (``e``, ``t``) says little: not beside a word that may say anything, nor of values that are all the same.
    """
    said = (name for name in names if says_task(name, task) and not (is_letter(name, task) and says_more(name)))
    named = {name: reader.of(name, TASK_WIDTHS[task]) for name in sorted(said, key=lambda name: not says_truth(name))}
    units = {
        name: unit
        for name, rows in named.items()
        if (unit := _unit(task, rows)) is not None
        and (not is_letter(name, task) or (rows is not None and bool((rows != rows[:1]).any())))
    }
    first, *others = units or [""]
    return Guess(first, units[first], "name", tuple(others)) if first else None


def _by_values(reader: _Values, task: str, names: list[str]) -> Guess | None:
    """Return the one branch whose values only this task has; None where there are none or several."""
    if task not in _BY_VALUES:
        return None
    found = [
        (name, unit)
        for name in names
        if (rows := reader.of(name, TASK_WIDTHS[task])) is not None
        and (unit := _unit(task, rows)) is not None
        and _varies(reader, task, rows)
    ]
    return Guess(*found[0], "values") if len(found) == 1 else None


def _unit(task: str, values: Array | None) -> str | None:
    """Return the unit that values, shape (n, D), are in as the truth of a task; None where they cannot be that."""
    if values is None:
        return None
    rows = values[(np.abs(values) < UNKNOWN_ABOVE).all(axis=1)]
    rows = rows[~never_filled(task, rows)]
    if len(rows) < _FEWEST:
        return "" if len(values) < _FEWEST else None  # too few to tell, or none that is known
    if task == "n_gamma" and (rows != np.rint(rows)).any():
        return None
    right = RANGES[task].unit
    unit = other_unit(task, rows) or right
    factor = 1.0 if unit == right else dict(RANGES[task].others).get(unit)
    if factor is None:
        return None
    bad = impossible(task, factor * rows)
    is_marker = bool(bad.any()) and bad.mean() < _MOST_MARKED and np.unique(rows[bad]).size == 1
    return unit if is_marker or are_few(int(bad.sum()), len(rows)) else None


def _varies(reader: _Values, task: str, values: Array) -> bool:
    """Return whether values, shape (n, D), are told from others of their range: by light, or in all directions."""
    known = np.asarray((np.abs(values) < UNKNOWN_ABOVE).all(axis=1))
    if task != "energy":
        return int(known.sum()) >= _FEWEST and bool((values[known].std(axis=0) > 0).all())
    light = reader.light()
    if light is None:
        return False
    energy, lit = values[: len(light), 0], known[: len(light)] & (light > 0)
    if lit.sum() < _FEWEST or not (energy[lit].std() > 0 and light[lit].std() > 0):
        return False
    return float(np.corrcoef(energy[lit], light[lit])[0, 1]) > _ALIKE

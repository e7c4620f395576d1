"""``convert``: ROOT files again with some branches in another unit, and numbers that stand for no value as 1e10."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xectool.config.inputs import expand_inputs, is_remote, split_tree
from xectool.config.mends import MOST_FILES, changes_of, written_name
from xectool.detector.changes import Effect
from xectool.engine.conversion_remarks import left_behind, remarks, shown
from xectool.engine.proposed_names import names_in
from xectool.errors import DataFileError, UsageError, XecError, counted, in_shell
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change
from xectool.rootio.converting import plan_changes, write_converted
from xectool.rootio.reader import EventFile


@dataclass(frozen=True)
class FileConverted:
    """One file.

    Attributes:
        path: The file that was read.
        tree: Its tree.
        output: The file that was written.
        events: Its events.
        changed: Events of which a value changed, by branch.
    """

    path: str
    tree: str
    output: str
    events: int
    changed: Mapping[str, int]


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        files: Every file.
        changes: What was done, by branch, in words.
        next: A line to paste.
        findings: Branches and objects that were not copied, options that found nothing, values left as they are.
    """

    files: tuple[FileConverted, ...]
    changes: Mapping[str, str]
    next: str
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result without its findings, which have a place of their own in a document."""
        return {name: value for name, value in vars(self).items() if name != "findings"}


def convert(  # noqa: PLR0913 - the function is the command: one argument an option
    data: Sequence[str],
    into: Sequence[str],
    *,
    scale: Sequence[str] = (),
    marker: Sequence[str] = (),
    within: Sequence[str] = (),
    finite: Sequence[str] = (),
    tree: str = "tree",
    advanced: Callable[[str, int, int], None] | None = None,
) -> Converted:
    """Write ROOT files again with the values of some branches changed; all other branches are copied as they are.

    Of each branch markers are found first, then it is multiplied, then its range is judged. What is not known stays as
    it is: 1e10, NaN, or a number beyond them; ``finite`` makes it 1e10, and a range what is NaN. Every file is looked
    at before the first is written, and none is written over.

    Args:
        data: ROOT files, each with its tree: ``file.root:tree``.
        into: The file to write of each, in the same order.
        scale: ``BRANCH=FACTOR``: known values are multiplied.
        marker: ``BRANCH=NUMBER`` or ``BRANCH[COMPONENT]=NUMBER``: this number, as it is stored, becomes 1e10.
        within: ``BRANCH=LOW:HIGH``, or a range a component with commas between: what lies beyond becomes 1e10.
        finite: Branches in which NaN, infinity and what is larger than 1e10 become 1e10.
        tree: Tree of files that are named without one.
        advanced: Told of which file how many of its events are written.

    Raises:
        UsageError: An option makes no sense, or a file to write is there.
        DataFileError: A file, tree or branch is not there, or is damaged; of this file nothing is left then.
        DiskError: The disk is full.
    """
    changes, paths = changes_of(scale, marker, within, finite), expand_inputs(data)
    targets = [Path(os.path.expanduser(target)) for target in into]
    _require_places(paths, targets, tree)
    planned = dict[str, Change]()
    for path in paths:
        with _opened(path, tree) as file:
            planned |= plan_changes(file, changes)
    files, findings, effects = list[FileConverted](), list[Finding](), dict[str, Effect]()
    for path, target in zip(paths, targets, strict=True):
        with _opened(path, tree) as file, _telling(files):
            done, lost = _converted(file, target, changes, effects, advanced or (lambda *_: None))
        files.append(done)
        findings += lost
    findings += remarks(planned, effects, _ones(scale), [written_name(done.path, done.tree) for done in files])
    written = [in_shell(written_name(done.output, done.tree)) for done in files]
    said = {branch: _said(change) for branch, change in planned.items()}
    following = ("xectool check-data", *written, *_names(files))
    return Converted(tuple(files), said, " ".join(following), tuple(findings))


def _names(files: Sequence[FileConverted]) -> list[str]:
    """Return the options by which a check reads the written files; none where they do not agree."""
    first, *others = [names_in(done.output, done.tree) for done in files[:MOST_FILES]]
    return [f"--set {in_shell(name)}" for name in first] if all(names == first for names in others) else []


def _opened(path: str, tree: str) -> EventFile:
    """Open a file; where it has another tree, what names that is an option of this command."""
    try:
        return EventFile(path, tree)
    except DataFileError as error:
        words = shlex.split(error.fix, comments=True)
        if words[:1] == ["--set"] and words[1].startswith("data.tree_name="):
            error.fix = f"--tree {in_shell(words[1].partition('=')[2])}"
        raise


@contextmanager
def _telling(written: Sequence[FileConverted]) -> Iterator[None]:
    """Say in an error which files were written before it: the same line would find them in its way."""
    try:
        yield
    except XecError as error:
        if written:
            error.problem += f"; written before it, and whole: {', '.join(file.output for file in written)}"
        raise


def _converted(
    file: EventFile,
    target: Path,
    changes: Mapping[str, Change],
    effects: dict[str, Effect],
    advanced: Callable[[str, int, int], None],
) -> tuple[FileConverted, list[Finding]]:
    done = 0

    def further(count: int) -> None:
        nonlocal done
        done += count
        advanced(file.path, done, file.num_entries)

    try:
        written = write_converted(file, target, changes, effects, further)
    except DataFileError as error:
        if error.code != "XT-DATA-DAMAGED":
            raise
        problem = f"{error.problem}; no part of '{target}' was kept"
        look = f"xectool check-data {in_shell(written_name(file.path, file.tree))} --deep"
        raise DataFileError(problem, where=error.where, fix=look, code=error.code) from error
    lost = [
        Finding(
            "XT-CONVERT-BRANCH", Severity.WARNING, f"branch '{name}' is not in '{target}': {reason}",
            where=str(target), fix="read it from the file that was converted; the events are in the same order",
        )
        for name, reason in written.left_out.items()
    ]  # fmt: skip
    lost += left_behind(written.keys, file.path, str(target))
    return FileConverted(file.path, file.tree, str(target), written.num_events, written.changed), lost


def _ones(scale: Sequence[str]) -> list[str]:
    """Return the branches that are to be multiplied with 1."""
    pairs = (text.rpartition("=") for text in scale)
    return [branch for branch, _, factor in pairs if float(factor) == 1.0]


def _require_places(paths: Sequence[str], targets: Sequence[Path], tree: str) -> None:
    """Refuse files to write that are too few or many, there already, the same, or an input.

    Raises:
        UsageError: They are.
    """
    if len(paths) != len(targets):
        problem = f"{counted(len(paths), 'file')} to read and {counted(len(targets), 'file')} to write"
        raise UsageError(problem, where="--into", fix="give --into once for each file that is read, in their order")
    read = [os.path.realpath(split_tree(path, tree)[0]) for path in paths if not is_remote(path)]
    for number, target in enumerate(targets):
        problem, instead = "", target
        if target.is_dir():
            problem, instead = f"'{target}' is a directory, not a file to write", target / "converted.root"
        elif split_tree(str(target))[0] != str(target):
            problem, instead = f"'{target}': a tree keeps its name", Path(split_tree(str(target))[0])
        elif os.path.realpath(f"{target}.part") in read:
            problem = f"'{target}.part' is read, and would be written before '{target}'"
        elif os.path.lexists(target):
            problem = f"'{target}' is there already, and nothing is written over"
        elif os.path.realpath(target) in map(os.path.realpath, targets[:number]):
            problem = f"'{target}' would be written twice"
        if problem:
            raise UsageError(problem, where="--into", fix=f"--into {in_shell(_free(instead, targets))}")


def _free(path: Path, others: Sequence[Path]) -> str:
    """Return a name like that of a file, which none has or is to get."""
    stems = (f"{path.with_suffix('')}{count}" for count in itertools.chain([""], map("_{}".format, itertools.count(2))))
    names = (f"{stem}.root" for stem in stems)
    return next(name for name in names if Path(name) not in others and not os.path.lexists(name))


def _said(change: Change) -> str:
    """Return a change in words.

    >>> from xectool.findings.mends import Marker
    >>> _said(Change((Marker(-999.0, 2),), 1e-3, ((0.0, 1.0),), True))
    'component 2 at -999 as 1e10, x 0.001, outside of 0:1 as 1e10, what is no number as 1e10'
    """
    said = [
        f"{'' if component is None else f'component {component} at '}{shown(value)} as 1e10"
        for value, component in change.markers
    ]
    said += [f"x {change.factor:g}"] if change.factor != 1.0 else []
    ends = ",".join(f"{low:g}:{high:g}" for low, high in change.within)
    said += [f"outside of {ends} as 1e10"] if ends else []
    return ", ".join([*said, *(["what is no number as 1e10"] if change.is_finite else [])])

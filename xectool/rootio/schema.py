"""The branches a job expects, checked before the first event is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from xectool.detector.constants import NUM_SENSORS
from xectool.errors import DataFileError, nearest
from xectool.rootio.reader import EventFile

_REMARK = "   # "
_TRUTH = "data.truth_branches."


@dataclass(frozen=True)
class ExpectedBranch:
    """A branch that a job reads.

    Attributes:
        name: Name of the branch.
        width: Numbers an event: 4760 for sensors, 1 for a scalar.
        role: What it is read for, e.g. ``"truth of task energy"``.
        option: The configuration key that names it, e.g. ``data.npho_branch``.
        without: The setting by which the job reads no such branch, e.g. ``tasks.energy.enabled=false``.
    """

    name: str
    width: int
    role: str
    option: str
    without: str = ""


def check_schema(
    file: EventFile, expected: Iterable[ExpectedBranch], instead: str = "", others: Iterable[str] = ()
) -> None:
    """Check that every expected branch is there, holds numbers, and has its width.

    Integer branches are read as floats. A variable-length branch passes if its first event has the width; every
    further event is checked when it is read.

    Args:
        file: An open file.
        expected: What it is to hold.
        instead: For a file without any branch that can be left out, where a job cannot leave out all: the line that
            begins another job, or the options that make up for them.
        others: Names of branches with another role, which are proposed for none.

    Raises:
        DataFileError: A branch is absent, of another kind or width; names file, tree, branch and the nearest.
    """
    wanted = list(expected)
    missing = [branch for branch in wanted if branch.name not in file.branch_names]
    if missing:
        raise _missing(file, missing, {*others, *(branch.name for branch in wanted)}, instead)
    for branch in wanted if file.num_entries else ():
        width = file.first_width(branch.name)
        if width != branch.width:
            raise _other_width(file, branch, width, {other.name for other in wanted})


def _missing(file: EventFile, branches: Sequence[ExpectedBranch], known: Set[str], instead: str) -> DataFileError:
    """Return the error for all branches that are not there, so that all names are given at once."""
    first, found = branches[0], [_meant(file, branch, known) for branch in branches]
    named = [(branch, f"{branch.option}={name or 'NAME'}", name) for branch, name in zip(branches, found, strict=True)]
    options = [setting if name else branch.without or setting for branch, setting, name in named]
    hint = f"did you mean '{found[0]}'?" if found[0] else ""
    unknown = [setting for branch, setting, name in named if branch.without and not name]
    told = f"{_REMARK}or name what holds it: --set {' --set '.join(unknown)}" if unknown else ""
    fix = f"--set {' --set '.join(options)}{told}"
    if instead and not any(name for branch, _, name in named if branch.without):
        readings = [setting for branch, setting, _ in named if not branch.option.startswith(_TRUTH)]
        if instead.startswith("--set "):
            fix = f"{instead} {fix}"
        else:  # what it has to have at all goes first
            fix = f"--set {' --set '.join(readings)}" if readings else instead + told.replace(_REMARK, "; ")
    error = file.missing_branch(first.name, fix=fix, meant=hint)
    error.problem += f"; it is the {first.role}"
    if others := ", ".join(f"'{branch.name}' ({branch.role})" for branch in branches[1:]):
        error.problem += f"; neither are there {others}"
    return error


def _meant(file: EventFile, wanted: ExpectedBranch, known: Set[str]) -> str:
    """Return the branch of a near name, of the width and of no role yet for one that is not there; else empty."""
    near = nearest(wanted.name, [name for name in file.branch_names if name not in known], len(file.branch_names))
    return next((name for name in near if _width_of(file, name) in (None, wanted.width)), "")


def _other_width(file: EventFile, branch: ExpectedBranch, width: int, known: Set[str]) -> DataFileError:
    fitting = [name for name in file.branch_names if name not in known and _width_of(file, name) == branch.width]
    shown = f"branches of that width: {', '.join(fitting[:5])}" if fitting else "no other branch has that width"
    near = nearest(branch.name, fitting, count=1)  # as many numbers as sensors are unmistakable, three are not
    meant = next(iter(near or (fitting if branch.width == NUM_SENSORS else [])), "")
    return DataFileError(
        f"branch '{branch.name}' of '{file.path}' holds {width} values an event where the {branch.role} has "
        f"{branch.width} ({shown})",
        where=f"{file.where} branch {branch.name}",
        fix=f"--set {branch.option}={meant}" if meant else "use the files of this detector",
        code="XT-DATA-WIDTH",
    )


def _width_of(file: EventFile, name: str) -> int | None:
    try:
        return file.column(name).width
    except DataFileError:
        return None

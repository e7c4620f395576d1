"""Which branches a job needs, and whether a file has them in the right type and width."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xectool.checks.facts import BranchFacts, FileFacts, Trouble, arguments
from xectool.checks.truth_names import is_made, says_another, says_task
from xectool.config.data import DataConfig
from xectool.config.tasks import TASK_WIDTHS
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import DataFileError, counted, in_shell, nearest
from xectool.rootio.reader import EventFile

_JOINED = "write them as one branch, numpy.concatenate([FIRST, SECOND], axis=1), in the order of the sensors"
_ALL_NUMBERS = "write all numbers of every event when the file is made"
# Numbers of another detector are the usual reason for a width that does not fit.
_OTHER_FILE = "use the file of this detector"
_SAYS_TRUTH = re.compile("truth|true|mc|gen|sim", re.IGNORECASE)
_SHORT = 3  # letters of which few are shared by chance
_CODES = {"missing": "XT-DATA-BRANCH", "width": "XT-DATA-WIDTH", "type": "XT-DATA-TYPE"}


@dataclass(frozen=True)
class Wanted:
    """A branch that is looked for.

    Attributes:
        name: Its name.
        width: Numbers an event.
        role: What it is for.
        option: The key that names it.
        required: Whether a job cannot do without it.
        without: What else can be done.
    """

    name: str
    width: int
    role: str
    option: str
    required: bool
    without: str = _OTHER_FILE


def wanted_branches(data: DataConfig, tasks: Iterable[str], truth: Mapping[str, str]) -> list[Wanted]:
    """Return the branches of a job; truth is required for the given tasks only, run and event number never."""
    enabled = set(tasks)
    return [
        Wanted(data.npho_branch, NUM_SENSORS, "photons of each sensor", "data.npho_branch", True),
        Wanted(data.time_branch, NUM_SENSORS, "time of each sensor", "data.time_branch", True),
        Wanted(data.run_branch, 1, "run number", "data.run_branch", False, "leave it: each event has run -1"),
        Wanted(data.event_branch, 1, "event number", "data.event_branch", False, "leave it: the entry counts"),
        *(
            Wanted(branch, TASK_WIDTHS[task], f"truth of task {task}", f"data.truth_branches.{task}", task in enabled)
            for task, branch in truth.items()
        ),
    ]


@dataclass(frozen=True)
class BranchVerdict:
    """What a file has of the wanted branches.

    Attributes:
        usable: Names of the branches that can be read as they are wanted.
        troubles: What is wrong with the required ones.
        notes: What is missing, not required and may have another name, or is of an unusual type.
        unnamed: What is missing and not required, where nothing else may be it: there is nothing to be done.
    """

    usable: frozenset[str]
    troubles: tuple[Trouble, ...]
    notes: tuple[Trouble, ...]
    unnamed: tuple[Trouble, ...] = ()


def check_branches(file: EventFile, facts: FileFacts, wanted: Iterable[Wanted]) -> BranchVerdict:
    """Return which of the wanted branches of an open file can be read, and what is wrong with the others."""
    usable: set[str] = set()
    troubles: list[Trouble] = []
    notes: list[Trouble] = []
    unnamed: list[Trouble] = []
    wanted = list(wanted)
    known = {branch.name for branch in wanted}
    others = {name: branch for name, branch in facts.branches.items() if name not in known and branch.dtype}
    if not known <= set(file.branch_names):
        others = {name: _with_first_width(file, branch) for name, branch in others.items()}
    meant = _meant(others, [branch for branch in wanted if branch.name not in file.branch_names])
    others = {name: branch for name, branch in others.items() if name not in meant.values()}
    for branch in wanted:
        trouble = _with_friends(_trouble(file, others, meant, branch), facts)
        if trouble is None:
            usable.add(branch.name)
            notes += _type_note(file, branch)
        elif branch.required:
            troubles.append(trouble)
        elif branch.width == 1 and branch.role.endswith("number"):
            (notes if branch.option in meant else unnamed).append(trouble)
        elif trouble.code != _CODES["missing"]:
            troubles.append(trouble)
    return BranchVerdict(frozenset(usable), tuple(troubles), tuple(notes), tuple(unnamed))


def _with_friends(trouble: Trouble | None, facts: FileFacts) -> Trouble | None:
    """Return what is wrong with a branch; one that is missing may lie in friends of the tree, which ROOT follows."""
    if trouble is None or trouble.code != _CODES["missing"] or not facts.friends:
        return trouble
    *others, last = facts.friends
    which = f"the friends {', '.join(others)} and {last}, which are" if others else f"the friend {last}, which is"
    problem = f"{trouble.problem}; the tree has {which} not read"
    name = facts.tree.rpartition("/")[2]
    line = f'ROOT.RDataFrame(ROOT.TFile("{facts.path}").Get("{facts.tree}")).Snapshot("{name}", "whole.root")'
    return replace(trouble, problem=problem, fix=f"{line}   # in ROOT: all these trees in one")


def _with_first_width(file: EventFile, branch: BranchFacts) -> BranchFacts:
    """Return a branch of varying width with that of its first entry: an array of every sensor may be stored as one."""
    if branch.width is not None or not file.num_entries:
        return branch
    try:
        return replace(branch, width=file.first_width(branch.name))
    except DataFileError:  # damage, which is told where the branch is read
        return branch


def _of_width(others: Mapping[str, BranchFacts], width: int) -> list[str]:
    return [name for name, facts in others.items() if facts.width == width]


def _parts(others: Mapping[str, BranchFacts]) -> str:
    """Return which branches have as many numbers together as there are sensors, as the start of a sentence."""
    widths = {name: branch.width for name, branch in others.items() if branch.width and branch.width > 1}
    pairs = [(a, b) for a, b in itertools.combinations(widths, 2) if widths[a] + widths[b] == NUM_SENSORS]
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    if len(pairs) == 1:
        return f"{' and '.join(names)} have"
    return f"two of {', '.join(sorted(names))} have" if pairs else ""


def _meant(others: Mapping[str, BranchFacts], missing: Sequence[Wanted]) -> dict[str, str]:
    """Return the setting of each missing branch that may have another name; the same name is told for one alone.

    Near names come first; then a branch alone in its width, and for photons and times those of their width: one that
    is called so, or not as the other, before the rest in order.
    Integers are no truth but a count: the widths of varying branches stand in branches of their own.
    What a program made of the readings, or says to be something else, is no truth either.
    """
    found: dict[str, str] = {}
    for branch in missing:
        near = _near(branch.name, _of_width(others, branch.width))
        found |= {branch.option: near} if near else {}
    for branch in missing:
        free = [name for name in _of_width(others, branch.width) if name not in found.values()]
        free = [name for name in free if branch.width == NUM_SENSORS or _may_be_truth(others[name], branch)]
        if branch.width == NUM_SENSORS:
            words = [other.role.split()[0].rstrip("s") for other in (branch, *missing)]  # photon, time
            free.sort(key=lambda name: [words[0] not in name.lower(), any(word in name.lower() for word in words)])
        fits = free and branch.required and (len(free) == 1 or branch.width == NUM_SENSORS)
        if branch.option not in found and fits:
            found[branch.option] = free[0]
    return found


def _may_be_truth(other: BranchFacts, wanted: Wanted) -> bool:
    """Return whether a branch of the width of a truth may hold it; no small number alone is a time."""
    task = wanted.option.rpartition(".")[2]
    if task not in TASK_WIDTHS or not other.dtype.startswith("float") or is_made(other.name):
        return False
    return says_task(other.name, task) or not (task == "timing" or says_another(other.name, task))


def _near(wanted: str, names: Sequence[str]) -> str:
    """Return the name that is nearest, empty where none is; what is not alike is not near by the word "truth".

    >>> _near("uvwTruth", ["xyzTruth", "uvwReco"]), _near("uvwTruth", ["xyzTruth", "mc_uvw"])
    ('', 'mc_uvw')
    >>> _near("energyTruth", ["thetaTruth"]), _near("energyTruth", ["eTruth"]), _near("uvwTruth", ["uvwReco", "uvw"])
    ('', 'eTruth', 'uvw')
    >>> _near("energyTruth", ["energy_fit", "energy_MC"]), _near("energyTruth", ["recoil_energyTruth", "mc_recoEnergy"])
    ('energy_MC', 'recoil_energyTruth')
    """
    own = _without_truth(wanted)
    if own != wanted:  # a truth
        names = [name for name in names if not is_made(name)]
    same = [name for name in names if name.lower() == own.lower()]
    alike = [name for name in nearest(wanted, names) if _may_be(own, _without_truth(name))]
    told = {_without_truth(name): name for name in reversed(names) if _SAYS_TRUTH.search(name)}
    alike.sort(key=lambda name: not _SAYS_TRUTH.search(name))
    return next(iter([*alike, *(told[name] for name in nearest(own, told, count=1)), *same]), "")


def _without_truth(name: str) -> str:
    return re.sub("_?truth_?", "", name, flags=re.IGNORECASE) or name


def _may_be(own: str, other: str) -> bool:
    return bool(nearest(own, [other])) or (len(other) < _SHORT and own.lower().startswith(other.lower()))


def _trouble(
    file: EventFile, others: Mapping[str, BranchFacts], meant: Mapping[str, str], wanted: Wanted
) -> Trouble | None:
    """Return what is wrong with a branch; ``meant`` are the names of missing ones, ``others`` what nothing names."""
    where = f"{file.where} branch {wanted.name}"
    other = f"name the branch that holds it with {wanted.option}, or {wanted.without}"
    if wanted.name not in file.branch_names:
        problem = f"'{file.path}' has no branch '{wanted.name}', the {wanted.role} ({file.names_like(wanted.name)})"
        fix = _again(file, *(f"{option}={name}" for option, name in meant.items()))
        if wanted.width == NUM_SENSORS and (parts := _parts(others)):
            other = f"{parts} {wanted.width} numbers together: {_JOINED}"
        return Trouble("DAT-04", _CODES["missing"], problem, where, fix if wanted.option in meant else other)
    try:
        width = file.column(wanted.name).width
        found = file.first_width(wanted.name) if file.num_entries else wanted.width if width is None else width
    except DataFileError as error:
        # objects and strings are of a wrong type; a first basket that cannot be read is damage
        return Trouble.of("DAT-02" if error.code == "XT-DATA-DAMAGED" else "DAT-04", error)
    if found == wanted.width:
        return None
    fitting = _of_width(others, wanted.width)
    shown = f"branches of that width: {', '.join(fitting[:5])}" if fitting else "no other branch has that width"
    varies = width is None
    held = f"as many numbers as were read, {found} in the first," if varies else f"{counted(found, 'number')} an"
    problem = (
        f"branch '{wanted.name}' of '{file.path}' holds {held} event where the {wanted.role} "
        f"has {wanted.width} ({shown})"
    )
    # as many numbers as sensors are unmistakable, while three may be any vector
    named = nearest(wanted.name, fitting, count=1) or (fitting if wanted.width == NUM_SENSORS else [])
    rest = _ALL_NUMBERS if varies else _OTHER_FILE
    fix = _again(file, f"{wanted.option}={named[0]}") if named else other if fitting else rest
    return Trouble("DAT-05", _CODES["width"], problem, where, fix)


def _again(file: EventFile, *settings: str) -> str:
    """Return the check of this file under other settings, as a command."""
    chosen = (f"--set {in_shell(setting)}" for setting in settings)
    return " ".join(("xectool check-data", arguments(file.path, file.tree), *chosen))


def _type_note(file: EventFile, branch: Wanted) -> list[Trouble]:
    column = file.column(branch.name)
    where = f"{file.where} branch {branch.name}"
    notes = []
    is_count = branch.role.endswith("number") or branch.option.endswith("n_gamma")
    if column.dtype.kind in "iub" and not is_count:
        problem = (
            f"branch '{branch.name}' of '{file.path}' holds {column.dtype.name} where the {branch.role} is a float"
        )
        notes.append(Trouble("DAT-04", _CODES["type"], problem, where, "write it as float32 when the file is made"))
    if column.dtype.kind == "f" and branch.role.endswith("number"):
        problem = f"branch '{branch.name}' of '{file.path}' holds {column.dtype.name}: large {branch.role}s lose digits"
        notes.append(Trouble("DAT-04", _CODES["type"], problem, where, "write it as an integer when the file is made"))
    return notes

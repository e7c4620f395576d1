"""The words of ``xectool convert``: read from a command line, and written for all files that need it."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from xectool.config.inputs import Place, input_name, place_of
from xectool.errors import UsageError, counted, in_shell
from xectool.findings.mends import Change, Marker, Mend

MOST_FILES: Final = 20
"""Files in one line to paste."""
LEAST_FACTOR: Final = 1e-18
"""Of a unit: beyond it and its inverse float32 holds no number of such a size."""
_WRITTEN: Final = re.compile(r"_converted(_\d+)?$")  # by such a line; the name does not grow
_WHOLE: Final = re.compile(r"^[+-]?\d{1,20}$")
_COMPONENT: Final = re.compile(r"^(?P<branch>.+)\[(?P<component>\d+)\]$")


@dataclass(frozen=True)
class Conversion:
    """What has to be done with some files, and what they are written to.

    Attributes:
        changes: By file and tree, what becomes of its branches.
        targets: By file and tree, the file that is written; of the first twenty.
    """

    changes: Mapping[tuple[str, str], Mapping[str, Change]]
    targets: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, mends: Iterable[Mend]) -> Conversion:
        """Return what all the mends of some files do together; a file under two names is one."""
        names: dict[Place, tuple[str, str]] = {}
        changes: dict[tuple[str, str], dict[str, Change]] = {}
        for mend in mends:
            file = names.setdefault(place_of(mend.path, mend.tree), (mend.path, mend.tree))
            branches = changes.setdefault(file, {})
            branches[mend.branch] = branches.get(mend.branch, Change()).joined(mend.change)
        written = list(changes)[:MOST_FILES]
        return cls(changes, dict(zip(written, _targets([path for path, _ in written]), strict=True)))

    def names(self) -> dict[Place, str]:
        """Return each file that is written as a check names it, by the place of the one it is made of."""
        return {place_of(*file): written_name(target, file[1]) for file, target in self.targets.items()}

    def line(self, following: str) -> str:
        """Return the commands that write each file once, those that need the same together, and then a further one."""
        groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        for (path, tree), target in self.targets.items():
            options = [
                word for branch, change in sorted(self.changes[path, tree].items()) for word in words_of(branch, change)
            ]
            name = input_name(path, tree)
            if name == path and tree != "tree":
                options += ["--tree", tree]
            groups.setdefault(tuple(options), []).append((path if tree == "tree" else name, target))
        commands = [
            ["xectool", "convert", *(path for path, _ in files)]
            + [word for _, target in files for word in ("--into", target)]
            + list(options)
            for options, files in groups.items()
        ]
        return " && ".join((*(" ".join(map(_in_shell, words)) for words in commands), following))

    def remark(self) -> str:
        """Return what is to be said of the line."""
        others = len(self.changes) - len(self.targets)
        more = f"; the same for the other {counted(others, 'file')}" if others else ""
        all_changes = [change for branches in self.changes.values() for change in branches.values()]
        is_marked = any(change != Change(factor=change.factor) for change in all_changes)
        known = '; 1e10 is "not known"' if is_marked else ""
        return f"what was found in {counted(len(self.targets), 'file')}{more}{known}"


def _in_shell(word: str) -> str:
    """Return a word as a shell takes it; an option stays one.

    >>> _in_shell("--into"), _in_shell("-a.root"), _in_shell("a b.root")
    ('--into', './-a.root', "'a b.root'")
    """
    return word if word.startswith("--") else in_shell(word)


def written_name(path: str, tree: str) -> str:
    """Return a file that a line writes as its check names it."""
    return input_name(path, tree) if tree != "tree" else path


def words_of(branch: str, change: Change) -> list[str]:
    """Return the options that say what becomes of a branch.

    >>> words_of("uvw", Change((Marker(-999.0, 1),), 0.1, ((-30.0, 30.0),), True))
    ['--marker', 'uvw[1]=-999', '--scale', 'uvw=0.1', '--within', 'uvw=-30:30', '--finite', 'uvw']
    """
    words = []
    for value, component in change.markers:
        words += ["--marker", f"{branch}{'' if component is None else f'[{component}]'}={_number(value)}"]
    if change.factor != 1.0:
        words += ["--scale", f"{branch}={_number(change.factor)}"]
    if change.within:
        ends = (":".join(map(_number, pair)) for pair in change.within)
        words += ["--within", f"{branch}={','.join(ends)}"]
    return [*words, "--finite", branch] if change.is_finite else words


def options_of(branch: str, change: Change) -> str:
    """Return the options that say what becomes of a branch, as a shell takes them.

    >>> options_of("mc e", Change(factor=0.1))
    "--scale 'mc e=0.1'"
    """
    return " ".join(map(_in_shell, words_of(branch, change)))


def changes_of(
    scale: Iterable[str], marker: Iterable[str], within: Iterable[str], finite: Iterable[str]
) -> dict[str, Change]:
    """Return what becomes of each branch, by the values of the options of ``convert``.

    Raises:
        UsageError: A value is none, a factor or a range is given twice, or nothing is to be done.
    """
    found: dict[str, Change] = {}
    for text in marker:
        branch, number = _split(text, "--marker", "energyTruth=-999")
        named = _COMPONENT.match(branch)
        component = int(named["component"]) if named else None
        _float(number, text, "--marker", f"{branch}=-999")
        value = int(number) if _WHOLE.match(number) else float(number)  # an identity has more digits than a float
        _add(found, named["branch"] if named else branch, Change((Marker(value, component),)))
    for text in scale:
        branch, number = _split(text, "--scale", "energyTruth=1e-3")
        factor = _float(number, text, "--scale", f"{branch}=1e-3")
        if not LEAST_FACTOR <= abs(factor) <= 1 / LEAST_FACTOR:
            becomes = "0" if abs(factor) < 1 else "infinite"
            raise _refused(f"'{text}' would make values {becomes}", "--scale", f"{branch}=1e-3")
        if found.get(branch, Change()).factor != 1.0:
            raise _refused(f"'{branch}' has two factors", "--scale", text)
        _add(found, branch, Change(factor=factor))
    for text in within:
        branch, ends = _split(text, "--within", "energyTruth=0:1")
        if found.get(branch, Change()).within:
            raise _refused(f"'{branch}' has two ranges", "--within", text)
        _add(found, branch, Change(within=tuple(_range(pair, text, branch) for pair in ends.split(","))))
    for branch in finite:
        _add(found, branch, Change(is_finite=True))
    if not found:
        raise _refused("nothing is to be converted", "--scale, --marker, --within, --finite", "energyTruth=1e-3")
    return found


def _add(found: dict[str, Change], branch: str, change: Change) -> None:
    found[branch] = found.get(branch, Change()).joined(change)


def _range(pair: str, text: str, branch: str) -> tuple[float, float]:
    low, _, high = pair.partition(":")
    ends = tuple(_float(end, text, "--within", f"{branch}=0:1") for end in (low, high))
    if not ends[0] <= ends[1]:
        raise _refused(f"'{text}': the range '{pair}' is empty", "--within", f"{branch}=0:1")
    return ends[0], ends[1]


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    branch, mark, value = text.rpartition("=")
    if not (branch and mark and value):
        raise _refused(f"'{text}' is not a branch, '=' and a value", option, example)
    return branch, value


def _float(number: str, text: str, option: str, example: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _refused(f"'{text}': '{number}' is no finite number", option, example)
    return value


def _refused(problem: str, option: str, example: str) -> UsageError:
    return UsageError(problem, where=option, fix=f"{option.partition(',')[0]} {in_shell(example)}")


def _number(value: float) -> str:
    """Return a number as it is typed, in full.

    >>> _number(-999.0), _number(0.001), _number(1 / 3), _number(2**53 + 1)
    ('-999', '0.001', '0.3333333333333333', '9007199254740993')
    """
    if isinstance(value, int):
        return str(value)
    return short if float(short := f"{value:g}") == value else repr(float(value))


def _targets(paths: Sequence[str]) -> list[str]:
    """Return names that no file has, one a path."""
    found: list[str] = []
    for path in paths:
        begin = f"{_WRITTEN.sub('', PurePath(path).stem)}_converted"
        names = itertools.chain([f"{begin}.root"], (f"{begin}_{number}.root" for number in itertools.count(2)))
        found.append(next(name for name in names if name not in found and not os.path.lexists(name)))
    return found

"""One line that writes all branches of all files that are in another unit again, in place of one a branch and file."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final, NamedTuple

from xectool.config.inputs import Place, input_name, place_of
from xectool.detector.constants import DEAD_VALUE, UNKNOWN_ABOVE
from xectool.errors import counted, in_shell
from xectool.findings import Finding

_MOST_FILES: Final = 20
_WRITTEN: Final = re.compile(r"_units(_\d+)?$")  # by such a line; the name does not grow
_AT_ONCE: Final = "   # all units of "
GUARD: Final = (
    "import os, sys, shlex, numpy as np, uproot; half = []; sys.excepthook = lambda kind, error, _: "
    "([os.remove(part) for *_, part in half if os.path.exists(part)], [print(f'error: {path} could not be written "
    "again, and no part of it was kept:', next(iter(str(error).splitlines()), kind.__name__), file=sys.stderr) or "
    "print('next:', shlex.join(['xectool', 'check-data', f'{path}:{name}', '--deep'])) for path, name, _ in half[-1:]] "
    "or print('error:', kind.__name__, error, file=sys.stderr)); begun = lambda path, name, target: "
    "(half.append((path, name, target + '.part')), uproot.recreate(target + '.part'))[1]; "
    "ended = lambda out, target: (out.close(), os.replace(target + '.part', target)); "
)
"""Begin of a program that writes files: it leaves no half of one, and says in one sentence what it could not do."""
_PROGRAM: Final = (
    f"{GUARD}cut = sys.argv.index('--'); end = sys.argv.index('--', cut + 1); "
    "mends = {branch: [*map(float, numbers.split(','))] for branch, numbers in "
    "(word.rsplit('=', 1) for word in sys.argv[1:cut])}; "
    "types = lambda part: {key: (value.dtype, value.shape[1:]) for key, value in part.items()}; "
    "is_one = lambda values, odd: np.any([np.isclose(values, number, 1e-6, 0) for number in odd], 0); "
    f"mended = lambda values, factor, *odd: np.where(is_one(values, odd), {DEAD_VALUE:g}, "
    f"np.where(np.abs(values) < {UNKNOWN_ABOVE:g}, values * factor, values)); "
    "again = lambda part: part | {branch: mended(part[branch], *numbers) for branch, numbers in mends.items()}; "
    "put = lambda out, name, part: ((out[name] if name in out else out.mktree(name, types(part))).extend(part), "
    "len(next(iter(part.values()))))[1]; "
    "[(count := sum([put(out, name, again(part)) for part in uproot.open(path)[name].iterate(library='np', "
    "step_size=2000)]), ended(out, target), print(f'wrote {target}: {count} events of {path}, with', "
    "*(branch + f' x {factor:g}' * (factor != 1) + ''.join(f', {number:g} as 1e10' for number in odd) "
    "for branch, (factor, *odd) in mends.items()))) "
    "for path, name, target in zip(*[iter(sys.argv[cut + 1:end])] * 3) for out in [begun(path, name, target)]]; "
    "end + 1 < len(sys.argv) and print('next:', shlex.join(sys.argv[end + 1:]))"
)


class UnitMend(NamedTuple):
    """A branch of a file that is in another unit, or has numbers in place of readings that are none.

    Attributes:
        path: File.
        tree: Its tree.
        branch: The branch.
        factor: What brings it to the right unit; 1 where it has that.
        markers: Numbers that become 1e10.
    """

    path: str
    tree: str
    branch: str
    factor: float
    markers: tuple[float, ...] = ()


def with_one_line(findings: Iterable[Finding], mends: Sequence[UnitMend]) -> tuple[Finding, ...]:
    """Return findings of which those of another unit have one line that mends all; as they are where one is all."""
    if len(mends) < 2 and not any(mend.markers for mend in mends):
        return tuple(findings)
    line, branches = all_at_once(mends), {mend.branch for mend in mends}
    return tuple(replace(found, fix=line) if found.other_unit in branches else found for found in findings)


def all_at_once(mends: Sequence[UnitMend]) -> str:
    """Return the command that writes each of some files once, with all of its branches in their units.

    Files that need the same are written by one program; what is not known stays so.
    """
    by_file: dict[Place, dict[str, str]] = {}
    for mend in mends:
        numbers = ",".join(map(repr, (mend.factor, *mend.markers)))
        by_file.setdefault(place_of(mend.path, mend.tree), {})[mend.branch] = numbers
    files = {place_of(mend.path, mend.tree): (mend.path, mend.tree) for mend in mends}
    shown = dict(itertools.islice(files.items(), _MOST_FILES))
    targets = _targets([path for path, _ in shown.values()])
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for (place, named), target in zip(shown.items(), targets, strict=True):
        groups.setdefault(tuple(sorted(by_file[place].items())), []).extend((*named, target))
    following = [*[()] * (len(groups) - 1), next_check(zip(targets, (tree for _, tree in shown.values()), strict=True))]
    line = " && ".join(
        f'{in_shell(sys.executable)} -c "{_PROGRAM}" '
        + shlex.join((*(f"{branch}={numbers}" for branch, numbers in numbers_of), "--", *words, "--", *then))
        for (numbers_of, words), then in zip(groups.items(), following, strict=True)
    )
    more = f"; the same for the other {counted(len(files) - len(shown), 'file')}" if len(files) > len(shown) else ""
    also = ", markers of no reading too" if any(mend.markers for mend in mends) else ""
    return f"{line}{_AT_ONCE}{counted(len(shown), 'file')} at once{also}, into {', '.join(targets)}{more}"


def next_check(written: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the words of the check of files, each with its tree, that a line writes and then tells to go on with."""
    return ("xectool", "check-data", *(written_name(*file) for file in written))


def written_name(path: str, tree: str) -> str:
    """Return a file that a line writes as its check names it."""
    return input_name(path, tree) if tree != "tree" else path


def check_at_once(line: str) -> list[str]:
    """Return the words of the check that a line of `all_at_once` leads to."""
    words = _words(line)
    return words[len(words) - words[::-1].index("--") :]


def written_at_once(line: str) -> list[tuple[str, str, str]]:
    """Return path, tree and what is written of each file of a line of `all_at_once`; nothing of another line."""
    if _AT_ONCE not in line:
        return []
    programs = [
        list(words) for is_end, words in itertools.groupby(_words(line), lambda word: word == "&&") if not is_end
    ]
    cuts = ([at for at, word in enumerate(words) if word == "--"] for words in programs)
    files = (words[cut + 1 : end] for words, (cut, end) in zip(programs, cuts, strict=True))
    return [(path, tree, target) for words in files for path, tree, target in zip(*[iter(words)] * 3, strict=True)]


def _words(line: str) -> list[str]:
    return shlex.split(line.partition(_AT_ONCE)[0])


def _targets(paths: Sequence[str]) -> list[str]:
    """Return names that no file has, one a path."""
    found: list[str] = []
    for path in paths:
        begin = f"{_WRITTEN.sub('', PurePath(path).stem)}_units"
        names = itertools.chain([f"{begin}.root"], (f"{begin}_{number}.root" for number in itertools.count(2)))
        found.append(next(name for name in names if name not in found and not os.path.lexists(name)))
    return found

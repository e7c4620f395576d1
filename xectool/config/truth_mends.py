"""What is said of files whose truth is in another unit or no number, and the line that writes such a file again."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final, NamedTuple

from xectool.config.inputs import input_name, split_tree
from xectool.config.unit_mends import GUARD, UnitMend, check_at_once, next_check, written_at_once, written_name
from xectool.detector.constants import LARGEST_LEGAL, UNKNOWN_ABOVE
from xectool.detector.truth_ranges import RANGES
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Severity

MOST_NAMED: Final = 16
"""Events that a setting names; of more it would be no line to paste."""
BY_HAND: Final = "; or leave these events out (data.exclude)"
"""End of a fix, which is none for files that no run reads: training refuses their names in data.exclude."""
_SHOWN: Final = 10
_WRITE_AGAIN: Final = (
    f"{GUARD}source, name, branch, target, *then = sys.argv[1:]; out = begun(source, name, target); "
    "types = lambda part: {key: (value.dtype, value.shape[1:]) for key, value in part.items()}; "
    "again = lambda truth: {again}; "
    "put = lambda part: ((out[name] if name in out else out.mktree(name, types(part))).extend(part), "
    "len(part[branch]))[1]; "
    "odd = lambda old, new: int((~np.isclose(new, old, 0, 0, True)).reshape(len(new), -1).any(1).sum()); "
    "done = [(put(part | {branch: new}), odd(part[branch], new)) for part in "
    "uproot.open(source)[name].iterate(library='np', step_size=2000) for new in [again(part[branch])]]; "
    "ended(out, target); print(f'wrote {target}:', sum(count for count, _ in done), f'events of {source}, {branch} "
    "changed in', sum(odds for _, odds in done)); print('next:', shlex.join(then))"
)
_PROGRAM: Final = ' -c "'
_ELSE: Final = "   # what else this file needs: then in "
_LOOKS: Final = "the truth of task {task} looks like "
_FIRST: Final = " files, first "
_AFTER: Final = "   # after the line that writes "


class FileUnit(NamedTuple):
    """A file, or the only one of a sample, with the unit its truth of a task seems to be in, and its typical size."""

    path: str
    tree: str
    unit: str
    size: float

    @property
    def name(self) -> str:
        """The file and its tree, as an input is named."""
        return input_name(self.path, self.tree)


class UnitsOfTruth(NamedTuple):
    """Units that the truth of a task seems to be in, in one sample.

    Attributes:
        task: The task.
        branch: Branch of its truth.
        files: Files with known truth, each with its tree.
        odd: Those whose truth is in another unit, each judged by itself.
        unit: The other unit of all of them taken together; empty where that is right.
        size: Typical size of all of them taken together.
    """

    task: str
    branch: str
    files: Sequence[tuple[str, str]]
    odd: Sequence[FileUnit]
    unit: str
    size: float

    @property
    def judged(self) -> Sequence[FileUnit]:
        """The files known to be in another unit; all together tell of a file only where there is one."""
        if self.odd or not self.unit or len(self.files) > 1:
            return self.odd
        return [FileUnit(*self.files[0], self.unit, self.size)]

    @property
    def is_everywhere(self) -> bool:
        """Whether all files are in the same other unit, as far as they can be told from each other."""
        judged = self.judged
        return not judged or (len(judged) == len(self.files) and len({file.unit for file in judged}) == 1)

    @property
    def place(self) -> str:
        """The first file in another unit, or the sample in words where that holds for all of it."""
        if not self.is_everywhere:
            return self.judged[0].name
        first = input_name(*self.files[0])
        return first if len(self.files) == 1 else f"{len(self.files)}{_FIRST}{first}"

    @property
    def seen(self) -> str:
        """The unit; empty where the truth is in the right one."""
        return self.judged[0].unit if self.judged else self.unit

    @property
    def told(self) -> str:
        """The unit, and the place where not all files have it."""
        return self.seen if self.is_everywhere else f"{self.seen} in {self.place}"

    def finding(self, severity: Severity = Severity.WARNING) -> Finding:
        """Return what is told; its unit, size and line are those of one file, or of the sample and then in words."""
        judged, right = self.judged, RANGES[self.task].unit
        size = judged[0].size if judged else self.size
        many = "" if self.is_everywhere else f", in {len(judged)} of {len(self.files)} files"
        return Finding(
            "DAT-16",
            severity,
            f"{_LOOKS.format(task=self.task)}{self.seen}, not {right}{many}: typical size {size:.4g}",
            f"{self.place} branch {self.branch}",
            tuple(f"{file.name}: {file.unit}, typical size {file.size:.4g}" for file in judged[:_SHOWN] if many),
            self._fix(),
            other_unit=self.branch,
        )

    def mends(self) -> Iterator[UnitMend]:
        """Yield what brings the files to the right unit, where the factor is known."""
        for file in self.judged:
            if factor := dict(RANGES[self.task].others).get(file.unit):
                yield UnitMend(file.path, file.tree, self.branch, factor)

    def _fix(self) -> str:
        judged, right = self.judged, RANGES[self.task].unit
        if not judged:
            return f"make the files again with {self.branch} in {right}"
        first, others = judged[0], len(judged) - 1
        words = f"make the file again with {self.branch} in {right}"
        if others:
            own = "" if len({file.unit for file in judged}) == 1 else ", each from its own unit"
            words += f"; the same for the other {counted(others, 'file')}{own}"
        factor = dict(RANGES[self.task].others).get(first.unit)
        if factor is None:
            return words
        return f"{unit_fix(first.path, first.tree, self.branch, factor, right)}; or {words}"


def unit_fix(path: str, tree: str, branch: str, factor: float, unit: str) -> str:
    """Return the command that writes a file with one branch in another unit; what is not known stays so.

    Args:
        path: File.
        tree: Its tree.
        branch: The branch.
        factor: What it is multiplied with.
        unit: Unit that it has then.
    """
    scaled = f"np.where(np.abs(truth) < {UNKNOWN_ABOVE:g}, truth * {factor!r}, truth)"
    return _write_again(path, tree, branch, scaled, unit)


def nonfinite_truth_fix(path: str, tree: str, branch: str) -> str:
    """Return the command that writes a file with 1e10, "not known", where the truth is no number."""
    line = _write_again(path, tree, branch, f"np.where(np.abs(truth) <= {LARGEST_LEGAL:g}, truth, 1e10)", "whole")
    return f'{line}; 1e10 is "not known"{BY_HAND}'


def impossible_truth_fix(path: str, tree: str, branch: str, task: str, num_files: int, exclude: str | None) -> str:
    """Return the command that writes a file with 1e10, "not known", where the truth is outside of its range.

    Args:
        path: File.
        tree: Its tree.
        branch: Branch of the truth.
        task: The task.
        num_files: Files of the sample: others may hold such truths too.
        exclude: Setting that leaves all of these events out, as a shell takes it; empty where they are too many,
            None where it is to be written by hand.
    """
    low, high = ([float(f"{end:.6g}") for end in side] for side in (RANGES[task].low, RANGES[task].high))
    inside = f"(truth >= {low if len(low) > 1 else low[0]}) & (truth <= {high if len(high) > 1 else high[0]})"
    line = _unknown_fix(path, tree, branch, f"np.where({inside}, truth, 1e10)", exclude)
    return f"{line}; the same for other files that hold such" if num_files > 1 else line


def lone_truth_fix(path: str, tree: str, branch: str, value: float, component: int | None = None) -> str:
    """Return the command that writes a file with 1e10, "not known", where the truth is one value far from all.

    Args:
        path: File.
        tree: Its tree.
        branch: Branch of the truth.
        value: That value.
        component: Of which component, where there are several; another one may well have it.
    """
    there = f"np.isclose(truth, {value!r}, 1e-6, 0)"
    if component is not None:
        there += f" & (np.arange(truth.shape[1]) == {component})"
    return _unknown_fix(path, tree, branch, f"np.where({there}, 1e10, truth)")


def _unknown_fix(path: str, tree: str, branch: str, again: str, exclude: str | None = None) -> str:
    line = _write_again(path, tree, branch, again, "known")
    out = BY_HAND if exclude is None else f"; or leave these events out: --set {exclude}"
    if exclude == "":
        out = "; in data.exclude they are too many to name, and this line marks them all"
    return f'{line}; 1e10 is "not known"{out}'


def is_told_of(task: str, findings: Iterable[Finding], files: Container[str], said: str) -> bool:
    """Return whether a finding tells another unit of a task, of one of these files or of a place that a text names."""
    begin = _LOOKS.format(task=task)
    found = (item.where for item in findings if item.code == "DAT-16" and item.problem.startswith(begin))
    places = [where.rpartition(" branch ")[0] for where in found]
    return any(place in said or split_tree(place.rpartition(_FIRST)[2])[0] in files for place in places)


def one_after_the_other(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings with lines that can all be pasted: a second one for a tree goes on from what the first wrote.

    It would write what the first one mended as it was; and no two of them write the same file, or one that is there.
    The line that mends all units at once is the first. What was told comes before: a line that goes on checks what the
    one before it checks, with the file that it writes itself.
    """
    findings = tuple(findings)
    pasted = _Pasted({}, {}, {})
    for fix in dict.fromkeys(found.fix for found in findings):
        for path, tree, target in written_at_once(fix):
            pasted.written.setdefault((path, tree), []).append(target)
            pasted.checks[target] = check_at_once(fix)
    return tuple(replace(found, fix=_going_on(found.fix, pasted)) for found in findings)


class _Pasted(NamedTuple):
    """Lines so far: what they write of each tree, the check that each written file is in, and which file has what."""

    written: dict[tuple[str, str], list[str]]
    checks: dict[str, list[str]]
    done: dict[tuple[str, ...], str]


def _going_on(fix: str, pasted: _Pasted) -> str:
    """Return a line that begins at what was written of its tree before, and keep what it writes.

    What a line before has done already, as for the other end of a range, is not done again.
    """
    line, mark, prose = fix.partition(_ELSE)
    if not mark:
        return fix
    program, (path, tree, branch, target, *check) = _parts(line)
    same, (written, checks, done) = (program, path, tree, branch), pasted
    if same in done:
        return f"the line that writes {done[same]} does this too"
    source = written.get((path, tree), [path])[-1]
    suffix = PurePath(target).stem.removeprefix(PurePath(path).stem)
    begin, taken = f"{PurePath(source).stem}{suffix}", set(itertools.chain(*written.values()))
    names = itertools.chain([f"{begin}.root"], (f"{begin}_{number}.root" for number in itertools.count(2)))
    into = next(name for name in names if name not in taken and not os.path.lexists(name))
    after = "" if source == path else f"{_AFTER}{source}"
    written.setdefault((path, tree), []).append(into)
    done[same] = into
    replaced, check = (target, check) if source == path else (source, checks[source])
    checks[into] = [_with_file(word, written_name(replaced, tree), written_name(into, tree)) for word in check]
    words = [source, tree, branch, into, *checks[into]]
    return f"{program}{shlex.join(words)}{after}{mark}{into}{prose.removeprefix(target)}"


def written_by(fix: str) -> list[tuple[str, str, str]]:
    """Return path, tree and what is written of each file that a line writes again; nothing of another line."""
    line, mark, _ = fix.partition(_ELSE)
    if not mark:
        return written_at_once(fix)
    path, tree, _, target, *_ = _parts(line)[1]
    return [(path, tree, target)]


def going_on_from(fix: str) -> str:
    """Return the file that a line before this one writes; empty where it needs none."""
    after = fix.partition(_ELSE)[0].partition(_AFTER)[2]
    return after if _ELSE in fix else ""


def _parts(line: str) -> tuple[str, list[str]]:
    """Return the program of a line that writes one branch, and its words."""
    end = line.index('" ', line.index(_PROGRAM) + len(_PROGRAM)) + 2  # the program itself has no such mark
    return line[:end], shlex.split(line[end:], comments=True)


def _with_file(word: str, old: str, new: str) -> str:
    """Return a word of a check, or a setting that lists files, with another file in place of one.

    >>> _with_file("data.train_path=[b.root:t, a_b.root:t]", "b.root:t", "c.root:t")
    'data.train_path=[c.root:t, a_b.root:t]'
    """
    return re.sub(rf"(?<![^\s\[=,'\"]){re.escape(old)}(?![^\s\],'\"])", lambda _: new, word)


def _write_again(path: str, tree: str, branch: str, again: str, suffix: str) -> str:
    """Return the command that writes a tree with the truth of one branch changed."""
    target = f"{PurePath(path).stem}_{suffix}.root"
    words = shlex.join((path, tree, branch, target, *next_check([(target, tree)])))
    return f'{in_shell(sys.executable)} -c "{_WRITE_AGAIN.replace("{again}", again)}" {words}{_ELSE}{target}'

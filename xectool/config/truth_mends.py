"""What is said of files whose truth is in another unit or no number, and what `convert` has to do with them."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Final, NamedTuple

from xectool.config.inputs import input_name, split_tree
from xectool.detector.truth_ranges import RANGES
from xectool.errors import counted
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Mend

MOST_NAMED: Final = 16
"""Events that a setting names; of more it would be no line to paste."""
BY_HAND: Final = "leave these events out (data.exclude)"
"""Fix beside the line, which is none for files that no run reads: training refuses their names in data.exclude."""
_SHOWN: Final = 10
_LOOKS: Final = "the truth of task {task} looks like "
_FIRST: Final = " files, first "


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
        beside: What becomes of values that are none, once the unit is right.
    """

    task: str
    branch: str
    files: Sequence[tuple[str, str]]
    odd: Sequence[FileUnit]
    unit: str
    size: float
    beside: Change = Change()

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
        """Return what is told; its unit and size are those of one file, or of the sample and then in words."""
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
            mends=self.mends,
        )

    @property
    def mends(self) -> tuple[Mend, ...]:
        """What brings the files to the right unit, where the factor is known."""
        factors = dict(RANGES[self.task].others)
        return tuple(
            Mend(file.path, file.tree, self.branch, Change(factor=factor).joined(self.beside))
            for file in self.judged
            if (factor := factors.get(file.unit))
        )

    def _fix(self) -> str:
        judged, right = self.judged, RANGES[self.task].unit
        if not judged:
            return f"make the files again with {self.branch} in {right}"
        others = len(judged) - 1
        own = "" if len({file.unit for file in judged}) == 1 else ", each from its own unit"
        rest = f"; the same for the other {counted(others, 'file')}{own}" if others else ""
        return f"make the file again with {self.branch} in {right}{rest}"


def constant_mends(task: str, trained: Collection[str]) -> tuple[str, ...]:
    """Return the settings that mend a truth that is the same everywhere, the best first, each for itself.

    The task is left out, but for the only one of a run, or trained with a scale that is not of its values.
    """
    scaled = f"--set tasks.{task}.scale=1.0 --set tasks.{task}.shift=null"
    return (scaled,) if set(trained) == {task} else (f"--set tasks.{task}.enabled=false", scaled)


def possible(task: str) -> Change:
    """Return what makes the truth of a task that no event can have one that is not known."""
    ends = zip(RANGES[task].low, RANGES[task].high, strict=True)
    return Change(within=tuple((float(f"{low:.6g}"), float(f"{high:.6g}")) for low, high in ends))


def excluding(exclude: str | None) -> str:
    """Return what can be done with events beside marking their truth as not known.

    Args:
        exclude: Setting that leaves all of these events out, as a shell takes it; empty where they are too many,
            None where it is to be written by hand.
    """
    if exclude is None:
        return BY_HAND
    too_many = "leave these events out when the files are made: they are too many to name in data.exclude"
    return f"leave these events out: --set {exclude}" if exclude else too_many


def is_told_of(task: str, findings: Iterable[Finding], files: Container[str], said: str) -> bool:
    """Return whether a finding tells another unit of a task, of one of these files or of a place that a text names."""
    begin = _LOOKS.format(task=task)
    found = (item.where for item in findings if item.code == "DAT-16" and item.problem.startswith(begin))
    places = [where.rpartition(" branch ")[0] for where in found]
    return any(place in said or split_tree(place.rpartition(_FIRST)[2])[0] in files for place in places)

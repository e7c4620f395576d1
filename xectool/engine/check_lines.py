"""Lines to paste after a check of data: they keep what was told already, and lead on to a training."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from xectool.checks.facts import FileFacts
from xectool.config.data import DataConfig
from xectool.config.inputs import Place, free_name, input_name, place_of, split_tree
from xectool.config.mends import Conversion
from xectool.config.overrides import known_to
from xectool.config.serialize import inline_yaml
from xectool.engine.file_patterns import patterns
from xectool.engine.written_files import Tree, Written, files_and_options
from xectool.errors import in_shell
from xectool.findings import Finding
from xectool.findings.mends import Mend

_CHECK = "xectool check-data "
_EXPLAIN = "xectool explain "
_REMARK = "   # "
_TREE = "data.tree_name="
_TRUTH = "data.truth_branches."
_BRANCH = re.compile(r"data\.(\w+_branch|truth_branches\.\w+)=")
_NO_LINE = re.compile(r"(^|=)(PATH|DIR|GB|BRANCH|CONFIG|NAME|VALUE)$|,$")
"""A value that the reader has to fill in, or prose after a comma; a branch or value may have a name in capitals."""
_ALONE = "this file alone; a run reads all of its files by the same names"
_TYPED = 4  # more files than these are a glob that the shell expanded
_LONGEST = 2000  # characters of the files of a sample in a line to paste
_LONGEST_WRITTEN = 10_000  # of files that a line writes first: no pattern has just these yet
_SAMPLES = {"files": "files of this check", "others": "files of the other sample"}


@dataclass(frozen=True)
class Told:
    """What a check was asked.

    Attributes:
        data: The files, as they were given.
        config: The configuration, if any.
        overrides: ``section.key=value`` strings.
        against: The sample that was compared with.
        deep: Whether every basket was read.
        flags: The other options, each as it was typed: ``--max-events 100``.
        tree: The tree of a file that is named without one.
        files: What was looked at.
        others: What it was compared with.
        run: What the paths of the configuration name.
        names: Settings of proposed names, by which files that are written are read.
        mends: What is to be done with files beside what findings tell.
        section: The section of the configuration, which may leave events out.
    """

    data: Sequence[str]
    config: str | Path | None = None
    overrides: Sequence[str] = ()
    against: Sequence[str] = ()
    deep: bool = False
    flags: Sequence[str] = ()
    tree: str = "tree"
    files: Sequence[FileFacts] = ()
    others: Sequence[FileFacts] = ()
    run: Mapping[str, Sequence[Tree]] = field(default_factory=dict)
    names: Sequence[str] = ()
    mends: Sequence[Mend] = ()
    section: DataConfig | None = None

    def inputs(self) -> str:
        """Return the files as arguments of a command; many as their pattern, or those of their directories."""
        return " ".join(map(in_shell, self._named("files")))

    def again(self, line: str) -> str:
        """Return a check to paste with all that was told already; what it says itself holds.

        >>> Told(["a.root"], overrides=["data.time_branch=t"]).again("xectool check-data a.root --deep")
        'xectool check-data a.root --set data.time_branch=t --deep'
        """
        command, mark, remark = line.partition(_REMARK)
        if not command.startswith(_CHECK):
            return line
        files, own = self._with_the_rest(*files_and_options(shlex.split(command)[2:]))
        if len(files) < len(self.files) and self._having(own) == {True, False} and _ALONE not in remark:
            mark, remark = _REMARK, "; ".join(filter(None, (remark, _ALONE)))
        kept = self._kept({word.partition("=")[0] for word in own})
        flags = self._flags
        if "--deep" in own and not self.deep:  # it is to look at all that was left out
            flags = [flag for flag in flags if not flag.startswith("--max-events ")]
        if self._is_other(files[0], own):  # it is not compared with itself, and hashes were not asked of it
            flags = [flag for flag in flags if flag != "--write-digest"]
        elif "--against" not in own:
            kept += [f"--against {in_shell(path)}" for path in self._named("others")]
        kept += [flag for flag in flags if flag.partition(" ")[0] not in own]
        line = " ".join((_CHECK.strip(), *map(in_shell, files), *kept, *map(shlex.quote, own)))
        return line + mark + remark + self._lists(line, mark + remark)

    def converting(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return findings of which those that `convert` mends have one line, which does all that the files need.

        Its check has all that was told, and all files: those that are not written stay in it, and those of the other
        sample stay that.
        """
        findings = tuple(findings)
        mends = [mend for found in findings for mend in found.mends]
        if not mends:
            return findings
        conversion = Conversion.of((*mends, *self.mends))
        line = conversion.line(self._check_of(Written(conversion.names())))
        line += f"{_REMARK}{conversion.remark()}" + self._lists(line, conversion.remark())
        return tuple(_converted(found, line) if found.mends else found for found in findings)

    def _check_of(self, written: Written) -> str:
        """Return the check of all files once some of them are written."""
        settings = written.settings(self.run, self.section)
        files, against = (self._after(written, sample) for sample in _SAMPLES)
        kept = [f"--set {in_shell(name)}" for name in self.names]
        kept += [f"--against {in_shell(path)}" for path in against] if self.against else []
        kept += self._kept({word.partition("=")[0] for word in (*self.names, *settings)})  # not twice
        kept += [f"--set {in_shell(setting)}" for setting in settings]
        return " ".join((_CHECK.strip(), *map(in_shell, files or written.names.values()), *kept, *self._flags))

    def _after(self, written: Written, sample: str) -> list[str]:
        """Return the inputs of a sample once a line has written some of its files again."""
        trees = {"files": self.files, "others": self.others}[sample]
        named = written.instead([Tree(file.path, file.tree, file.opened) for file in trees])
        if not named:
            return self._named(sample) if trees else []
        return named if len(" ".join(map(in_shell, named))) <= _LONGEST_WRITTEN else [self._list_names[sample]]

    def _lists(self, line: str, remark: str = "") -> str:
        """Return what a remark has to say yet of the lists that a line names and nobody has written."""
        words = {word.rpartition("=")[2].strip("'") for word in shlex.split(line)}
        told = [
            f"{name[1:]}: the {len(self._samples[sample])} {_SAMPLES[sample]}, one a line"
            for sample, name in self._list_names.items()
            if name in words and name not in self._samples[sample]
        ]
        told = [text for text in told if text not in remark]
        return ("; " if remark else _REMARK) + "; ".join(told) if told else ""

    @property
    def _samples(self) -> dict[str, Sequence[str]]:
        return {"files": self.data, "others": self.against}

    @cached_property
    def _list_names(self) -> dict[str, str]:
        """The list of each sample, which is to be written: one name in all lines, whatever is written meanwhile."""
        return {sample: f"@{free_name(sample, '.txt')}" for sample in _SAMPLES}

    def _named(self, sample: str) -> list[str]:
        """Return the inputs that name a sample: its files, the patterns of many, a list where a line is too long."""
        files = self._samples[sample]
        named = list(files) if len(files) <= _TYPED else patterns(files)
        return named if len(" ".join(map(in_shell, named))) <= _LONGEST else [self._list_names[sample]]

    def _with_the_rest(self, named: list[str], own: list[str]) -> tuple[list[str], list[str]]:
        """Return files and options of a line, where one file of several goes on together with the others.

        A tree that not all of them lack is told with the file that has it, for the others have theirs. The name of a
        branch has no such form: where another file lacks it, the line stays with the one file.
        """
        path, tree = split_tree(named[0], self._tree(own))
        same = [file for file in self.files if file.path == path]
        if not same or len(named) > 1 or len(self.files) == 1 or False in self._having(own):
            return named, own
        if any(file.tree == tree for file in same) or not any(file.opened for file in self.files):
            return shlex.split(self.inputs()), own
        alone = input_name(path, tree)
        if len(self.files) > _TYPED or split_tree(alone) != (path, tree):
            return named, own
        others = [file.where for file in self.files if file not in same]
        at = own.index(f"{_TREE}{tree}") if f"{_TREE}{tree}" in own else 0
        return [alone, *others], own[: at - 1] + own[at + 1 :] if at else own

    def _having(self, own: Sequence[str]) -> set[bool]:
        """Return whether the files that were opened have the branches that are named here: all, some or none."""
        names = {word.partition("=")[2] for word in own if _BRANCH.match(word)}
        return {names <= {*file.names, *file.branches} for file in self.files if file.opened}

    def _tree(self, own: Sequence[str]) -> str:
        """Return the tree of a file that is named without one in a line of these options."""
        named = [word.removeprefix(_TREE) for word in own if word.startswith(_TREE)]
        return named[-1] if named else self.tree

    def _is_other(self, path: str, own: Sequence[str]) -> bool:
        """Return whether a file is of the other sample, named or in a directory, pattern or list of it.

        The tree tells only where a file may be of both: a line may name another tree than was looked for.
        """
        mine = {*self.data, *(file.path for file in self.files)}
        if _file_of(path) not in map(_file_of, mine):
            return _file_of(path) in map(_file_of, {*self.against, *(file.path for file in self.others)})
        place, *named = (place_of(*split_tree(name, self._tree(own))) for name in (path, *self.against))
        given = [place_of(*split_tree(name, self._tree(own))) for name in self.data]
        if place in given and len(given) > 1:  # it is one of both, among others: a leak, which is looked for again
            return False
        held, both = ({place_of(file.path, file.tree) for file in files} for files in (self.others, self.files))
        return place in named or place in held - both

    @property
    def _flags(self) -> list[str]:
        return [*self.flags, *(["--deep"] if self.deep else [])]

    def _kept(self, own: set[str]) -> list[str]:
        config = [] if self.config is None or "--config" in own else [f"--config {in_shell(self.config)}"]
        settings = [text for text in self.overrides if text.partition("=")[0].strip() not in own]
        return config + [f"--set {in_shell(text)}" for text in settings]

    def first_step(self, findings: Sequence[Finding], after: str = "") -> str:
        """Return the first fix that changes something, a setting as the check with it; else what explains the first.

        Where the files are usable as they are, ``after`` is what comes then: it is gone on with where no fix is a line.
        """
        fixes = [found.fix for found in findings]
        whole = [f"{_CHECK}{self.inputs()} {fix}" if fix.startswith("--set ") else fix for fix in fixes]
        lines = [line for line in whole if _is_line(line) and not line.startswith(_EXPLAIN)]
        if after and not lines:
            remark = f"as they are; what is told of them: {_explained(findings[0]).partition(_REMARK)[0]}"
            return f"{after}{'; ' if _REMARK in after else _REMARK}{remark}"
        to_fill = whole[0] if whole[0].startswith(_CHECK) else _explained(findings[0])
        return self.again(lines[0] if lines else to_fill)

    def _tasks(self, idle: Collection[str]) -> list[str]:
        """Return the settings that train on each told truth that all files have, but idle ones."""
        told = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in self.overrides)}
        files = [file for file in (*self.files, *self.others) if file.opened]
        enabled = [
            f"tasks.{key.removeprefix(_TRUTH)}.enabled"
            for key, branch in told.items()
            if key.startswith(_TRUTH)
            and key.removeprefix(_TRUTH) not in idle
            and all(branch in {*file.names, *file.branches} for file in files)
        ]
        return [f"{key}=true" for key in enabled if key not in told]

    def following(self, name: str, has_hashes: bool, idle: Collection[str] = (), has_truth: bool = True) -> str:
        """Return what comes after a good verdict: a deeper check with hashes where they can be kept, then a training.

        Args:
            name: The data as arguments of a command.
            has_hashes: Whether every file has recorded hashes.
            idle: Tasks of which nothing can be learned, for their truth is the same in all events.
            has_truth: Whether the truth of a task is known; without any the training is that of a masked autoencoder.
        """
        lacks_hashes = not has_hashes and all(os.access(os.path.dirname(f.path) or ".", os.W_OK) for f in self.files)
        if lacks_hashes or not self.deep:
            return f"{_CHECK}{name} --deep{' --write-digest' * lacks_hashes}"
        if self.config is not None:
            return " ".join(("xectool train", in_shell(self.config), *self._kept({"--config"}), "--dry-run"))
        named = {"data.train_path": self._named("files"), "data.val_path": self._named("others")}
        given = [f"{key}={inline_yaml(of[0] if len(of) == 1 else of)}" for key, of in named.items() if of]
        kept = [text for text in known_to("mae", self.overrides) if not text.startswith("data.fiducial")]  # of truth
        told, kind = ((*self.overrides, *self._tasks(idle)), "") if has_truth else (kept, " --kind mae")
        chosen = (f"--set {in_shell(text)}" for text in (*given, *told))
        line = " ".join((f"xectool config init{kind}", *chosen, f"> {free_name('config', '.yaml')}"))
        is_whole = "data.val_path=" in line
        remark = "" if is_whole else f"{_REMARK}data.val_path in it is yet to be told: other files, to validate on"
        return line + remark + self._lists(line, remark)


def _converted(found: Finding, line: str) -> Finding:
    """Return a finding with a line that mends it; what else helps than another unit follows."""
    return replace(found, fix=f"{line}; or {found.fix}" if found.fix and not found.other_unit else line)


def _is_line(fix: str) -> bool:
    """Return whether a fix is a command as it stands.

    >>> prose = ("a --set k=PATH", "a, b")
    >>> [_is_line(f"xectool check-data {rest}") for rest in ("a --set k=E   # or so, or not", *prose)]
    [True, False, False]
    """
    try:
        words = shlex.split(fix, comments=True)
    except ValueError:
        return False
    return words[:1] == ["xectool"] and not any(_NO_LINE.search(word) for word in words)


def _explained(found: Finding) -> str:
    """Return the command that explains a finding, with its fix in words.

    >>> from xectool.findings import Severity
    >>> _explained(Finding("DAT-06", Severity.ERROR, "no event", fix="make the files again"))
    'xectool explain DAT-06   # make the files again'
    """
    if found.fix.startswith(_EXPLAIN):
        return found.fix
    told = next((line for line in found.evidence if line.startswith(_EXPLAIN)), f"{_EXPLAIN}{found.code}")
    return f"{told}{_REMARK}{found.fix.replace(_REMARK, '; ')}" if found.fix else told


def _file_of(name: str) -> Place:
    """Return the place of a file, whatever tree of it is named."""
    return place_of(split_tree(name, "")[0], "")

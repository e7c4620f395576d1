"""The rule that every input is there, with one line for all inputs of a key that are not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from xectool.config.data import DataConfig
from xectool.config.inputs import expand_inputs, input_name, is_remote, several_in_one, split_tree
from xectool.config.inputs_near import Sample, inputs_beside, second_file
from xectool.config.left_out import left_out
from xectool.config.rules.start import Start
from xectool.config.serialize import inline_yaml
from xectool.errors import ConfigError, DataFileError, in_shell
from xectool.findings import Finding
from xectool.rules import Rule

_OTHER: Final = {"train_path": "val_path", "val_path": "train_path"}
_FEW: Final = 6
_TO_FILL: Final = "DIR"


@dataclass(frozen=True)
class _Looked:
    """What was found of one input.

    Attributes:
        findings: What is wrong with it; the fix of one that is missing is that of its key, unless it has its own.
        meant: What to write in its place; itself where it is there, or will be.
        is_known: Whether that is no more than its name in a directory that is not known.
    """

    findings: tuple[Finding, ...]
    meant: tuple[str, ...]
    is_known: bool = True


class InputsExist(Rule[Start]):
    """Every input is a readable ROOT file."""

    code = "CFG-38"
    title = "data.train_path and data.val_path match readable ROOT files"

    def check(self, facts: Start) -> Iterator[Finding]:
        """Yield an error for each path that matches nothing, is not readable or is no ROOT file, or is left out of."""
        found = list(self._of_paths(facts.config.data))
        yield from found or self._of_events(facts.config.data)

    def _of_events(self, data: DataConfig) -> Iterator[Finding]:
        try:
            left_out(data, ())
        except ConfigError as error:
            yield self.error(error.where, error.problem, error.fix)

    def _of_paths(self, data: DataConfig) -> Iterator[Finding]:
        samples = {name: Sample(data, getattr(data, name)) for name in _OTHER}
        for name, other in _OTHER.items():
            key = f"data.{name}"
            specs = specs_of(getattr(data, name))
            if not specs:
                yield self.error(key, f"{key} is empty: no files match", to_fill_in(key, f"{_TO_FILL}/*.root"))
            looked = [self._looked(key, spec, (samples[name], samples[other])) for spec in dict.fromkeys(specs)]
            fix = _line(key, looked)
            for item in looked:
                yield from (found if found.fix else replace(found, fix=fix) for found in item.findings)

    def _looked(self, key: str, spec: str, samples: tuple[Sample, Sample]) -> _Looked:
        if is_remote(spec):
            return _Looked((), (spec,))
        try:
            present = [split_tree(path)[0] for path in expand_inputs(spec)]
        except DataFileError as error:
            file, tree = _file_and_tree(spec)
            wanted = Path(os.path.expanduser(file.removeprefix("@")))
            if os.path.lexists(wanted):  # a directory without files, a list that names none, a link to nothing
                return _Looked((self.error(key, f"{key}: {error.problem}", error.fix),), (spec,))
            return self._missing(key, spec, (wanted, tree), samples)
        return _Looked(tuple(self._unusable(key, present)), (spec,))

    def _unusable(self, key: str, present: Sequence[str]) -> Iterator[Finding]:
        for path in (path for path in present if not is_remote(path)):
            if not path.endswith(".root"):
                listed = f"{key}: {inline_yaml(f'@{path}')}"
                yield self.error(key, f"{key}: {path} is not a .root file", f"give .root files, or a list so: {listed}")
            elif not os.access(path, os.R_OK):
                yield self.error(key, f"{key}: {path} is not readable", f"chmod +r {in_shell(path)}")

    def _missing(self, key: str, spec: str, named: tuple[Path, str], samples: tuple[Sample, Sample]) -> _Looked:
        if several := several_in_one(spec):
            problem = f"{key}: {spec} is read as one name, several files are a list"
            return _Looked((self.error(key, problem),), tuple(several))
        (wanted, tree), listed, (sample, other) = named, "@" if spec.startswith("@") else "", samples

        def named_so(path: Path) -> str:
            return listed + input_name(str(path), tree)

        near = inputs_beside(wanted, lambda path: sample.may_have(named_so(path), other), is_list=bool(listed))
        chosen = sample.choose(((path, named_so(path)) for path in near), other)
        if (meant := chosen.path) is not None:
            hint = f"did you mean '{meant.name if meant.parent == wanted.parent else meant}'?"
            return _Looked((self.error(key, f"no files match {key}: {spec}, {hint}"),), (chosen.text,))
        if chosen.kept:
            problem = f"no files match {key}: {spec}; {chosen.kept} is the other sample, a second file is needed"
            return _Looked((self.error(key, problem, second_file(key, wanted)),), (spec,))
        place = "" if wanted.is_absolute() else " (a relative path begins in the working directory)"
        problem = f"no files match {key}: {spec}{place}"
        name = wanted.name if listed or wanted.suffix in ("", ".root") else "*.root"
        somewhere = listed + input_name(f"{_TO_FILL}/{name}", tree)
        return _Looked((self.error(key, problem),), (somewhere,), is_known=False)


def to_fill_in(key: str, value: str | list[str]) -> str:
    """Return how a key is set to inputs of which a part is not known: in words, for that is no line to paste.

    >>> to_fill_in("data.train_path", "DIR/*.root")
    "xectool explain CFG-38   # DIR is where they lie: --set 'data.train_path=DIR/*.root'"
    """
    setting = in_shell(f"{key}={inline_yaml(value)}")
    return f"xectool explain {InputsExist.code}   # {_TO_FILL} is where they lie: --set {setting}"


def specs_of(paths: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the inputs that paths name."""
    return tuple(spec for spec in ((paths,) if isinstance(paths, str) else paths) if spec)


def _line(key: str, looked: Sequence[_Looked]) -> str:
    """Return the one line of a key with every input as it is to be written: lines for each would undo each other."""
    values = [text for item in looked for text in item.meant]
    value = values[0] if len(values) == 1 else values
    if all(item.is_known for item in looked):
        return f"{key}: {inline_yaml(value)}"
    all_lost = len(values) > _FEW and not any(item.is_known for item in looked)
    return to_fill_in(key, f"{_TO_FILL}/*.root" if all_lost else value)


def _file_and_tree(spec: str) -> tuple[str, str]:
    """Return file and tree of an input that is not there, whose name may not end as that of a ROOT file."""
    file, tree = split_tree(spec, "")
    head, colon, tail = file.rpartition(":")
    return (head, tail) if colon and head and not tree and not tail.endswith(".root") else (file, tree)

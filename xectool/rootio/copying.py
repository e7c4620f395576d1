"""Which branches of files can be copied into another file, and their entries.

Fixed numbers of any shape and type, numbers of any length (``std::vector``, ``x[n]``) and strings are carried; objects
and nested vectors are not, and are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xectool.errors import DataFileError
from xectool.rootio.reader import EventFile
from xectool.rootio.writer import BranchSpec


@dataclass(frozen=True)
class CarriedBranches:
    """Branches that all files have, and what is lost.

    Attributes:
        specs: By name, what ``TreeWriter`` needs to know of it.
        left_out: Why each of the others is not carried, by name.
    """

    specs: Mapping[str, BranchSpec]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def read(self, file: EventFile, start: int, stop: int) -> dict[str, Any]:
        """Return entries ``[start, stop)`` of the carried branches of one of the files.

        Raises:
            DataFileError: A branch is damaged.
        """
        paths = _paths(file)
        return {name: file.read_entries(paths[name], start, stop) for name in self.specs}

    def name_of(self, branch: str, file: EventFile) -> str:
        """Return the name that a branch of a file, named as it is there or by the last part of that, is carried by.

        Raises:
            DataFileError: It is not there, or is not carried.
        """
        paths = _paths(file)
        name = branch if branch in paths else next((name for name, path in paths.items() if path == branch), None)
        if name is None:
            raise file.missing_branch(branch)
        file.column(paths[name])
        if name not in self.specs:
            reason = self.left_out.get(name, "the numbers that it counts are copied, and it is counted again")
            where = f"{file.where} branch {branch}"
            raise DataFileError(f"branch '{branch}' cannot be copied: {reason}", where=where, code="XT-DATA-TYPE")
        return name


def carried_branches(files: Sequence[EventFile]) -> CarriedBranches:
    """Return what can be copied of all files together; numbers of different types meet in the type that holds both."""
    found = [_specs(file) for file in files]
    names = list(dict.fromkeys(name for specs, _ in found for name in specs))
    left_out = {name: reason for _, lost in found for name, reason in lost.items()}
    kept: dict[str, BranchSpec] = {}
    for name in names:
        having = [specs[name] for specs, _ in found if name in specs]
        merged = _merged(having)
        if len(having) < len(files):
            left_out[name] = left_out.get(name, f"only {len(having)} of {len(files)} files have it")
        elif merged is None:
            left_out[name] = "its type differs between the files"
        else:
            kept[name] = merged
    return _without_counters(files, kept, left_out)


def _specs(file: EventFile) -> tuple[dict[str, BranchSpec], dict[str, str]]:
    kept: dict[str, BranchSpec] = {}
    left_out: dict[str, str] = {}
    paths = _paths(file)
    for name, path in paths.items():
        spec = file.entry_spec(path)
        if spec is not None:
            kept[name] = spec
        elif not any(other.startswith((f"{path}/", f"{path}.")) for other in file.branch_names):
            left_out[name] = "it holds objects, not plain numbers"
    return kept, left_out


def _paths(file: EventFile) -> dict[str, str]:
    """Return the branches of a file by the names they get: the last part of a path, as ROOT itself knows them."""
    names = [path.rpartition("/")[2] for path in file.branch_names]
    return {
        name if names.count(name) == 1 else path.replace("/", "_"): path
        for name, path in zip(names, file.branch_names, strict=True)
    }


def _merged(specs: Sequence[BranchSpec]) -> BranchSpec | None:
    first = specs[0]
    if all(spec == first for spec in specs):
        return first
    fixed = [spec for spec in specs if not isinstance(spec, str)]
    if len(fixed) < len(specs) or len({tuple(shape) for _, shape in fixed}) > 1:
        return None
    return np.result_type(*(dtype for dtype, _ in fixed)), fixed[0][1]


def _without_counters(
    files: Sequence[EventFile], specs: dict[str, BranchSpec], left_out: dict[str, str]
) -> CarriedBranches:
    """Leave out ``nx``, which the writer makes for an ``x`` of any length; or ``x`` where ``nx`` is something else."""
    for name in [name for name, spec in specs.items() if isinstance(spec, str) and spec != "string"]:
        counter = f"n{name}"
        if counter not in specs:
            continue
        if all(file.counter(_paths(file)[name]) == counter for file in files):
            del specs[counter]
        else:
            del specs[name]
            left_out[name] = f"ROOT would count its numbers in '{counter}', which is a branch of its own"
    return CarriedBranches(specs, left_out)

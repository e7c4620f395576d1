"""Writes a tree again with the values of some branches changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from xectool.detector.changes import changed, is_changed
from xectool.errors import UsageError
from xectool.findings.mends import Change
from xectool.rootio.copying import CarriedBranches, carried_branches
from xectool.rootio.reader import EventFile
from xectool.rootio.writer import BranchSpec, TreeWriter

MOST_EVENTS: Final = 2000
BLOCK_BYTES: Final = 128 * 1024 * 1024
"""Of numbers of fixed shape that are read at once, however wide an event is."""


@dataclass(frozen=True)
class WrittenTree:
    """What was written.

    Attributes:
        num_events: Events.
        changed: Events of which a value changed, by branch.
        left_out: Why a branch is not in the written file, by its name.
    """

    num_events: int
    changed: dict[str, int]
    left_out: Mapping[str, str]


def plan_changes(file: EventFile, changes: Mapping[str, Change]) -> dict[str, Change]:
    """Return the changes by the names that branches are carried by.

    Raises:
        DataFileError: A branch is not there, or holds no plain numbers.
        UsageError: A component or range is not that of a branch.
    """
    carried = carried_branches([file])
    planned = {}
    for branch, change in changes.items():
        name = carried.name_of(branch, file)
        _require_width(f"{file.where} branch {branch}", carried.specs[name], change)
        planned[name] = change
    return planned


def write_converted(
    file: EventFile, target: Path, changes: Mapping[str, Change], advanced: Callable[[int], None]
) -> WrittenTree:
    """Write a tree to another file; it gets its name when it is whole.

    A tree stays a TTree or an RNTuple, but for an RNTuple whose entries are of any length, which becomes a TTree.

    Args:
        file: The tree.
        target: The file to write.
        changes: By name, what becomes of its branches.
        advanced: Told how many events were written further.

    Raises:
        DataFileError: A branch is damaged.
        DiskError: The disk is full.
    """
    planned, carried = plan_changes(file, changes), carried_branches([file])
    specs = {name: _spec(spec, name in planned) for name, spec in carried.specs.items()}
    is_loose = any(isinstance(spec, str) for spec in specs.values())
    counts, step = dict.fromkeys(planned, 0), _step(carried)
    with TreeWriter(target, specs, file.tree, "rntuple" if file.is_ntuple and not is_loose else "ttree") as writer:
        for start in range(0, file.num_entries, step):
            rows = carried.read(file, start, min(start + step, file.num_entries))
            for name, change in planned.items():
                rows[name], count = _changed_rows(rows[name], change)
                counts[name] += count
            writer.extend(rows)
            advanced(min(step, file.num_entries - start))
    return WrittenTree(file.num_entries, counts, carried.left_out)


def _changed_rows(rows: Any, change: Change) -> tuple[Any, int]:
    """Return the entries of a branch after a change, and in how many of them a value changed."""
    if isinstance(rows, np.ndarray):
        values = rows.reshape(len(rows), -1)
        after = changed(values, np.arange(values.shape[1]), change)
        return after.reshape(rows.shape), int(is_changed(values, after).any(axis=1).sum())
    import awkward as ak

    lengths, values = ak.num(rows), np.asarray(ak.flatten(rows))
    after = changed(values, np.asarray(ak.flatten(ak.local_index(rows))), change)
    count = int(ak.sum(ak.any(ak.unflatten(is_changed(values, after), lengths), axis=1)))
    return ak.unflatten(after, lengths), count


def _spec(spec: BranchSpec, is_planned: bool) -> BranchSpec:
    """Return what is written of a branch: one that is changed has room for fractions and 1e10."""
    if not is_planned:
        return spec
    if isinstance(spec, str):
        return f"var * {np.result_type(spec.rpartition(' ')[2], np.float32)}"
    return np.result_type(spec[0], np.float32), spec[1]


def _step(carried: CarriedBranches) -> int:
    fixed = [spec for spec in carried.specs.values() if not isinstance(spec, str)]
    event_bytes = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in fixed)
    return int(np.clip(BLOCK_BYTES // max(event_bytes, 1), 1, MOST_EVENTS))


def _require_width(where: str, spec: BranchSpec, change: Change) -> None:
    ends, widest = len(change.within), max((marker.component or 0 for marker in change.markers), default=0)
    if isinstance(spec, str):
        if ends > 1:
            problem = f"{ends} ranges are given, and entries of the branch are of any length"
            raise UsageError(problem, where=where, fix="--within BRANCH=LOW:HIGH, one for all components")
        return
    width = int(np.prod(spec[1], dtype=np.int64))
    if ends > 1 and ends != width:
        problem = f"{ends} ranges are given for {width} components"
        raise UsageError(problem, where=where, fix="--within BRANCH=LOW:HIGH, one for all components, or one each")
    if widest >= width:
        problem = f"there is no component {widest}: there are {width}, from 0 on"
        raise UsageError(problem, where=where, fix=f"--marker BRANCH[{width - 1}]=NUMBER, or --marker BRANCH=NUMBER")

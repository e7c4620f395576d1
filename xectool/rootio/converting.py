"""Writes a tree again with the values of some branches changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.config.mends import options_of
from xectool.detector.changes import MOST_EXACT, Effect, changed, changed_type, inexact, is_changed
from xectool.errors import DataFileError, UsageError, in_shell, nearest
from xectool.findings.mends import Change, Marker
from xectool.rootio.beside import beside
from xectool.rootio.copying import CarriedBranches, carried_branches
from xectool.rootio.reader import EventFile
from xectool.rootio.writer import BranchSpec, FileFormat, TreeWriter

Array = npt.NDArray[Any]

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
        keys: Class of what lies beside the tree and is not in the written file, by its name.
    """

    num_events: int
    changed: dict[str, int]
    left_out: Mapping[str, str]
    keys: Mapping[str, str] = field(default_factory=dict)


def plan_changes(file: EventFile, changes: Mapping[str, Change]) -> dict[str, Change]:
    """Return the changes by the names that branches are carried by.

    Raises:
        DataFileError: A branch is not there, or holds no plain numbers.
        UsageError: A component or range is not that of a branch.
    """
    carried = carried_branches([file])
    planned = dict[str, Change]()
    for branch, change in changes.items():
        name = _name_of(branch, change, carried, file)
        _require_width(branch, file, carried.specs[name], change)
        planned[name] = planned.get(name, Change()).joined(change)  # by its path and by its last part
    return {name: change for name, change in planned.items() if change != Change()}


def _name_of(branch: str, change: Change, carried: CarriedBranches, file: EventFile) -> str:
    """Return the name that a branch is carried by; what is asked of one that is not there is proposed for the nearest.

    Raises:
        DataFileError: It is not there, or holds no plain numbers.
    """
    try:
        return carried.name_of(branch, file)
    except DataFileError as error:
        near = nearest(branch, file.branch_names, 1)
        if error.code == "XT-DATA-BRANCH" and near:
            error.fix = options_of(near[0], change)
        raise


def write_converted(
    file: EventFile,
    target: Path,
    changes: Mapping[str, Change],
    effects: dict[str, Effect],
    advanced: Callable[[int], None],
) -> WrittenTree:
    """Write a tree to another file, with the texts beside it; it gets its name when it is whole.

    A tree stays a TTree or an RNTuple, but for an RNTuple whose entries are of any length, which becomes a TTree.

    Args:
        file: The tree.
        target: The file to write.
        changes: By name, what becomes of its branches.
        effects: By name, told what the parts of its change find.
        advanced: Told how many events were written further.

    Raises:
        DataFileError: A branch is damaged.
        UsageError: A whole number cannot be multiplied with every digit.
        DiskError: The disk is full.
    """
    planned, carried = plan_changes(file, changes), carried_branches([file])
    specs = {name: _spec(spec, planned.get(name)) for name, spec in carried.specs.items()}
    is_loose = any(isinstance(spec, str) for spec in specs.values())
    counts, step = dict.fromkeys(planned, 0), _step(carried)
    texts, others = beside(file)
    kind: FileFormat = "rntuple" if file.is_ntuple and not is_loose else "ttree"
    with TreeWriter(target, specs, file.tree, kind, texts=texts) as writer:
        for start in range(0, file.num_entries, step):
            rows = carried.read(file, start, min(start + step, file.num_entries))
            for name, change in planned.items():
                where = f"{file.where} branch {name}"
                rows[name], count = _changed_rows(rows[name], change, effects.setdefault(name, Effect()), where, start)
                counts[name] += count
            writer.extend(rows)
            advanced(min(step, file.num_entries - start))
    return WrittenTree(file.num_entries, counts, carried.left_out, others)


def _changed_rows(rows: Any, change: Change, effect: Effect, where: str, start: int) -> tuple[Any, int]:
    """Return the entries of a branch from one on after a change, and in how many of them a value changed."""
    if isinstance(rows, np.ndarray):
        values = rows.reshape(len(rows), -1)
        components = np.arange(values.shape[1])
        _require_exact(values, inexact(values, components, change), change, where, start)
        after = changed(values, components, change, effect)
        return after.reshape(rows.shape), int(is_changed(values, after).any(axis=1).sum())
    import awkward as ak

    lengths, values = ak.num(rows), np.asarray(ak.flatten(rows))
    components = np.asarray(ak.flatten(ak.local_index(rows)))
    odd = inexact(values, components, change)
    if odd.any():
        entries = np.repeat(np.arange(len(rows)), np.asarray(lengths))
        _require_exact(values[odd], odd[odd], change, where, start + int(entries[odd.argmax()]))
    after = changed(values, components, change, effect)
    count = int(ak.sum(ak.any(ak.unflatten(is_changed(values, after), lengths), axis=1)))
    return ak.unflatten(after, lengths), count


def _require_exact(values: Array, odd: Array, change: Change, where: str, start: int) -> None:
    """Refuse to multiply a whole number that would lose digits.

    Raises:
        UsageError: There is one.
    """
    if not odd.any():
        return
    value, entry = values[odd][0].item(), start + int(np.nonzero(odd)[0][0])
    branch = where.rpartition(" branch ")[2]
    problem = (
        f"{value} of branch '{branch}' cannot be multiplied with {change.factor:g} exactly: beyond {MOST_EXACT} (2^53) "
        f"whole numbers lose digits"
    )
    fix = f"--marker {in_shell(f'{branch}={value}')}   # if it is no value; else leave --scale out for this branch"
    raise UsageError(problem, where=f"{where} entry {entry}", fix=fix)


def _spec(spec: BranchSpec, change: Change | None) -> BranchSpec:
    """Return what is written of a branch: one that is changed has room for fractions and 1e10."""
    if change is None:
        return spec
    if isinstance(spec, str):
        return f"var * {changed_type(spec.rpartition(' ')[2], change)}"
    return changed_type(spec[0], change), spec[1]


def _step(carried: CarriedBranches) -> int:
    fixed = [spec for spec in carried.specs.values() if not isinstance(spec, str)]
    event_bytes = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in fixed)
    return int(np.clip(BLOCK_BYTES // max(event_bytes, 1), 1, MOST_EVENTS))


def _require_width(branch: str, file: EventFile, spec: BranchSpec, change: Change) -> None:
    ends, where = len(change.within), f"{file.where} branch {branch}"
    if isinstance(spec, str):
        if ends > 1:
            problem = f"{ends} ranges are given, and entries of the branch are of any length"
            raise UsageError(problem, where=where, fix=f"give --within one range for all components of '{branch}'")
        return
    width = int(np.prod(spec[1], dtype=np.int64))
    if ends > 1 and ends != width:
        problem = f"{ends} ranges are given for {width} components"
        fix = f"give --within one range for all components of '{branch}', or {width} with commas between"
        raise UsageError(problem, where=where, fix=fix)
    beyond = [marker for marker in change.markers if (marker.component or 0) >= width]
    if beyond:
        problem = f"there is no component {beyond[0].component}: there are {width}, from 0 on"
        last, whole = (options_of(branch, Change((Marker(beyond[0].value, at),))) for at in (width - 1, None))
        raise UsageError(problem, where=where, fix=f"{last}   # the last one; of all of them: {whole}")

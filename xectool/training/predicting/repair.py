"""Copy ROOT files with their dead sensors filled by an inpainter, block by block: memory does not grow with the events.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from xectool.data.dead_masks import DeadSensors, EventPlaces
from xectool.data.events import EventSource
from xectool.detector.constants import DEAD_VALUE, NUM_SENSORS, UNKNOWN_ABOVE
from xectool.errors import DataFileError
from xectool.rootio.copying import CarriedBranches, carried_branches
from xectool.rootio.origin import FLAG_BRANCH, Origin
from xectool.rootio.reader import EventFile
from xectool.rootio.writer import BranchSpec, TreeWriter
from xectool.tasks.event_variants import Fill
from xectool.training.process.heap import trimmed

DEEP_NPHO = -50.0  # photons; a sensor without light fluctuates by some 15 (docs/physics.md: 1.5 photoelectrons)
FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True)
class RepairRun:
    """How events are repaired.

    Attributes:
        fill: What the inpainter says about hidden sensors.
        dead: Which sensors are filled.
        device: Where the inpainter computes.
        batch_size: Events in one forward pass.
        advanced: Called after every block.
    """

    fill: Fill
    dead: DeadSensors
    device: torch.device
    batch_size: int
    advanced: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Repaired:
    """What was written.

    Attributes:
        num_events: Events written.
        num_dead: Readings of dead sensors in them.
        num_filled: Those that the inpainter filled.
        num_negative: Those that it filled with less than nothing; they read zero.
        num_deep: Those of them that are below what a sensor without light fluctuates to.
        left_out: Branches of the input that could not be carried, with the reason.
        events_per_s: Rate, reading and writing included.
    """

    num_events: int
    num_dead: int
    num_filled: int
    num_negative: int
    num_deep: int
    left_out: dict[str, str]
    events_per_s: float


def write_repaired(source: EventSource, output: Path, run: RepairRun) -> Repaired:
    """Write the events of a source with their dead sensors filled, and a flag for every sensor that was.

    All branches are copied as they are; npho and time change at dead sensors only. An answer of less light than none
    reads zero. A sensor without an answer reads 1e10, so that nobody takes what it read for light, and has no flag. The
    file gets its name when it is whole.

    Args:
        source: The events, in the order of its files.
        output: The ROOT file; its tree has the name of the first file's.
        run: How they are repaired.

    Raises:
        DataFileError: A branch is damaged, or a file has a branch ``repaired`` of another meaning.
        DiskError: The disk is full.
    """
    began = time.perf_counter()
    used = [index for index, file in enumerate(source.files) if file.num_selected]
    with ExitStack() as stack:
        files = [stack.enter_context(EventFile(source.files[i].path, source.files[i].tree)) for i in used]
        carried = carried_branches(files)
        counts = np.zeros(5, np.int64)
        with TreeWriter(output, _specs(carried, source, files), files[0].tree, origin=Origin.REPAIRED) as writer:
            for rows, number in trimmed(_blocks(source, carried, list(zip(used, files, strict=True)), run)):
                writer.extend(rows)
                counts += number
                del rows
                run.advanced()
    seconds = max(time.perf_counter() - began, 1e-9)
    written = (*_names(source), FLAG_BRANCH)
    left_out = {name: reason for name, reason in carried.left_out.items() if name not in written}
    events, num_dead, filled, negative, deep = map(int, counts)
    return Repaired(events, num_dead, filled, negative, deep, left_out, events / seconds)


def _blocks(
    source: EventSource, carried: CarriedBranches, files: list[tuple[int, EventFile]], run: RepairRun
) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Yield the rows of each block with its counts of events, dead, filled, negative and deep readings."""
    for index, file in files:
        # `first` cuts a source at an entry, so what is served of a file starts at its first entry.
        num_events = source.files[index].num_selected
        for start in range(0, num_events, run.batch_size):
            entries = range(start, min(start + run.batch_size, num_events))
            yield _block(source, carried, (index, file, entries), run)


def _block(
    source: EventSource, carried: CarriedBranches, block: tuple[int, EventFile, range], run: RepairRun
) -> tuple[dict[str, Any], list[int]]:
    """Return the rows of one block (index of the file, the file, entries) and its counts."""
    index, file, entries = block
    start, stop = entries.start, entries.stop
    rows = carried.read(file, start, stop)
    npho, times = (_readings(file, name, start, stop) for name in (source.branches.npho, source.branches.time))
    dead = run.dead.mask(EventPlaces(npho, np.full(len(entries), index), np.asarray(entries)))
    filled, negative = _fill(npho, times, dead, run)
    changed = _repaired_rows(rows, _names(source), (npho, times), dead)
    # Not of the carried branches, which are those that all files have.
    flagged = _flag_branch(file)
    earlier = _readings(file, flagged, start, stop) != 0 if flagged else False
    flags = {FLAG_BRANCH: (filled | (earlier & ~dead)).astype(np.uint8)}
    return rows | changed | flags, [len(entries), int(dead.sum()), int(filled.sum()), *negative]


def _fill(
    npho: FloatArray, times: FloatArray, dead: npt.NDArray[np.bool_], run: RepairRun
) -> tuple[npt.NDArray[np.bool_], tuple[int, int]]:
    """Put the inpainter's answers, or 1e10, into npho and times, both (B, S).

    Returns:
        Where it had an answer, shape (B, S); and how many of these were negative and deep.
    """
    rows = np.flatnonzero(dead.any(axis=1))
    filled = np.zeros(dead.shape, bool)
    if not len(rows):
        return filled, (0, 0)
    inputs = (torch.from_numpy(np.ascontiguousarray(values[rows])).to(run.device) for values in (npho, times, dead))
    answer = run.fill(*inputs)
    photons = answer["npho"].float().cpu().numpy()
    seconds = answer["time"].float().cpu().numpy()
    good = dead[rows] & (np.abs(photons) <= UNKNOWN_ABOVE)
    filled[rows] = good
    negative = int((good & (photons < 0)).sum()), int((good & (photons < DEEP_NPHO)).sum())
    npho[rows] = np.where(dead[rows], np.where(good, photons.clip(min=0.0), DEAD_VALUE), npho[rows])
    timed = good & (np.abs(seconds) <= UNKNOWN_ABOVE)
    times[rows] = np.where(dead[rows], np.where(timed, seconds, DEAD_VALUE), times[rows])
    return filled, negative


def _repaired_rows(
    rows: dict[str, Any],
    names: tuple[str, str],
    readings: tuple[FloatArray, FloatArray],
    dead: npt.NDArray[np.bool_],
) -> dict[str, Any]:
    """Return npho and time; what is not dead keeps the number and precision of the file."""
    changed: dict[str, Any] = {}
    for name, values in zip(names, readings, strict=True):
        stored = rows.get(name)
        # Of variable length in this file or another; every entry has one number a sensor.
        if not isinstance(stored, np.ndarray):
            changed[name] = values
            continue
        dtype = np.result_type(stored.dtype, np.float32)
        changed[name] = np.where(dead, values.astype(dtype), stored.reshape(dead.shape).astype(dtype))
    return changed


def _specs(carried: CarriedBranches, source: EventSource, files: list[EventFile]) -> dict[str, BranchSpec]:
    specs = dict(carried.specs)
    for name in _names(source):
        spec = specs.get(name, "of variable length in some of the files")
        dtype = np.dtype(np.float32) if isinstance(spec, str) else np.result_type(spec[0], np.float32)
        specs[name] = (dtype, (NUM_SENSORS,))
    for file in files:
        _flag_branch(file)  # refuses what is none before anything is written
    return specs | {FLAG_BRANCH: (np.dtype(np.uint8), (NUM_SENSORS,))}


def _flag_branch(file: EventFile) -> str | None:
    """Return the flags that an earlier repair of a file has left.

    Raises:
        DataFileError: The branch of that name is of another meaning.
    """
    branch = next((path for path in file.branch_names if path.rpartition("/")[2] == FLAG_BRANCH), None)
    if branch is None:
        return None
    spec = file.entry_spec(branch)
    if spec is None or isinstance(spec, str) or tuple(spec[1]) != (NUM_SENSORS,):
        raise DataFileError(
            f"'{file.path}' has a branch '{FLAG_BRANCH}' of its own, which is no flag of {NUM_SENSORS} sensors",
            where=f"{file.where} branch {branch}",
            fix="write the file without that branch, or under another name",
            code="XT-DATA-REPAIRED",
        )
    return branch


def _names(source: EventSource) -> tuple[str, str]:
    """Return the names that npho and time have in a copy."""
    return source.branches.npho.rpartition("/")[2], source.branches.time.rpartition("/")[2]


def _readings(file: EventFile, branch: str, start: int, stop: int) -> FloatArray:
    values = np.empty((stop - start, NUM_SENSORS), np.float32)
    file.read_into(branch, start, stop, values)
    return values

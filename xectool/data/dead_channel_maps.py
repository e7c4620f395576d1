"""Which sensors are dead: from a text file, a flag branch, the readings themselves, or the experiment's database.

Axes: S sensors (4760).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from xectool.config.inputs import expand_inputs
from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.detector.dead_channel_database import DeadChannelDatabase, open_database
from xectool.detector.dead_channels import read_dead_channels
from xectool.errors import DataFileError, DataUnusable, UsageError, nearest
from xectool.errors.misnamed import MisnamedFile
from xectool.rootio.reader import EventFile

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_BLOCK_EVENTS = 1024
BRANCH_PREFIX = "branch:"
DATABASE_SCHEMES = ("sqlite:", "mysql:")


@dataclass(frozen=True)
class DeadChannelMap:
    """Dead sensors and how they were found.

    Attributes:
        sensors: Ascending ids of the sensors that are dead in every event.
        share: Share of the events in which each sensor is dead, shape (S,).
        num_events: Events that were looked at; 0 for a list made by others.
        origin: Where the list comes from.
    """

    sensors: IntArray
    share: FloatArray
    num_events: int
    origin: str

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """True at the dead sensors, shape (S,)."""
        mask = np.zeros(NUM_SENSORS, dtype=bool)
        mask[self.sensors] = True
        return mask


@dataclass(frozen=True)
class DeadChannelQuery:
    """What the maps that look at data need to know.

    Attributes:
        files: Data files, as every command takes them.
        tree: Name of the tree.
        npho_branch: Photons of the sensors.
        run_number: Run to ask the database for.
        max_events: Look at no more events than this.
        database: Opens a database url.
    """

    files: Sequence[str] = ()
    tree: str = "tree"
    npho_branch: str = "npho"
    run_number: int | None = None
    max_events: int | None = None
    database: Callable[[str], DeadChannelDatabase] = field(default=open_database)


def find_dead_channels(origin: str, query: DeadChannelQuery | None = None) -> DeadChannelMap:
    """Return the dead sensors that ``origin`` describes.

    Args:
        origin: ``data`` for the sensors without a valid reading in any event of the query's files; ``branch:NAME`` for
            a branch with one flag a sensor; a ``sqlite:`` or ``mysql:`` url; otherwise the path of a text file.
        query: Files and run that the first three need.

    Raises:
        UsageError: The origin needs files or a run number and has none.
        DataFileError: A file, branch, run or entry is not there or not valid.
        DataUnusable: The files hold no event.
        WorldError: The database does not answer.
    """
    query = query or DeadChannelQuery()
    if origin == "data":
        return dead_from_readings(query)
    if origin.startswith(BRANCH_PREFIX):
        return dead_from_branch(query, origin.removeprefix(BRANCH_PREFIX))
    if origin.startswith(DATABASE_SCHEMES):
        if query.run_number is None:
            raise UsageError("the database is asked for a run, and none is given", where=origin, fix="--run 430000")
        found = query.database(origin).dead_channels(query.run_number)
        return _listed(found, f"{origin} run {query.run_number}")
    if meant := _misspelt(origin):
        refusal = MisnamedFile(f"no such list of dead channels, did you mean '{meant}'?", where=origin, fix=meant)
        refusal.meant = {origin: meant}
        raise refusal
    return _listed(read_dead_channels(Path(origin).expanduser()), origin)


def _misspelt(origin: str) -> str:
    """Return the origin that is no file and was most likely meant; nothing where a file is, or none is near."""
    word, colon, rest = origin.partition(":")
    if "." in word or "/" in word or os.path.exists(origin):
        return ""
    near = nearest(word, [name.rstrip(":") for name in (BRANCH_PREFIX, *DATABASE_SCHEMES)] if colon else ["data"], 1)
    return f"{near[0]}{colon}{rest}" if near else ""


def file_of_origin(origin: str | None) -> Path | None:
    """Return the file that an origin is read from; None where that is a branch, the data or a server."""
    if origin is None or origin == "data" or origin.startswith((BRANCH_PREFIX, "mysql:")):
        return None
    return Path(unquote(urlsplit(origin).path)) if origin.startswith(DATABASE_SCHEMES) else Path(origin).expanduser()


def dead_from_branch(query: DeadChannelQuery, branch: str = "dead") -> DeadChannelMap:
    """Return the sensors that a branch flags: 0 is alive, 1 is dead.

    Raises:
        DataFileError: A file or the branch is not there, or the branch does not hold one flag a sensor.
        DataUnusable: The files hold no event.
    """

    def is_dead(values: npt.NDArray[np.float32], path: str, entries: IntArray) -> npt.NDArray[np.bool_]:
        return as_flags(values, f"{path} branch {branch}", entries)

    return _count(query, branch, is_dead, f"branch {branch}")


def as_flags(values: npt.NDArray[np.float32], where: str, entries: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return values as flags, shape (B, S): readings taken for flags would call nearly every sensor dead.

    Args:
        values: What a branch holds, shape (B, S).
        where: File and branch.
        entries: Entry of each event in the file, shape (B,).

    Raises:
        DataFileError: A value is neither 0 nor 1.
    """
    wrong = np.argwhere((values != 0) & (values != 1))
    if len(wrong):
        row, sensor = (int(index) for index in wrong[0])
        raise DataFileError(
            f"the branch holds no flags: sensor {sensor} is {values[row, sensor]:.6g}, neither 0 (alive) nor 1 (dead)",
            where=f"{where} entry {int(entries[row])}",
            fix="name a branch of flags, such as branch:dead, or a text file with one dead sensor a line",
        )
    dead: npt.NDArray[np.bool_] = values == 1
    return dead


def dead_from_readings(query: DeadChannelQuery) -> DeadChannelMap:
    """Return the sensors without a valid photon number in any event: NaN, infinite, or 1e10 as the files write it.

    Raises:
        DataFileError: A file or the branch is not there.
        DataUnusable: The files hold no event.
    """
    return _count(query, query.npho_branch, lambda values, *_: without_reading(values), f"branch {query.npho_branch}")


def without_reading(npho: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Return where there is no photon number, shape of ``npho``: NaN, infinite, or 1e10 as the files write it."""
    found: npt.NDArray[np.bool_] = ~(np.abs(npho) <= UNKNOWN_ABOVE)
    return found


def _listed(sensors: IntArray, origin: str) -> DeadChannelMap:
    share = np.zeros(NUM_SENSORS)
    share[sensors] = 1.0
    return DeadChannelMap(sensors, share, 0, origin)


def _count(
    query: DeadChannelQuery,
    branch: str,
    is_dead: Callable[[npt.NDArray[np.float32], str, IntArray], npt.NDArray[np.bool_]],
    origin: str,
) -> DeadChannelMap:
    counts, num_events = np.zeros(NUM_SENSORS, np.int64), 0
    paths = expand_inputs(query.files) if query.files else []
    for path in paths:
        with EventFile(path, query.tree) as file:
            left = file.num_entries if query.max_events is None else query.max_events - num_events
            last = min(file.num_entries, left)
            for start in range(0, last, _BLOCK_EVENTS):
                block = np.empty((min(_BLOCK_EVENTS, last - start), NUM_SENSORS), np.float32)
                file.read_into(branch, start, start + len(block), block)
                counts += is_dead(block, path, np.arange(start, start + len(block))).sum(axis=0)
                num_events += len(block)
    if num_events == 0:
        raise DataUnusable(
            "there is no event to find dead sensors in",
            where=", ".join(paths[:3]) or "no data file was given",
            fix="name data files that hold events, or a text file with the dead sensors",
            code="XT-DATA-NO-EVENTS",
        )
    return DeadChannelMap(np.flatnonzero(counts == num_events), counts / num_events, num_events, origin)

"""Events in quarantine whose file lies elsewhere by now: where the same events are, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from xectool.config.inputs import is_remote, place_of, split_tree
from xectool.config.moved import is_there
from xectool.data.events import EventSource
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import DataFileError
from xectool.rootio.reader import EventFile

MOST_COMPARED: Final = 16  # events of a file; other files hold none of them

Event = tuple[int, int, int]  # entry, run and event number
Trained = Sequence[Mapping[str, Any]]  # ``name``, ``path``, ``entries`` of the files that a checkpoint was trained on


def file_moved_to(name: str, events: Iterable[Event], source: EventSource, trained: Trained = ()) -> int | None:
    """Return the index of the file that a file has been moved or copied to; None where none is that for certain.

    It has the same name in another directory, as many entries, and at each entry the same run and event number. Numbers
    alone tell nothing, for simulated files all count from 0: a file that was trained on under its own path is not it,
    and where a file still lies at the old path, only a copy of it is, with the same readings and truth of these events.

    Args:
        name: The file as it was called, with its tree.
        events: Some of its events.
        source: The files that are read now.
        trained: The files that were trained on before.
    """
    own, tree = split_tree(name, "")
    known = {place_of(*split_tree(str(file["path"]), "")) for file in trained if "path" in file}
    alike = [file for file in trained if file["name"] == PurePath(own).name]
    if not known and len(alike) > 1:  # of a version that did not keep the paths
        return None
    entries = {int(file["entries"]) for file in trained if file.get("path") == name}
    events = sorted(events)
    found = {
        index: _shared_end(own, file.path)
        for index, file in enumerate(source.files)
        if PurePath(file.path).name == PurePath(own).name
        and tree in ("", file.tree)
        and place_of(file.path, file.tree) not in known
        and (not entries or file.num_entries in entries)
        and _holds(source, index, events)
        and (is_remote(own) or not is_there(own) or _is_copy(source, index, own, [entry for entry, *_ in events]))
    }
    most = [index for index, shared in found.items() if shared == max(found.values())]
    return most[0] if len(most) == 1 else None


def _holds(source: EventSource, index: int, events: Iterable[Event]) -> bool:
    """Return whether a file has events at their entries, as far as it serves these."""
    file = source.files[index]
    served = np.arange(file.num_entries) if file.selected is None else file.selected
    rows = {int(entry): row for row, entry in enumerate(served)}
    numbers = source.run_event_numbers(index)
    return all(
        entry < file.num_entries and (entry not in rows or numbers[rows[entry]].tolist() == [run, event])
        for entry, run, event in events
    )


def _is_copy(source: EventSource, index: int, own: str, entries: Sequence[int]) -> bool:
    """Return whether another file has the same readings and truth at entries of a file; not where it cannot be read."""
    now = source.event_file(index)
    try:
        with EventFile(own, now.tree) as before:
            return before.num_entries == now.num_entries and all(
                list(_values(source, before, entry)) == list(_values(source, now, entry))
                for entry in entries[:MOST_COMPARED]
            )
    except DataFileError:
        return False


def _values(source: EventSource, file: EventFile, entry: int) -> Iterator[bytes]:
    """Yield what a file holds of an event, branch by branch, without the truth that it has not."""
    branches = source.branches
    widths = {branches.npho: NUM_SENSORS, branches.time: NUM_SENSORS}
    widths |= {branch: source.widths[task] for task, branch in branches.truth.items() if branch in file.branch_names}
    for branch, width in widths.items():
        values = np.empty((1, width), np.float32)
        file.read_into(branch, entry, entry + 1, values)
        yield values.tobytes()


def _shared_end(one: str, other: str) -> int:
    """Return how many parts two paths have in common, from their end."""
    pairs = zip(reversed(PurePath(one).parts), reversed(PurePath(other).parts), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

"""Events that ``data.exclude`` names once an epoch has begun: its order stays, and its batches leave them out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

import numpy as np

from xectool.checkpoint.format import Checkpoint
from xectool.config.data import DataConfig
from xectool.config.inputs import present_inputs
from xectool.config.left_out import entries_left_out, left_out, left_out_by_name, refuse_beyond
from xectool.config.moved import moved_files, renamed_events
from xectool.config.root import RunConfig
from xectool.data.events import EventSource
from xectool.errors import ConfigError
from xectool.training.events.quarantine import ASKED, PoisonedEvent

Events = frozenset[tuple[int, int]]


def in_saved_order(config: RunConfig, checkpoint: Checkpoint) -> tuple[RunConfig, Events]:
    """Return the configuration whose epochs have the order that a checkpoint stands in, and what is left out of it.

    Events named since inside an epoch have their places in its order, as those in quarantine have, and are not served.
    They keep these places for the rest of the run, so that it ends alike wherever it is stopped. A run that counts its
    epochs anew plans them without all that was excluded.

    Returns:
        The configuration without their names, and the events as (index of the training file, entry).
    """
    data, saved = config.data, checkpoint.config.get("data")
    if saved is None or "progress" not in checkpoint.meta:
        return config, frozenset()
    paths = present_inputs(data.train_path)
    if config.checkpoint.reset_epoch:
        earlier = _asked_earlier(data, checkpoint, paths)
        with suppress(ConfigError):
            now = left_out(data, paths)
            earlier = {name: events for name, events in earlier.items() if not events <= now}
        return _excluding(config, (*data.exclude, *earlier)), frozenset()
    if not data.exclude:
        return config, frozenset()
    known = _of_earlier_resumes(data, checkpoint, paths)
    try:
        named = left_out_by_name(data, paths)
        before = left_out(data.model_copy(update={"exclude": saved_exclude(checkpoint, paths)}), paths)
    except ConfigError:  # said where the files are opened
        return config, frozenset()
    now = set().union(*named.values())
    is_inside = int(checkpoint.meta["progress"]["batch"]) > 0 and before <= now
    late = now - before if is_inside else now & known
    return _excluding(config, [name for name in data.exclude if not named[name] & late]), frozenset(late)


def _excluding(config: RunConfig, names: Iterable[str]) -> RunConfig:
    data = config.data.model_copy(update={"exclude": tuple(dict.fromkeys(names))})
    return config.model_copy(update={"data": data})


def left_out_since(config: RunConfig, checkpoint: Checkpoint, late: Events) -> Events:
    """Return the training events that ``data.exclude`` leaves out and none of the run had left out at a checkpoint.

    Args:
        config: What is asked for.
        checkpoint: Where the run goes on.
        late: Events left out since an epoch began, as `in_saved_order` finds them.
    """
    data, saved = config.data, checkpoint.config.get("data")
    if not data.exclude or saved is None:
        return frozenset()
    paths = present_inputs(data.train_path)
    try:
        before = left_out(data.model_copy(update={"exclude": saved_exclude(checkpoint, paths)}), paths)
        return frozenset((left_out(data, paths) | late) - before - _of_earlier_resumes(data, checkpoint, paths))
    except ConfigError:  # said where the files are opened
        return frozenset()


def late_events(
    source: EventSource, late: Collection[tuple[int, int]], data: DataConfig, step: int
) -> list[PoisonedEvent]:
    """Return what goes into the quarantine for events that are left out from a step on; not those no plan holds.

    Raises:
        ConfigError: A file has no such entry.
    """
    found = []
    for index, file in enumerate(source.files):
        wanted = np.array(sorted(entry for at, entry in late if at == index), np.int64)
        names = (*data.exclude, *(f"{file.name}:{entry}" for entry in wanted))
        refuse_beyond(data.model_copy(update={"exclude": names}), file.path, wanted.tolist(), file.num_entries)
        if not len(wanted):
            continue
        served = np.arange(file.num_entries) if file.selected is None else file.selected
        rows = np.flatnonzero(np.isin(served, wanted))
        numbers = source.run_event_numbers(index)[rows]
        found += [
            PoisonedEvent(file.name, index, int(entry), int(run), int(event), ASKED, step)
            for entry, (run, event) in zip(served[rows], numbers, strict=True)
        ]
    return found


def saved_exclude(checkpoint: Checkpoint, paths: Sequence[str]) -> tuple[str, ...]:
    """Return what a checkpoint left out of its training files, under the names of now where these have been moved.

    Names of no training file of now are passed over: what they meant may be gone, as a validation file that was moved.
    """
    saved = checkpoint.config["data"]
    named = _in_files_of_now(saved.get("exclude", ()), checkpoint, paths)
    of_one = {name: DataConfig(exclude=(name,), tree_name=saved.get("tree_name", "tree")) for name in named}
    return tuple(name for name, data in of_one.items() if any(entries_left_out(data, path) for path in paths))


def _in_files_of_now(events: Sequence[str], checkpoint: Checkpoint, paths: Sequence[str]) -> tuple[str, ...]:
    before = [str(file["path"]) for file in checkpoint.meta.get("train_files") or () if "path" in file]
    moved = moved_files(before, paths, str(checkpoint.config["data"].get("tree_name", ""))) if events else {}
    return renamed_events(events, moved)


def _of_earlier_resumes(data: DataConfig, checkpoint: Checkpoint, paths: Sequence[str]) -> set[tuple[int, int]]:
    """Return the events that an earlier resume inside an epoch has left out, of files that are still there."""
    return set().union(*_asked_earlier(data, checkpoint, paths).values())


def _asked_earlier(data: DataConfig, checkpoint: Checkpoint, paths: Sequence[str]) -> dict[str, set[tuple[int, int]]]:
    """Return the names of these events, and what each is."""
    found, events = dict[str, set[tuple[int, int]]](), checkpoint.meta.get("quarantine", {}).get("events", ())
    asked = [f"{event['file']}:{event['entry']}" for event in events if event["reason"] == ASKED]
    for name in _in_files_of_now(asked, checkpoint, paths):
        with suppress(ConfigError):
            found[name] = left_out(data.model_copy(update={"exclude": (name,)}), paths)
    return found

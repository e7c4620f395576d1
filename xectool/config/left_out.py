"""Events that a configuration leaves out, as ``FILE:ENTRY``: which of some files they are, and how one more is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from xectool.config.data import DataConfig
from xectool.config.inputs import Place, place_of, present_inputs, split_tree
from xectool.errors import ConfigError, in_shell, nearest

KEY: Final = "data.exclude"
_PLAIN: Final = re.compile(r"[\w./][\w./:+-]*")


def left_out(data: DataConfig, paths: Sequence[str]) -> set[tuple[int, int]]:
    """Return the events that are left out of these files of training or validation, as (index of the file, entry).

    A file is named by its path, or by the end of it where that is the end of one path alone.

    Raises:
        ConfigError: An event is of no file of training or validation, or may be of several.
    """
    return set().union(*left_out_by_name(data, paths).values())


def left_out_by_name(data: DataConfig, paths: Sequence[str]) -> dict[str, set[tuple[int, int]]]:
    """Return what each name of ``data.exclude`` leaves out of these files, as `left_out` does.

    Raises:
        ConfigError: As `left_out`.
    """
    if not data.exclude:
        return {}
    known, found = _known(data), {}
    for event in data.exclude:
        name, _, entry = event.rpartition(":")
        places = _places(name, known, data)
        if len(places) != 1:
            raise _unclear(event, [known[place] for place in places], list(known.values()), data)
        found[event] = {(index, int(entry)) for index, path in enumerate(paths) if _place(path, data) == places[0]}
    return found


def entries_left_out(data: DataConfig, path: str) -> list[int]:
    """Return the entries of one file that are left out, ascending, whatever other files there are."""
    place = {_place(path, data): path}
    named = (event.rpartition(":") for event in data.exclude)
    return sorted({int(entry) for name, _, entry in named if _places(name, place, data)})


def leaves_out_alike(data: DataConfig, other: Sequence[str], paths: Sequence[str]) -> bool:
    """Return whether other names would leave the same events out of these files; not where they name none."""
    try:
        return left_out(data.model_copy(update={"exclude": tuple(other)}), paths) == left_out(data, paths)
    except ConfigError:
        return False


def refuse_beyond(data: DataConfig, path: str, entries: Sequence[int], num_entries: int) -> None:
    """Refuse entries that a file does not have.

    Raises:
        ConfigError: Naming the first of them.
    """
    beyond = [entry for entry in sorted(entries) if entry >= num_entries]
    if beyond:
        place = _place(path, data)
        told = [event for event in data.exclude if int(event.rpartition(":")[2]) == beyond[0]]
        event = next((event for event in told if place in _places(event.rpartition(":")[0], {place: path}, data)), "")
        last = f"entries 0 to {num_entries - 1}" if num_entries else "no entries"
        problem = f"{KEY}: {event} is not there: {path} has {last}"
        raise ConfigError(problem, where=KEY, fix=without(data, event), code="CFG-38")


def leaving_out(data: DataConfig, *events: tuple[str, int]) -> str:
    """Return the setting ``key=value`` that leaves more events out, each told as file and entry, and each once.

    >>> leaving_out(DataConfig(exclude=("a.root:3",)), ("b.root", 17), ("b.root:tree", 17), ("a.root:tree", 3))
    'data.exclude=[a.root:3, b.root:17]'
    """
    once = dict[tuple[Place, int], str]()
    for file, entry in events:
        once.setdefault((_place(file, data), entry), file)
    known = _known(data) | {place: file for (place, _), file in once.items()}
    named = (event.rpartition(":") for event in data.exclude)
    told = {(place, int(entry)) for name, _, entry in named for place in _places(name, known, data)}
    new = (f"{file}:{event[1]}" for event, file in once.items() if event not in told)
    return _setting((*data.exclude, *new))


def by_other_names(data: DataConfig, names: Mapping[Place, str]) -> str:
    """Return the setting that leaves out the same events of files that go by other names; empty where none of it does.

    Args:
        data: The section.
        names: The other name of each such file, by the place of the one it is made of.
    """
    known, events = _known(data), list[str]()
    for event in data.exclude:
        name, _, entry = event.rpartition(":")
        places = _places(name, known, data)
        other = names.get(places[0]) if len(places) == 1 else None
        events.append(f"{other}:{entry}" if other else event)
    return "" if tuple(events) == data.exclude else _setting(events)


def of_files_read(data: DataConfig, events: Iterable[str]) -> tuple[str, ...]:
    """Return the events, each ``FILE:ENTRY``, that are of one file of training or validation."""
    known = _known(data)
    return tuple(event for event in events if len(_places(event.rpartition(":")[0], known, data)) == 1)


def without(data: DataConfig, event: str, instead: Sequence[str] = ()) -> str:
    """Return the option that leaves out what is left out now but for one event, for which others may stand."""
    events = [*instead, *(other for other in data.exclude if other != event)]
    return f"--set {in_shell(_setting(events))}"


def _setting(events: Sequence[str]) -> str:
    """Return the setting, without the quotes that a list of YAML can do without: a shell would quote each of them."""
    listed = (event if _PLAIN.fullmatch(event) else json.dumps(event, ensure_ascii=False) for event in events)
    return f"{KEY}=[{', '.join(dict.fromkeys(listed))}]"


def _known(data: DataConfig) -> dict[Place, str]:
    return {_place(path, data): path for spec in (data.train_path, data.val_path) for path in present_inputs(spec)}


def _place(path: str, data: DataConfig) -> Place:
    return place_of(*split_tree(path, data.tree_name))


def _places(name: str, known: Mapping[Place, str], data: DataConfig) -> list[Place]:
    """Return the files that a name may mean: the one that lies there, else those whose path ends so."""
    if _place(name, data) in known:
        return [_place(name, data)]
    end, tree = split_tree(name, "")
    files = {place: split_tree(path, data.tree_name) for place, path in known.items()}
    return [place for place, (path, of) in files.items() if f"/{path}".endswith(f"/{end}") and tree in ("", of)]


def _unclear(event: str, meant: Sequence[str], known: Sequence[str], data: DataConfig) -> ConfigError:
    name, _, entry = event.rpartition(":")
    ends = {_end(path): path for path in known}
    near = [ends[end] for end in nearest(_end(name), list(ends))]
    what = f"may be of {' or '.join(meant)}" if meant else "is of no file of data.train_path or data.val_path"
    hint = "" if meant or not near else f", did you mean '{near[0]}'?"
    instead = [f"{path}:{entry}" for path in (meant or near)[:1]]
    return ConfigError(f"{KEY}: {event} {what}{hint}", where=KEY, fix=without(data, event, instead), code="CFG-38")


def _end(path: str) -> str:
    return split_tree(path, "")[0].rpartition("/")[2].removesuffix(".root")

"""Which files of now are those of before under another path, as of a run whose data were moved or copied."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xectool.config.inputs import Place, is_remote, place_of, split_tree


def places_of(names: Iterable[str], tree: str = "") -> list[Place]:
    """Return the places of files; ``tree`` is that of names without one."""
    return [place_of(*split_tree(name, tree)) for name in names]


def is_there(name: str) -> bool:
    """Return whether a file is there; of a url that is not asked."""
    path = split_tree(name, "")[0]
    return is_remote(path) or os.path.exists(os.path.expanduser(path))


def moved_files(before: Sequence[str], now: Sequence[str], tree: str = "") -> dict[str, str]:
    """Return what files are called now that are no longer read under their path: one of the same name that was not.

    A name that several have leads nowhere, unless all files have kept their names and order.

    Args:
        before: Paths, with or without their trees.
        now: The same of the files that are read now.
        tree: The tree of names without one.
    """
    were, are = places_of(before, tree), places_of(now, tree)
    gone = [name for name, place in zip(before, were, strict=True) if place not in are]
    new = [name for name, place in zip(now, are, strict=True) if place not in were]
    if [_end(name, tree) for name in before] == [_end(name, tree) for name in now]:
        return {name: other for name, other in zip(before, now, strict=True) if name in gone and other in new}
    counts = Counter(_end(name, tree) for name in gone) | Counter(_end(name, tree) for name in new)
    ends = {_end(name, tree): name for name in new if counts[_end(name, tree)] == 1}
    return {name: ends[_end(name, tree)] for name in gone if _end(name, tree) in ends}


def renamed_events(events: Iterable[str], moved: Mapping[str, str]) -> tuple[str, ...]:
    """Return events, each ``FILE:ENTRY``, with the files that have moved under their new names."""
    return tuple(_renamed(event, moved) for event in events)


def _renamed(event: str, moved: Mapping[str, str]) -> str:
    name, _, entry = event.rpartition(":")
    path, tree = split_tree(name, "")
    files = {own: split_tree(own, "") for own in moved}
    meant = [own for own, (file, of) in files.items() if f"/{file}".endswith(f"/{path}") and tree in ("", of)]
    return f"{moved[meant[0]]}:{entry}" if len(meant) == 1 else event


def _end(name: str, tree: str) -> Any:
    path, of = split_tree(name, tree)
    return path.rpartition("/")[2], of

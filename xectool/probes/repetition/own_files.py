"""The files of a run: those it was trained on where they are there, else those that are given in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xectool.config.data import DataConfig
from xectool.config.inputs import Place, input_name, present_inputs, split_tree
from xectool.config.left_out import of_files_read
from xectool.config.moved import is_there, moved_files, places_of, renamed_events
from xectool.errors import counted

ROLES = ("train", "val")


@dataclass
class OwnFiles:
    """Puts other files in the place of those of a run that are not there.

    Attributes:
        given: The data section whose files are taken where those of the run are not there; None for none.
        moved: New names of the files of the run, by their own.
        settings: What was changed, as ``key`` to paths or events.
        missing: Keys whose files are neither there nor given.
        notes: What was taken, and what was given and not taken.
    """

    given: DataConfig | None = None
    moved: dict[str, str] = field(default_factory=dict)
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def of(self, data: DataConfig, names: Mapping[str, Sequence[str]], later: DataConfig | None = None) -> DataConfig:
        """Return the data section of a run with files that are there.

        Args:
            data: Its own.
            names: The files it was trained on, by role, with their trees, in their order.
            later: What a later attempt read, for files that are neither there nor given.
        """
        changes: dict[str, Any] = {}
        for role in ROLES:
            key = f"{role}_path"
            own = list(names.get(role) or _spelt_out(getattr(data, key)))
            first_gone = next((name for name in own if not is_there(name)), "")
            paths = present_inputs(getattr(self.given, key, ""))
            if not first_gone:
                self._tell_of_others(key, data, own, paths)
                if places_of(own, data.tree_name) != places_of(present_inputs(getattr(data, key)), data.tree_name):
                    changes[key] = tuple(own)
                    self._say(f"data.{key} finds other files now: the run's own were read, {_told(own)}")
            elif instead := paths or present_inputs(getattr(later, key, "")):
                changes[key] = self._taken(key, data, own, instead)
                self._say(f"{first_gone} is not there: data.{key} is {_told(changes[key])} instead")
            else:
                self.missing[f"data.{key}"] = first_gone
        if not changes:
            return data
        found = data.model_copy(update=changes)
        named = renamed_events(data.exclude, self.moved)
        changes["exclude"] = of_files_read(found, named)
        if gone := [event for event in named if event not in changes["exclude"]]:
            self._say(f"data.exclude names events of no file that is read, which are not left out: {', '.join(gone)}")
        changed = {key: value for key, value in changes.items() if value != getattr(data, key)}
        self.settings |= {f"data.{key}": value for key, value in changed.items()}
        return data.model_copy(update=changes)

    def _taken(self, key: str, data: DataConfig, own: list[str], paths: list[str]) -> tuple[str, ...]:
        """Return given files in the order of those whose places they take."""
        paths = _with_trees(paths, own, data.tree_name)
        moved = moved_files(own, paths, data.tree_name)
        new = [moved.get(name, name) for name in own]
        self.moved |= moved
        if not all(map(is_there, new)):
            self._say(f"the files given as data.{key} have other names than those of the run: steps may differ")
            return tuple(paths)
        self._tell_order(key, places_of(new, data.tree_name), paths, data.tree_name)
        return tuple(new)

    def _tell_of_others(self, key: str, data: DataConfig, own: list[str], paths: list[str]) -> None:
        were, are = places_of(own, data.tree_name), places_of(paths, data.tree_name)
        spec = getattr(self.given, key, "")
        if spec and not paths and spec != getattr(data, key):
            told = _told([spec] if isinstance(spec, str) else spec)
            self._say(f"data.{key} was given as {told}, which is not there: the run's own were read, {_told(own)}")
        elif paths and set(were) != set(are):
            self._say(f"data.{key} was given as {_told(paths)}: the run's own were read, {_told(own)}")
        elif paths:
            self._tell_order(key, were, paths, data.tree_name)

    def _tell_order(self, key: str, read: list[Place], paths: list[str], tree: str) -> None:
        """Tell of given files that are not read, and of those that are read in another order."""
        are = places_of(paths, tree)
        if more := [name for name, place in zip(paths, are, strict=True) if place not in read]:
            self._say(f"data.{key} was given with files that are none of the run, and are not read: {_told(more)}")
        if [place for place in read if place in are] != [place for place in are if place in read]:
            self._say(f"data.{key} was given in another order: the files are read in that of the run")

    def _say(self, note: str) -> None:
        self.notes[note] = None


def _spelt_out(paths: str | Sequence[str]) -> list[str]:
    """Return the files that paths stand for, and the paths that stand for none."""
    return [
        name
        for spec in filter(None, [paths] if isinstance(paths, str) else paths)
        for name in present_inputs(spec) or [spec]
    ]


def _with_trees(paths: Sequence[str], own: Sequence[str], tree: str) -> list[str]:
    """Return given files, those that name no tree with each that the run's file of that name was read with."""
    trees: dict[str, list[str]] = {}
    for path, of in (split_tree(name, tree) for name in own):
        trees.setdefault(path.rpartition("/")[2], []).append(of)
    found = list[str]()
    for name in paths:
        path, of = split_tree(name, "")
        several = [tree] if of else trees.get(path.rpartition("/")[2], [tree])
        found += [name] if several == [tree] else [input_name(path, each) for each in several]
    return list(dict.fromkeys(found))


def _told(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {counted(len(paths) - 1, 'more file')}"

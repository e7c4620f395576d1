"""The files of a run: those it was trained on where they are there, else those that are given in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xectool.config.data import DataConfig
from xectool.config.inputs import present_inputs
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
        moved = moved_files(own, paths, data.tree_name)
        new = [moved.get(name, name) for name in own]
        self.moved |= moved
        if not all(map(is_there, new)):
            self._say(f"the files given as data.{key} have other names than those of the run: steps may differ")
            return tuple(paths)
        if places_of(new, data.tree_name) != places_of(paths, data.tree_name):
            self._say(f"data.{key} was given in another order: the files are read in that of the run")
        return tuple(new)

    def _tell_of_others(self, key: str, data: DataConfig, own: list[str], paths: list[str]) -> None:
        were, are = places_of(own, data.tree_name), places_of(paths, data.tree_name)
        if not paths or were == are:
            return
        if sorted(were, key=str) == sorted(are, key=str):
            self._say(f"data.{key} was given in another order: the files are read in that of the run")
            return
        self._say(f"data.{key} was given as {_told(paths)}: the run's own were read, {_told(own)}")

    def _say(self, note: str) -> None:
        self.notes[note] = None


def _spelt_out(paths: str | Sequence[str]) -> list[str]:
    """Return the files that paths stand for, and the paths that stand for none."""
    return [
        name
        for spec in filter(None, [paths] if isinstance(paths, str) else paths)
        for name in present_inputs(spec) or [spec]
    ]


def _told(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {counted(len(paths) - 1, 'more file')}"

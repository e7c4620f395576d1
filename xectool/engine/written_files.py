"""The files of a check that follows a line which writes some of them again: of both samples, each in its place."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from xectool.config.data import DataConfig
from xectool.config.inputs import Place, expand_inputs, place_of, split_tree
from xectool.config.left_out import by_other_names
from xectool.config.mends import written_name
from xectool.config.serialize import inline_yaml
from xectool.errors import DataFileError

TRAIN: Final = "data.train_path"
VAL: Final = "data.val_path"


class Tree(NamedTuple):
    """A tree of a file, as it is asked for; whether it is there."""

    path: str
    tree: str
    found: bool = True


@dataclass(frozen=True)
class Written:
    """What a line writes again.

    Attributes:
        names: The written file of each tree, as a check names it.
    """

    names: Mapping[Place, str]

    def instead(self, trees: Sequence[Tree]) -> list[str]:
        """Return the names of a sample with the written files in place of the old ones; nothing where none is of it.

        A tree that the check did not find yet, and that the line knows by a proposed name, is the one of its file.
        """
        known = [self._of(tree) for tree in trees]
        if not any(known):
            return []
        return [name or written_name(tree.path, tree.tree) for name, tree in zip(known, trees, strict=True)]

    def settings(self, run: Mapping[str, Sequence[Tree]], data: DataConfig | None = None) -> list[str]:
        """Return what the paths of a configuration have to be then, and the events that its section leaves out."""
        named = {key: self.instead(trees) for key, trees in run.items()}
        paths = {key: inline_yaml(names[0] if len(names) == 1 else names) for key, names in named.items() if names}
        gone = by_other_names(data, self.names) if data else ""
        return [f"{key}={names}" for key, names in paths.items()] + ([gone] if gone else [])

    def _of(self, tree: Tree) -> str | None:
        place = place_of(tree.path, tree.tree)
        if tree.found or place in self.names:
            return self.names.get(place)
        names = [name for (file, _), name in self.names.items() if file == place[0]]
        return names[0] if len(names) == 1 else None


def paths_of(data: DataConfig) -> dict[str, list[Tree]]:
    """Return the trees that the paths of a configuration name; what is not there stays as it is named."""
    return {key: _trees(paths, data.tree_name) for key, paths in ((TRAIN, data.train_path), (VAL, data.val_path))}


def _trees(paths: str | Iterable[str], tree: str) -> list[Tree]:
    named = [path for spec in ([paths] if isinstance(paths, str) else paths) if spec for path in _expanded(spec)]
    return [Tree(*split_tree(path, tree)) for path in dict.fromkeys(named)]


def _expanded(spec: str) -> list[str]:
    try:
        return expand_inputs(spec)
    except DataFileError:  # what is not there stays named, for others tell of it
        return [spec]


def files_and_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files of the words after ``check-data``, the first of them whatever it is called, and the rest."""
    files = [*words[:1], *itertools.takewhile(lambda word: not word.startswith("-"), words[1:])]
    return files, list(words[len(files) :])

"""Data files that are there, for who named some that are not: of two samples never the same one."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from xectool.config.data import DataConfig
from xectool.config.inputs import Place, expand_inputs, place_of, split_tree
from xectool.errors import DataFileError, in_shell, nearest

_MOST_DIRECTORIES = 500  # beside one that is not there


@dataclass(frozen=True)
class Chosen:
    """What is proposed for an input that does not exist.

    Attributes:
        path: Where it lies; None where nothing may be proposed.
        text: The input as it is named.
        kept: The first input that was not proposed, as the other sample has it; empty where none was.
    """

    path: Path | None
    text: str
    kept: str


class Sample:
    """The files that training or validation has, or may be given by what was proposed.

    Args:
        data: The data section.
        paths: The paths of the sample.
    """

    def __init__(self, data: DataConfig, paths: str | Sequence[str]) -> None:
        self._data = data
        texts = (paths,) if isinstance(paths, str) else paths
        self._places = {place for text in texts for place in self._places_of(text)}

    def choose(self, inputs: Iterable[tuple[Path, str]], other: Sample) -> Chosen:
        """Return the first input of which neither sample has a file, and add it; the other may, where that is allowed.

        Args:
            inputs: What may be meant, the likeliest first: where it lies, and how it is named.
            other: The other sample.
        """
        kept = ""
        for path, text in inputs:
            if self.may_have(text, other):
                self._places |= self._places_of(text)
                return Chosen(path, text, kept)
            if self._places.isdisjoint(self._places_of(text)):
                kept = kept or text
        return Chosen(None, "", kept)

    def may_have(self, text: str, other: Sample) -> bool:
        """Return whether an input has no file of this sample, nor of the other one where that may not share them."""
        places = self._places_of(text)
        shares = self._data.allow_overlap or other._places.isdisjoint(places)
        return shares and self._places.isdisjoint(places)

    def _places_of(self, text: str) -> set[Place]:
        try:
            return {place_of(*split_tree(path, self._data.tree_name)) for path in expand_inputs(text)}
        except DataFileError:
            return set()


def second_file(key: str, wanted: Path) -> str:
    """Return how a second file is had where one alone is there: made, or named."""
    is_file = wanted.suffix == ".root" and not glob.has_magic(str(wanted))
    first = f"xectool simulate {in_shell(wanted)} --events 2000 --seed 2   # for a trial; else"
    return f"{first if is_file else 'xectool explain CFG-37   #'} name another one: --set {key}=PATH"


def inputs_beside(path: Path, is_free: Callable[[Path], bool], *, is_list: bool = False) -> Iterator[Path]:
    """Yield what may be meant by an input that does not exist, the likeliest first: in its directory, then here.

    Args:
        path: Where it was looked for.
        is_free: Whether it may be meant by its name alone: what a sample has is meant by that already.
        is_list: Whether it is a list of files.
    """
    fits = _is_list if is_list else _holds_inputs
    series = None if is_list else _series_beside(path)
    if series is not None:
        yield series
    yield from _near(path, _is_list if is_list else _holds_root_files)
    yield from _moved_here(path, fits)
    yield from _renamed(path, lambda other: fits(other) and is_free(other))


def _moved_here(path: Path, fits: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield where the end of a path of another machine leads to from here, or from above here; the longest end first.

    A name alone is looked for in the working directory only: above it many files may have it. So is a pattern of
    any depth: above it lies all that this machine holds.
    """
    parts, here = path.absolute().parts[1:], Path.cwd()
    for start in range(1, len(parts)):
        if glob.has_magic(parts[start][:1]):  # any name fits, or any directory
            return
        is_here = start == len(parts) - 1 or "**" in parts[start:]
        above = () if is_here else here.parents[:-1]
        yield from (base.joinpath(*parts[start:]) for base in (here, *above) if fits(base.joinpath(*parts[start:])))


def _renamed(path: Path, fits: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield what is called so in the one directory that has it where that of the path was: it has another name now."""
    if glob.has_magic(str(path.parent)) or os.path.lexists(path.parent):
        return
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(path.parent.parent))[:_MOST_DIRECTORIES]
    found = [other for name in names if fits(other := path.parent.with_name(name) / path.name)]
    yield from found if len(found) == 1 else []


def nearest_beside(path: Path, fits: Callable[[Path], bool]) -> Path | None:
    """Return the file in the same directory that fits and whose name comes nearest to one that does not exist."""
    return next(_near(path, fits), None)


def _near(path: Path, fits: Callable[[Path], bool]) -> Iterator[Path]:
    names: list[str] = []
    with suppress(OSError):  # it is not there, or may not be listed
        names = os.listdir(path.parent)
    return filter(fits, (path.with_name(name) for name in nearest(path.name, names)))


def _series_beside(path: Path) -> Path | None:
    """Return the pattern of the numbered ROOT files with the name of one that does not exist: ``a_*.root`` for a."""
    for mark in ("_", "-", "."):
        pattern = f"{glob.escape(path.stem)}{mark}*.root"
        found = list(_matches(path.parent, pattern)) if path.suffix == ".root" else []
        if len(found) > 1 and all(name.stem.rpartition(mark)[2].isdecimal() for name in found):
            return Path(glob.escape(str(path.parent))) / pattern
    return None


def _matches(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield what matches a pattern in a directory; nothing where it may not be read, or no file can have its name."""
    with suppress(OSError):
        yield from folder.glob(pattern)


def _holds_root_files(path: Path) -> bool:
    return path.suffix == ".root" or next(_matches(path, "*.root"), None) is not None


def _holds_inputs(path: Path) -> bool:
    if glob.has_magic(str(path)):
        return any(_holds_root_files(Path(found)) for found in glob.iglob(str(path), recursive=True))
    return os.path.exists(path) and _holds_root_files(path)  # Path.exists raises where a directory may not be read


def _is_list(path: Path) -> bool:
    return os.path.isfile(path) and path.suffix != ".root"

"""Lists of dead sensors as text files: ids separated by blanks or line ends, ``#`` starts a comment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.errors import DataFileError, UsageError, in_shell, nearest
from xectool.errors.misnamed import MisnamedFile, meant

IntArray = npt.NDArray[np.int64]
_MOST_DIGITS: Final = 20
_LISTS: Final = (".txt", ".dat", ".lst", ".list")


def read_dead_channels(path: str | os.PathLike[str]) -> IntArray:
    """Return the ascending sensor ids listed in a file, each once.

    Raises:
        DataFileError: The file cannot be read, or an entry is not a sensor id or is listed twice.
    """
    seen: dict[int, int] = {}
    for line_number, word in _words(Path(path)):
        where = f"{path}:{line_number}"
        sensor = _sensor_id(word, where)
        if sensor in seen:
            raise DataFileError(
                f"sensor {sensor} is listed twice, first on line {seen[sensor]}",
                where=where,
                fix=_each_once(Path(path)),
            )
        seen[sensor] = line_number
    return np.array(sorted(seen), dtype=np.int64)


def write_dead_channels(path: str | os.PathLike[str], sensor_ids: Iterable[int], comment: str = "") -> None:
    """Write sensor ids, ascending, one a line, below an optional comment.

    Raises:
        UsageError: An id is out of range or given twice.
    """
    ids = [int(sensor) for sensor in sensor_ids]
    check_dead_channels(ids)
    header = [f"# {line}" for line in comment.splitlines()]
    Path(path).write_text("\n".join([*header, *map(str, sorted(ids))]) + "\n", encoding="utf-8")


def check_dead_channels(sensor_ids: Iterable[int]) -> None:
    """Refuse ids that do not exist and ids given twice.

    Raises:
        UsageError: An id is out of range or given twice.
    """
    ids = list(sensor_ids)
    outside = [sensor for sensor in ids if not 0 <= sensor < c.NUM_SENSORS]
    if outside:
        raise UsageError(f"there is no sensor {outside[0]}", fix=f"use sensor ids from 0 to {c.NUM_SENSORS - 1}")
    if len(set(ids)) != len(ids):
        twice = next(sensor for sensor in ids if ids.count(sensor) > 1)
        raise UsageError(f"sensor {twice} is given twice", fix="give each dead sensor once")


def _words(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise _no_such_list(path) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise DataFileError(
            f"the list of dead channels cannot be read: {reason}",
            where=str(path),
            fix="give a text file with one sensor id a line",
        ) from error
    for line_number, line in enumerate(text.splitlines(), start=1):
        for word in line.partition("#")[0].split():
            yield line_number, word


def _no_such_list(path: Path) -> DataFileError:
    """Return the refusal of a list that is not there, with the one beside it that was meant most likely.

    Another number is another list, and what has another ending than a list is none.
    """
    names: list[str] = []
    with suppress(OSError, ValueError):  # it may not be listed
        names = sorted(os.listdir(path.parent))
    by_stem: dict[str, str] = {}
    for name in sorted(names, key=lambda name: Path(name).suffix != path.suffix):
        beside = path.parent / name
        if beside.suffix in _LISTS and _numbers(beside) == _numbers(path) and os.path.isfile(beside):
            by_stem.setdefault(beside.stem, name)
    near, problem = nearest(path.stem, by_stem, 1), "no such list of dead channels"
    if near:
        return meant(MisnamedFile, problem, path, [by_stem[near[0]]])
    return DataFileError(problem, where=str(path), fix="give a text file with one sensor id a line")


def _numbers(path: Path) -> list[str]:
    return re.findall(r"\d+", path.stem)


def _each_once(path: Path) -> str:
    """Return the command that writes the list with every sensor once."""
    source, target = (in_shell(p) for p in (path, path.with_name(f"{path.stem}_once{path.suffix}")))
    return f"sed 's/#.*//' {source} | tr -s '[:space:]' '\\n' | grep . | sort -nu > {target}   # then give {target}"


def _sensor_id(word: str, where: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < _MOST_DIGITS and int(word) < c.NUM_SENSORS):
        raise DataFileError(
            f"'{word}' is not a sensor id",
            where=where,
            fix=f"write ids from 0 to {c.NUM_SENSORS - 1}, and comments after #",
        )
    return int(word)

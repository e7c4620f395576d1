"""List files, ``@files.txt``: one input a line, ``#`` starts a comment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from xectool.errors import DataFileError, in_shell


def read_list(list_path: Path, above: Collection[Path] = ()) -> list[str]:
    """Return the entries of a list file in their order, without comments and empty lines.

    Args:
        list_path: The file.
        above: Resolved paths of the lists that named it, none of which it may be.

    Raises:
        DataFileError: It names itself, is no UTF-8 text, or cannot be read.
    """
    where = str(list_path)
    if list_path.resolve() in above:
        fix = f"leave out the line that names @{list_path.name}"
        raise DataFileError(f"the list file '{where}' names itself", where=where, fix=fix)
    try:
        lines = list_path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        problem = f"the list file '{where}' is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        fix = f"one path a line; a data file goes without @: {in_shell(where)}"
        raise DataFileError(problem, where=where, fix=fix) from error
    except OSError as error:
        problem = f"the list file '{where}' cannot be read: {error.strerror}"
        raise DataFileError(problem, where=where, fix=f"chmod u+r {in_shell(where)}") from error
    return list_entries(lines)


def list_entries(lines: Iterable[str]) -> list[str]:
    """Return what the lines of a list file name.

    >>> list_entries(["# good runs", "a.root  # the first", ""])
    ['a.root']
    """
    return [entry for line in lines if (entry := line.split("#", 1)[0].strip())]

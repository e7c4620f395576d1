"""Files that are not where they were named, with the one that was meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from xectool.errors import CheckpointError, ConfigError, DataFileError, Misnamed, in_shell

E = TypeVar("E", bound=Misnamed)


class MisnamedConfig(Misnamed, ConfigError):
    """No configuration is where one was named."""


class MisnamedFile(Misnamed, DataFileError):
    """No data file is where one was named."""


class DamagedCheckpoint(Misnamed, CheckpointError):
    """A checkpoint is damaged, and another one of its run lies beside it."""


def meant(kind: type[E], problem: str, path: str | Path, near: Sequence[str], code: str = "") -> E:
    """Return the refusal of a path with the nearest names in its directory, likeliest first; at least one.

    Where a word of the command line names the path, its fix becomes the whole line.
    """
    first, *others = (str(Path(path).with_name(name)) for name in near)
    remark = f"   # or {', '.join(others)}" if others else ""
    fix = f"{in_shell(first)}{remark}"
    error = kind(f"{problem}, did you mean '{near[0]}'?", where=str(path), fix=fix, code=code)
    error.meant = {str(Path(path)): first}
    error.remark = remark
    return error

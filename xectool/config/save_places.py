"""Whether a directory can be written, and where else runs have room."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xectool.config.serialize import inline_yaml
from xectool.errors import in_shell

_LEAST_BYTES: Final = 16e6  # a disk with less is full: a record and a checkpoint take more
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def nearest_existing(directory: Path) -> Path:
    """Return a directory, or the nearest above it that is there."""
    whole = directory.expanduser().absolute()
    return next(path for path in (whole, *whole.parents) if os.path.exists(path))


def refusal_to_write(directory: Path) -> OSError | None:
    """Return why nothing can be written to a directory, or to the nearest above it that is there; leaves nothing."""
    try:
        with tempfile.TemporaryFile(dir=nearest_existing(directory)):
            return None
    except OSError as error:
        return error


def said_of(refusal: OSError) -> str:
    """Return why nothing can be made in a directory that is there, in words; some file systems call it absent then.

    >>> said_of(OSError(errno.ENOENT, "No such file or directory"))
    'its file system lets nothing be made there'
    """
    if refusal.errno == errno.ENOENT:
        return "its file system lets nothing be made there"
    return refusal.strerror or str(refusal)


def other_save_dir(refused: Path, needed_bytes: float = 0.0, *, refusal: OSError | None = None) -> str:
    """Return the setting that puts runs where they can be written and have room; what lists the disks where none is.

    Args:
        refused: Where they cannot be.
        needed_bytes: What they take.
        refusal: Why; where a disk or the quota on it is full, all places on that disk are passed over.
    """
    full = refusal is not None and refusal.errno in _FULL
    for place in _places():
        runs = place / "artifacts"
        if full and _on_one_disk(runs, refused):
            continue
        if runs != Path(os.path.abspath(refused.expanduser())) and _has_room(runs, max(needed_bytes, _LEAST_BYTES)):
            return f"--set {in_shell(f'checkpoint.save_dir={inline_yaml(str(runs))}')}"
    return "df -h   # no place known here has room: free space, or set checkpoint.save_dir to a larger disk"


def _places() -> Iterator[Path]:
    """Yield the directories that are there of those in which users usually have room, this one first."""
    with contextlib.suppress(OSError):  # it was deleted
        yield Path.cwd()
    for named in (os.environ.get("SCRATCH"), os.environ.get("WORK"), os.path.expanduser("~")):
        if named and os.path.isdir(named):
            yield Path(os.path.abspath(named))
    with contextlib.suppress(OSError):  # there is none
        yield Path(tempfile.gettempdir())


def _on_one_disk(first: Path, second: Path) -> bool:
    try:
        return len({os.stat(nearest_existing(path)).st_dev for path in (first, second)}) == 1
    except OSError:
        return False


def _has_room(directory: Path, needed_bytes: float) -> bool:
    try:
        enough = shutil.disk_usage(nearest_existing(directory)).free >= needed_bytes
    except OSError:
        return False
    return enough and refusal_to_write(directory) is None

"""Whether a directory can be written, and where else runs have room."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from xectool.config.serialize import inline_yaml
from xectool.errors import in_shell


def nearest_existing(directory: Path) -> Path:
    """Return a directory, or the nearest above it that is there."""
    whole = directory.expanduser().absolute()
    return next(path for path in (whole, *whole.parents) if path.exists())


def refusal_to_write(directory: Path) -> OSError | None:
    """Return why nothing can be written to a directory, or to the nearest above it that is there; leaves nothing."""
    try:
        with tempfile.TemporaryFile(dir=nearest_existing(directory)):
            return None
    except OSError as error:
        return error


def other_save_dir(refused: Path, needed_bytes: float = 0.0) -> str:
    """Return the setting that puts runs where they can be written and have room; what lists the disks where none is.

    Args:
        refused: Where they cannot be.
        needed_bytes: What they take.
    """
    named = (os.environ.get(name, "") for name in ("SCRATCH", "WORK"))
    there = refused.expanduser().absolute()
    for place in (Path.cwd(), *(Path(name) for name in named if name), Path.home(), Path(tempfile.gettempdir())):
        runs = place / "artifacts"
        has_room = place.is_dir() and shutil.disk_usage(nearest_existing(runs)).free >= needed_bytes
        if has_room and runs != there and refusal_to_write(runs) is None:
            return f"--set {in_shell(f'checkpoint.save_dir={inline_yaml(str(runs))}')}"
    return "df -h   # no place known here has room: free space, or set checkpoint.save_dir to a larger disk"

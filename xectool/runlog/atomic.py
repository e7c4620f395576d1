"""Small files that are whole or absent, whenever the process dies."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from xectool.errors import DiskError, in_shell
from xectool.errors.refused_writes import LIFT, size_limit
from xectool.runlog.records import to_json


def write_json(path: Path, content: Any, *, durable: bool = True) -> None:
    """Replace ``path`` by indented standard JSON in one rename; readable by its owner only.

    Args:
        path: File to write; its directory exists.
        content: Plain values; non-finite floats become their names.
        durable: Wait until the content is on the disk; without it a power cut may lose the newest version.

    Raises:
        DiskError: The disk refuses.
    """
    write_text(path, json.dumps(json.loads(to_json(content)), indent=1) + "\n", mode=0o600, durable=durable)


def write_text(path: Path, text: str, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` by a text in one rename.

    Args:
        path: File to write; its directory exists.
        text: Its content.
        mode: Permissions of a new file, before the mask of the process.
        durable: Wait until the content is on the disk; without it a power cut may lose the newest version.

    Raises:
        DiskError: The disk refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "w", encoding="utf-8"
        ) as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        limit, look = size_limit(error), f"df -h {in_shell(path.parent)}   # free space on the disk that holds it"
        problem = f"{path.name} cannot be written: {limit or error.strerror}"
        raise DiskError(problem, where=str(path), fix=LIFT if limit else look) from error
    finally:  # also where Ctrl-C came
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Wait until the names of a directory are on the disk, so that a rename survives a power cut.

    Raises:
        OSError: The disk refuses.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Return what `write_json` wrote, empty where the file is absent or, after a power cut, not whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

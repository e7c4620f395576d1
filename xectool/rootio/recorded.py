"""Hashes that are recorded of a ROOT file lie beside it, and go with it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SUFFIX: Final = ".digest.json"


def sidecar(path: str | os.PathLike[str]) -> Path:
    """Return the place of a file's recorded hashes.

    >>> sidecar("data/a.root").name
    'a.root.digest.json'
    """
    return Path(os.fspath(path) + SUFFIX)


def forget_replaced(path: str | os.PathLike[str]) -> None:
    """Take away the hashes of the file that stood here: of the new one each would be told as damage."""
    with suppress(OSError):  # what stays is told by the next check, with the line that removes it
        sidecar(path).unlink()

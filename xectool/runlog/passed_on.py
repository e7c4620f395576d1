"""Warnings of the processes of a rank, a line each in a file that the launcher reads."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PLACE: Final = "XECTOOL_RANK_WARNINGS"
"""Variable that names the file, for the processes a rank starts."""


class _OneLine(logging.Formatter):
    """Writes a warning with all its lines as one, so that it is whole or not there yet."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(super().format(record))


@contextmanager
def passed_on(path: Path) -> Iterator[None]:
    """Have what this process, and readers it starts, warn of inside the block written to a file as well."""
    os.environ[PLACE] = str(path)
    told = _attached(path)
    try:
        yield
    finally:
        del os.environ[PLACE]
        logging.getLogger("xectool").removeHandler(told)
        told.close()


def pass_on_of_rank() -> None:
    """Do the same to the end of this process, a reader; nothing where no rank asks for it."""
    if PLACE in os.environ:
        _attached(Path(os.environ[PLACE]))


def _attached(path: Path) -> logging.Handler:
    """Add the handler, unless a fork has brought it along."""
    logger = logging.getLogger("xectool")
    for known in logger.handlers:
        if isinstance(known, logging.FileHandler) and known.baseFilename == os.path.abspath(path):
            return known
    told = logging.FileHandler(path, encoding="utf-8", delay=True)
    told.setLevel(logging.WARNING)
    told.setFormatter(_OneLine())
    logger.addHandler(told)
    return told

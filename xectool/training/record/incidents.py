"""A folder for each incident, with the events and what is needed to repeat the step."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from xectool.data.batch import EventBatch
from xectool.errors import DiskError
from xectool.runlog.atomic import write_text
from xectool.runlog.records import to_json

DIRECTORY: Final = "incidents"
FORMAT: Final = 1
MAX_BYTES: Final = 10**9
IDENTITY_COLUMNS: Final = ("file_index", "entry", "run", "event")


class IncidentFolders:
    """Writes ``incidents/NNNN/incident.json`` and ``batch.npz``; bounded in number and size.

    Args:
        run_dir: The run directory.
        most: Folders that may exist.
        attempt: Attempt at the run that writes them.
    """

    def __init__(self, run_dir: Path, most: int, attempt: int) -> None:
        self.root = run_dir / DIRECTORY
        self.most = most
        self.attempt = attempt

    def write(self, facts: Mapping[str, Any], window: Sequence[EventBatch]) -> str:
        """Write one incident and return its path relative to the run directory; without a window, no batch.

        An empty string says that it was not written: there are too many, or the disk refuses; an incident is never
        worth a training.
        """
        taken = self._taken()
        size = sum(_bytes_in(folder) for folder in taken)
        batch = concatenated(window)
        if len(taken) >= self.most or size + sum(values.nbytes for values in batch.values()) > MAX_BYTES:
            return ""
        try:
            folder = self._new_folder(max((int(path.name) for path in taken), default=0) + 1)
        except OSError:
            return ""
        try:
            if batch:
                np.savez(folder / "batch.npz", **batch)
            write_text(folder / "incident.json", to_json({"format": FORMAT, "attempt": self.attempt, **facts}) + "\n")
        except (OSError, DiskError):
            shutil.rmtree(folder, ignore_errors=True)
            return ""
        return f"{DIRECTORY}/{folder.name}"

    def _new_folder(self, number: int) -> Path:
        """Return a new folder with the first free number from ``number`` on; other ranks may be taking some."""
        self.root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = self.root / f"{number:04d}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
                continue
            return folder

    def _taken(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return [path for path in self.root.iterdir() if path.is_dir() and re.fullmatch(r"[0-9]{4,}", path.name)]


def _bytes_in(folder: Path) -> int:
    """Return the bytes of the files of a folder; another rank may be writing it, or giving it up."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += file.stat().st_size
    return total


def concatenated(window: Sequence[EventBatch]) -> dict[str, Any]:
    """Return the raw events of a window as plain arrays: ``npho``, ``time``, ``weight``, ``targets_<task>``, identity.

    Axes: B events of all batches in order; npho and time (B, S), targets (B, D).
    """
    columns: dict[str, list[Any]] = {}
    for batch in window:
        parts = {"npho": batch.npho, "time": batch.time, "weight": batch.weight}
        parts |= {f"targets_{task}": values for task, values in batch.targets.items()}
        for name, values in parts.items():
            columns.setdefault(name, []).append(values.cpu().numpy())
        for name in IDENTITY_COLUMNS:
            columns.setdefault(name, []).append(getattr(batch, name))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def identities(window: Sequence[EventBatch]) -> list[list[int]]:
    """Return ``[file_index, entry, run, event]`` of each event of a window."""
    return [
        [int(value) for value in row]
        for batch in window
        for row in zip(batch.file_index, batch.entry, batch.run, batch.event, strict=True)
    ]

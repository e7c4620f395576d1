"""Incident folders of what is no fault of a step: memory that ran out, a phase that does not end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xectool.runlog.status_page import PHASES, Word
from xectool.runlog.writer import RunWriter
from xectool.training.record.incidents import IncidentFolders
from xectool.training.stepping.parts import RunParts

COLUMNS = ("file_index", "entry")


class FailureFolders:
    """Writes ``incident.json`` from the status page alone, so that any thread can, whatever the training thread does.

    The events are named, not kept: they are the same in the files.

    Args:
        parts: What is trained.
        writer: The run's record.
    """

    def __init__(self, parts: RunParts, writer: RunWriter) -> None:
        self.parts = parts
        self.writer = writer
        self.folders = IncidentFolders(writer.run_dir, parts.config.guards.max_incidents, writer.attempt)

    def write(self, kind: str, facts: Mapping[str, Any]) -> str:
        """Write a folder of ``oom`` or ``hang``; return its path relative to the run directory, or an empty string."""
        page, config = self.writer.status, self.parts.config
        events = self._events()
        files = self.parts.train_loader.source.files
        return self.folders.write(
            {
                "kind": kind,
                "step": page[Word.STEP] + 1,
                "epoch": page[Word.EPOCH],
                "batch_start": page[Word.BATCH_START],
                "batch_stop": page[Word.BATCH_STOP],
                "seed": config.training.seed,
                "rank": self.parts.ranks.rank,
                "amp": config.training.amp,
                "batch_size": config.data.batch_size,
                "grad_accum_steps": config.training.grad_accum_steps,
                "phase": PHASES[page[Word.PHASE]],
                "rss_bytes": page[Word.RSS_BYTES],
                "device_bytes": page[Word.DEVICE_BYTES],
                "device_reserved_bytes": page[Word.DEVICE_RESERVED_BYTES],
                "columns": list(COLUMNS),
                "events": events,
                "files": {index: files[index].name for index in sorted({row[0] for row in events})},
                "suspects": [],
                **facts,
            },
            (),
        )

    def _events(self) -> list[list[int]]:
        """Return file index and entry of the events of the batch in progress; none before the first."""
        page, rank = self.writer.status, self.parts.ranks.rank
        epoch, steps = page[Word.BATCH_EPOCH], range(page[Word.BATCH_START], page[Word.BATCH_STOP])
        plan = self.parts.train_loader.plan
        if page[Word.BATCH_START] < 0:
            return []
        found = [plan.batch_events(epoch, step, rank) for step in steps if step < plan.num_steps]
        return [
            [int(index), int(entry)] for files, entries in found for index, entry in zip(files, entries, strict=True)
        ]

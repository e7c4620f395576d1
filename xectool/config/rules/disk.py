"""The rule on free disk, which can be asked once the size of a checkpoint is known."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xectool.config.root import RunConfig
from xectool.config.save_places import nearest_existing, other_save_dir
from xectool.findings import Finding, Report
from xectool.rules import Rule, run_rules

_KEPT_CHECKPOINTS = 3


@dataclass(frozen=True)
class Room:
    """A configuration with the bytes of one of its checkpoints."""

    config: RunConfig
    checkpoint_bytes: int


class DiskHasRoom(Rule[Room]):
    """A full disk in the middle of a run costs the run."""

    code = "CFG-53"
    title = "There is room for three checkpoints"

    def check(self, facts: Room) -> Iterator[Finding]:
        """Yield an error where best, last and the one being written do not fit."""
        directory = Path(facts.config.checkpoint.save_dir).expanduser().absolute()
        existing = nearest_existing(directory)
        free, needed = shutil.disk_usage(existing).free, _KEPT_CHECKPOINTS * facts.checkpoint_bytes
        if free < needed:
            yield self.error(
                "checkpoint.save_dir",
                f"free disk {free / 1e9:.2g} GB in {existing} is below 3 checkpoints ({needed / 1e9:.2g} GB)",
                other_save_dir(directory, needed),
            )


def disk_rules(config: RunConfig, checkpoint_bytes: int) -> Report:
    """Return whether the disk of the run directory holds the checkpoints of a run."""
    return run_rules((DiskHasRoom(),), Room(config, checkpoint_bytes)).report

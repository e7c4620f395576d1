"""What a plotting function returns; importing it does not load matplotlib."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Written:
    """What was written, and what was left out and why.

    Attributes:
        files: Paths in the order they were written.
        notes: One sentence for each page or event that was skipped.
    """

    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

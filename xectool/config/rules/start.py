"""What the rules of a run about to start look at."""

from __future__ import annotations

from dataclasses import dataclass

from xectool.config.root import RunConfig


@dataclass(frozen=True)
class Start:
    """A run about to start.

    Attributes:
        config: Its configuration.
        resuming: Whether the run directory is continued on purpose (``--resume``).
    """

    config: RunConfig
    resuming: bool = False

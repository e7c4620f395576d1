"""How a run of several ranks failed: the first rank may only have lost the one at fault."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xectool.runlog.reader import RunReader
from xectool.runlog.records import EventRecord
from xectool.runlog.run_status import RunStatus

RANK_LOST: Final = "XT-RANK-LOST"


def failed_first(run_dir: Path, status: RunStatus, own: EventRecord | None) -> EventRecord | None:
    """Return how the last attempt failed: as the first rank says, or the one that it lost and that said why."""
    if status.state != "failed" or status.unwritten_end is not None:
        return status.unwritten_end
    if own is None or own.data.get("code") != RANK_LOST:
        return own
    others = (event for event in RunReader(run_dir).of_other_ranks() if event.kind == "failed")
    return min((event for event in others if event.data.get("code") != RANK_LOST), key=_time, default=own)


def _time(event: EventRecord) -> float:
    return event.time

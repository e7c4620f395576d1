"""``diagnose memory``: device or host, capacity or fragmentation or growth or another process; what to change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.diagnosis.reports.memory import MemoryReport, of_log, of_run
from xectool.errors import UsageError
from xectool.runlog.run_dirs import require_record


def memory(source: Path | str) -> MemoryReport:
    """Return what a run directory or a log file says about memory.

    Args:
        source: Run directory, or a log of any program.

    Raises:
        UsageError: There is no such file or directory, or the directory holds no run record.
    """
    place = Path(source).expanduser()
    if place.is_dir():
        evidence = gather(place)
        return of_run(evidence, diagnose(evidence).causes)
    if not place.is_file():
        require_record(place, absent="there is no such run directory or log file")
    return of_log(place, _config_beside(place))


def _config_beside(log: Path) -> Mapping[str, Any]:
    """Return the configuration of the run whose directory a log lies in; empty for that of any other program."""
    try:
        return gather(log.parent).config
    except UsageError:
        return {}

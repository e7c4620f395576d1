"""``diagnose status``: one line a rank and a reading thread."""

from __future__ import annotations

from pathlib import Path

from xectool.diagnosis.reports.status import StatusReport, status_report


def status(run_dir: Path | str) -> StatusReport:
    """Return what every rank and reading thread of a run does now, or did last.

    Args:
        run_dir: Directory of the run; live, hung or dead.

    Raises:
        UsageError: The directory holds no run record.
    """
    return status_report(Path(run_dir).expanduser())

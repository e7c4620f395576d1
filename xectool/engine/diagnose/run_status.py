"""``diagnose status``: one line a rank and a reading thread."""

from __future__ import annotations

from pathlib import Path

from xectool.diagnosis.reports.status import StatusReport, status_report
from xectool.engine.diagnose.hanging import run_named
from xectool.errors import UsageError


def status(run_dir: Path | str | None = None, *, pid: int | None = None) -> StatusReport:
    """Return what every rank and reading thread of a run does now, or did last.

    Args:
        run_dir: Directory of the run; live, hung or dead.
        pid: One of its processes or their launcher, instead.

    Raises:
        UsageError: The directory holds no run record, the process belongs to no run, or not exactly one is named.
    """
    directory = run_named(run_dir, pid, "status")
    if directory is None:
        raise UsageError(
            f"process {pid} belongs to no run of xectool", where="--pid", fix=f"xectool diagnose hang --pid {pid}"
        )
    return status_report(directory)

"""``diagnose query``: any question to the recorder, in SQL."""

from __future__ import annotations

from pathlib import Path

from xectool.runlog.reader import RunReader
from xectool.runlog.sql import QueryRows
from xectool.runlog.sql import query as run_query


def query(run: Path | str, sql: str) -> QueryRows:
    """Run a query over the record of a run, also while it is trained.

    Args:
        run: Directory of the run.
        sql: One statement over the tables ``steps``, ``rank_steps`` (those of all ranks), ``modules``,
            ``epochs``, ``events``, ``stacks``, ``attempts``.

    Raises:
        UsageError: The directory holds no record, or the statement is wrong.
    """
    return run_query(RunReader(Path(run).expanduser()), sql)

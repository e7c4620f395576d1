"""Runs as an MLflow database of this or of the older system has them; the file is read, never changed."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from xectool.errors import ConfigError, TrackerError, UsageError, did_you_mean, in_shell
from xectool.training.tracking.settings import resolve_uri, sqlite_path

LOSSES: Final = ("val/loss", "val/total_loss", "total_loss")
"""Validation losses under the names of this system and of the older one's three trainers."""
_STEP_LOSS: Final = "step/loss"
_BUSY_S: Final = 5.0
# A damaged page may leave text in a column of numbers, an infinite step, a column of another name, or no UTF-8.
_UNREADABLE: Final = (sqlite3.Error, ValueError, IndexError, OverflowError)


@dataclass(frozen=True)
class MlflowRun:
    """One run of the database.

    Attributes:
        run_id: MLflow's own name for it.
        name: Its name, the run id where it has none.
        status: ``running``, ``finished``, ``failed`` or ``killed``.
        started_s: Seconds since 1970, 0 where unknown.
        ended_s: The same; 0 while it runs.
        params: Parameters by name.
        metrics: Metrics of the best epoch, the last one where no validation loss was logged; ``epoch`` among them.
        best: Lowest validation loss, NaN without any.
        epochs: Last epoch.
        steps: Last optimizer step, 0 where steps were not logged.
    """

    run_id: str
    name: str
    status: str
    started_s: float
    ended_s: float
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    best: float
    epochs: int
    steps: int


def mlflow_runs(uri: str) -> tuple[MlflowRun, ...]:
    """Return the runs of a database, oldest first.

    Args:
        uri: ``sqlite:///path``; servers are not asked.

    Raises:
        UsageError: Another kind of store, or no such file.
        TrackerError: The file is locked, damaged or of another program.
    """
    path = _database(uri)
    try:
        with contextlib.closing(_opened(path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                return ()  # nothing was ever logged: MLflow makes its tables then
            return tuple(_runs(connection))
    except _UNREADABLE as error:
        raise TrackerError(
            f"the database cannot be read: {error}", where=str(path), fix=f"xectool diagnose mlflow {in_shell(uri)}"
        ) from error


def mlflow_run(uri: str, name: str) -> MlflowRun:
    """Return the run of that name or id; of several of one name the newest.

    Raises:
        UsageError: There is none; the nearest names are in the message.
        TrackerError: The file cannot be read.
    """
    runs = mlflow_runs(uri)
    found = [run for run in runs if name in (run.name, run.run_id)]
    if found:
        return found[-1]
    names = [run.name for run in runs]
    hint = did_you_mean(name, names)
    raise UsageError(
        f"no run '{name}' in this database" + (f", {hint}" if hint else ""),
        where=uri,
        fix=f"xectool runs --tracking-uri {in_shell(uri)}   # lists the {len(runs)} there are",
    )


def _database(uri: str) -> Path:
    try:
        path = sqlite_path(resolve_uri(uri, "."))
    except ConfigError as error:
        root = Path(uri.removeprefix("file://").removeprefix("file:")).resolve().parent
        target = f"sqlite:///{root / 'mlflow.db'}"
        raise UsageError(
            "only sqlite databases are read, not a directory of files",
            where=uri,
            fix=f"mlflow migrate-filestore --source {in_shell(root)} --target {in_shell(target)}",
        ) from error
    if path is None:
        fix = "--tracking-uri sqlite:////absolute/path/mlflow.db"
        raise UsageError("only sqlite databases are read; look at a server in its own pages", where=uri, fix=fix)
    if not path.is_file():
        raise UsageError("no such database", where=str(path), fix="ls -d *.db; xectool diagnose mlflow")
    return path


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_BUSY_S)
    connection.row_factory = sqlite3.Row
    return connection


def _runs(connection: sqlite3.Connection) -> Iterator[MlflowRun]:
    query = "SELECT * FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time"
    for row in connection.execute(query).fetchall():
        run_id = str(row["run_uuid"])
        history = _history(connection, run_id)
        best, epoch = _best(history)
        yield MlflowRun(
            run_id=run_id,
            name=_name(connection, run_id, row),
            status=str(row["status"]).lower(),
            started_s=float(row["start_time"] or 0) / 1000,
            ended_s=float(row["end_time"] or 0) / 1000,
            params=dict(_pairs(connection, "params", run_id)),
            metrics={key: steps[epoch] for key, steps in history.items() if epoch in steps} | {"epoch": float(epoch)},
            best=best,
            epochs=max((max(steps) for steps in history.values()), default=0),
            steps=_last_step(connection, run_id),
        )


def _name(connection: sqlite3.Connection, run_id: str, row: sqlite3.Row) -> str:
    tag = dict(_pairs(connection, "tags", run_id)).get("mlflow.runName", "")
    return str(row["name"] or tag or run_id)


def _pairs(connection: sqlite3.Connection, table: str, run_id: str) -> list[tuple[str, str]]:
    rows = connection.execute(f"SELECT key, value FROM {table} WHERE run_uuid = ?", (run_id,))
    return [(str(key), str(value)) for key, value in rows]


def _history(connection: sqlite3.Connection, run_id: str) -> dict[str, dict[int, float]]:
    """Return the values of each metric by epoch; what is logged by step is left out."""
    found: dict[str, dict[int, float]] = {}
    query = (
        "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? AND key NOT LIKE 'step/%' ORDER BY timestamp"
    )
    for key, step, value, is_nan in connection.execute(query, (run_id,)):
        found.setdefault(str(key), {})[int(step or 0)] = math.nan if is_nan or value is None else float(value)
    return found


def _best(history: Mapping[str, Mapping[int, float]]) -> tuple[float, int]:
    for name in LOSSES:
        measured = {step: value for step, value in history.get(name, {}).items() if math.isfinite(value)}
        if measured:
            step = min(measured, key=lambda step: measured[step])
            return measured[step], step
    return math.nan, max((max(steps) for steps in history.values()), default=0)


def _last_step(connection: sqlite3.Connection, run_id: str) -> int:
    query = "SELECT max(step) FROM metrics WHERE run_uuid = ? AND key = ?"
    found: Any = connection.execute(query, (run_id, _STEP_LOSS)).fetchone()[0]
    return int(found or 0)

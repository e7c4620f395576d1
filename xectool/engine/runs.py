"""The ``runs`` commands: list runs, compare them, bring a tracking database up to date."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from pathlib import Path

from xectool.engine.arguments import typed
from xectool.engine.mlflow_runs import MlflowRun, mlflow_runs
from xectool.engine.run_comparison import RunDifference, RunsCompared
from xectool.engine.run_comparison import compare as _compare
from xectool.engine.run_files import BEST_METRIC, best_epoch, measurement, resolved_config
from xectool.errors import UsageError, in_shell
from xectool.runlog.damage import record_damage
from xectool.runlog.reader import RunReader
from xectool.runlog.run_dirs import USUAL_DIR, places_of_runs, run_dirs
from xectool.training.tracking import resolve_uri, sync_run

__all__ = [
    "RunDifference", "RunRow", "RunsCompared", "RunsResult", "SyncResult", "compare", "list_runs", "sync",
]  # fmt: skip

compare = typed(_compare, "engine.runs.compare")


@dataclass(frozen=True)
class RunRow:
    """One run in the table.

    Attributes:
        name: Name of the run.
        path: Its directory, or ``mlflow:`` and the id of a run of a database.
        kind: ``regressor``, ``mae``, ``inpainter``, or empty where the configuration is missing or unreadable.
        status: ``running``, ``finished``, ``failed``, ``interrupted``, ``killed`` or ``unknown``; ``unreadable`` where
            the record is of a newer version.
        epochs: Finished epochs.
        steps: Optimizer steps.
        best: Lowest validation loss, NaN where none was measured.
        best_epoch: Epoch of that loss, 0 where none was measured.
        loss_at_end: Validation loss measured at the end of a run that finished no epoch, else NaN.
        ended_by: What ended a finished run before its last epoch, in words; empty where nothing did.
        started: Local time of the first record, ISO 8601; empty without any.
        seconds: Wall time from the first to the last record.
        damage: Files of its record that cannot be read, with what is wrong.
    """

    name: str
    path: str
    kind: str
    status: str
    epochs: int = 0
    steps: int = 0
    best: float = math.nan
    best_epoch: int = 0
    loss_at_end: float = math.nan
    ended_by: str = ""
    started: str = ""
    seconds: float = 0.0
    damage: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunsResult:
    """The runs below a directory, oldest first.

    Attributes:
        root: The directory.
        runs: One row a run.
        elsewhere: Directories below the working directory that hold other runs; of the usual place only.
    """

    root: str
    runs: tuple[RunRow, ...]
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncResult:
    """What a replay did.

    Attributes:
        replayed: Number of points logged now.
        uri: The database.
        run_id: The MLflow run.
    """

    replayed: int
    uri: str
    run_id: str


@typed
def list_runs(root: Path | str = "artifacts", tracking_uri: str | None = None) -> RunsResult:
    """List the runs below a directory or in an MLflow database, live ones included.

    Args:
        root: Directory that holds run directories (``checkpoint.save_dir``), or a run directory.
        tracking_uri: ``sqlite:///path`` of a database, of the older system too; then the directory is not looked at.

    Raises:
        UsageError: The directory or database does not exist.
        TrackerError: The database cannot be read.
    """
    if tracking_uri is not None:
        return RunsResult(tracking_uri, tuple(_mlflow_row(run) for run in mlflow_runs(tracking_uri)))
    place = Path(root).expanduser()
    others = tuple(map(str, _other_places(place))) if place == USUAL_DIR else ()
    if not place.is_dir():
        at = in_shell(others[0]) if others else "DIR   # checkpoint.save_dir of the configuration"
        raise UsageError("there are no runs here: no such directory", where=str(place), fix=f"xectool runs --root {at}")
    rows = (_row(path) for path in run_dirs(place))
    return RunsResult(str(place), tuple(sorted(rows, key=lambda row: row.started)), others)


@typed
def sync(run_dir: Path | str, tracking_uri: str | None = None) -> SyncResult:
    """Replay into MLflow what it misses of a run; nothing that is there is logged again.

    Args:
        run_dir: Directory of the run.
        tracking_uri: Another database; by default the one the run was tracked with.

    Raises:
        UsageError: The directory is not a run, was trained without tracking, or is being mirrored right now.
        ConfigError: The URI cannot be used.
        TrackerError: The database is locked, gone or refuses.
    """
    place = Path(run_dir).expanduser()
    RunReader(place)
    state = sync_run(place, resolve_uri(tracking_uri, place.parent) if tracking_uri else None)
    return SyncResult(state.points, state.uri, state.run_id)


def _other_places(usual: Path) -> list[Path]:
    """Return where below the working directory runs are that a look at the usual place does not find."""
    return [path for path in places_of_runs(Path()) if usual not in (path, *path.parents)]


def _row(path: Path) -> RunRow:
    name, kind = path.resolve().name, ""
    try:
        reader, kind = RunReader(path), _kind(path)
        status, epochs = reader.status(), reader.epochs()
    except UsageError:  # one run of a newer version must not hide the others
        return RunRow(name, str(path), kind, "unreadable")
    best = best_epoch(epochs)
    at_end = None if epochs else measurement(reader, epochs)
    return RunRow(
        name=name,
        path=str(path),
        kind=kind,
        status=status.state,
        epochs=epochs[-1].epoch if epochs else 0,
        steps=status.step,
        best=best.metrics[BEST_METRIC] if best else math.nan,
        best_epoch=best.epoch if best else 0,
        loss_at_end=at_end.loss if at_end else math.nan,
        ended_by=status.ended_by,
        started=local_time(status.started),
        seconds=status.seconds,
        damage=record_damage(path),
    )


def _mlflow_row(run: MlflowRun) -> RunRow:
    return RunRow(
        name=run.name,
        path=f"mlflow:{run.run_id}",
        kind=run.params.get("kind", ""),
        status=run.status,
        epochs=run.epochs,
        steps=run.steps,
        best=run.best,
        best_epoch=int(run.metrics["epoch"]) if math.isfinite(run.best) else 0,
        started=local_time(run.started_s),
        seconds=max(0.0, run.ended_s - run.started_s) if run.ended_s else 0.0,
    )


def local_time(timestamp: float) -> str:
    """Return a time of this machine's zone; nothing for none, and for one that a damaged record holds."""
    try:
        return (
            datetime.datetime.fromtimestamp(timestamp).astimezone().isoformat(timespec="seconds") if timestamp else ""
        )
    except (ValueError, OverflowError, OSError):
        return ""


def _kind(run_dir: Path) -> str:
    try:
        return str(resolved_config(run_dir).get("kind", ""))
    except UsageError:
        return ""

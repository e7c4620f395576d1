"""The only place that calls MLflow; imported only in the mirror's process."""

from __future__ import annotations

import contextlib
import getpass
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import mlflow.exceptions
import sqlalchemy.exc
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

import xectool
from xectool.errors import TrackerError, in_shell
from xectool.runlog.lock import ProcessLock
from xectool.training.tracking.points import EPOCH_MARK, STEP_MARK, Point, Progress
from xectool.training.tracking.settings import TrackerSettings, sqlite_path, without_password

_MAX_PAIRS: Final = 100
_MAX_VALUE_LENGTH: Final = 500
_LOCK_PROBE_S: Final = 0.5
_SETUP_TIMEOUT_S: Final = 60.0
_UID_TAG: Final = "xectool.run_uid"

T = TypeVar("T")


class MlflowStore:
    """One run in one MLflow database; every failure is a `TrackerError`, and every call may be repeated.

    Args:
        settings: Where and as what the run is kept.
        run_dir: Directory of the run.
        started: Wall time of the first record, so that a replay gives the run its true duration.
    """

    def __init__(self, settings: TrackerSettings, run_dir: Path, started: float) -> None:
        self._settings = settings
        self._run_dir = run_dir
        self._started_ms = int(started * 1000)
        self._client: Any = None
        self.run_id = ""

    def connect(self) -> Progress:
        """Find or create the run and return what it already holds.

        Raises:
            TrackerError: The database is locked, gone or refuses.
        """
        return self._guarded(self._connect)

    def log(self, points: Sequence[Point]) -> None:
        """Log at most a thousand points in one transaction."""
        metrics = [Metric(point.name, point.value, point.time_ms, point.step) for point in points]
        self._guarded(lambda: self._client.log_batch(self.run_id, metrics=metrics))

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._guarded(lambda: self._set_tags(tags))

    def upload(self) -> None:
        """Upload the artifacts that exist now; a newer version replaces an older one."""
        self._guarded(self._upload)

    def finish(self, status: str, ended: float) -> None:
        """Set how the run ended: ``FINISHED``, ``FAILED`` or ``KILLED``."""
        self._guarded(lambda: self._client.set_terminated(self.run_id, status, int(ended * 1000)))

    def _guarded(self, action: Callable[[], T]) -> T:
        """Return what ``action`` returns; MLflow's many ways to fail become one error.

        Where another program holds a sqlite file, MLflow would wait 20 s inside C code; asking first keeps the mirror
        answering.
        """
        uri = without_password(self._settings.uri)
        replay = f"xectool runs sync {in_shell(self._run_dir)}"
        fix = f"{replay}   # later; training is not affected"
        try:
            _require_unlocked(sqlite_path(self._settings.uri))
            return action()
        except sqlite3.OperationalError as error:
            path = sqlite_path(self._settings.uri)
            fix = f"fuser -v {in_shell(str(path))}   # who holds it? do not delete the file; later: {replay}"
            raise TrackerError(f"the MLflow database refuses: {error}", where=uri, fix=fix) from error
        except (mlflow.exceptions.MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            reason = without_password(str(error).strip().splitlines()[0][:300])
            raise TrackerError(f"MLflow failed: {reason}", where=uri, fix=fix) from error

    def _connect(self) -> Progress:
        with _setup_lock(sqlite_path(self._settings.uri)):
            self._client = MlflowClient(tracking_uri=self._settings.uri)
            experiment_id = self._experiment_id()
            self.run_id = self._find_run(experiment_id) or self._create_run(experiment_id)
        run = self._client.get_run(self.run_id)
        if run.info.status != "RUNNING":
            self._client.update_run(self.run_id, status="RUNNING")
        self._describe(run.data.params)
        latest = {metric.key: metric.step for metric in run.data.to_proto().metrics}
        return Progress(latest.get(STEP_MARK, 0), latest.get(EPOCH_MARK, 0))

    def _experiment_id(self) -> str:
        name = self._settings.experiment
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name, artifact_location=self._artifact_location()))
        if found.lifecycle_stage != "active":
            raise TrackerError(
                f"the MLflow experiment '{name}' was deleted",
                where=without_password(self._settings.uri),
                fix=f"mlflow experiments restore --experiment-id {found.experiment_id}",
            )
        return str(found.experiment_id)

    def _artifact_location(self) -> str | None:
        """Return an absolute place beside a sqlite file; MLflow's own choice depends on the working directory."""
        path = sqlite_path(self._settings.uri)
        return (path.parent / "mlartifacts" / self._settings.experiment).as_uri() if path else None

    def _find_run(self, experiment_id: str) -> str:
        found = self._client.search_runs([experiment_id], f"tags.`{_UID_TAG}` = '{self._settings.run_uid}'")
        return str(found[0].info.run_id) if found else ""

    def _create_run(self, experiment_id: str) -> str:
        tags = {
            **self._settings.tags,
            _UID_TAG: self._settings.run_uid,
            "xectool.version": xectool.__version__,
            "xectool.run_dir": str(self._run_dir.resolve()),
            "mlflow.source.name": "xectool train",
            "mlflow.source.type": "LOCAL",
            "mlflow.user": _user(),
        }
        run = self._client.create_run(
            experiment_id, start_time=self._started_ms, tags=_shortened(tags), run_name=self._settings.run_name
        )
        return str(run.info.run_id)

    def _describe(self, logged: Mapping[str, str]) -> None:
        """Log the first attempt's params where they are missing, and what later attempts changed as tags."""
        params = _shortened(self._settings.params)
        missing = {name: value for name, value in params.items() if name not in logged}
        for part in _parts(missing):
            self._client.log_batch(self.run_id, params=[Param(*pair) for pair in part])
        tags: dict[str, str] = {}
        for attempt, later in self._settings.resumed_params.items():
            changed = {name: value for name, value in _shortened(later).items() if value != params.get(name)}
            tags.update({f"resume_{int(attempt) - 1}/{name}": value for name, value in changed.items()})
        self._set_tags(tags)

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        for part in _parts(_shortened(tags)):
            self._client.log_batch(self.run_id, tags=[RunTag(*pair) for pair in part])

    def _upload(self) -> None:
        for pattern in self._settings.artifacts:
            for path in sorted(self._run_dir.glob(pattern)):
                if path.is_file():
                    folder = path.parent.relative_to(self._run_dir).as_posix()
                    self._client.log_artifact(self.run_id, str(path), "" if folder == "." else folder)


def _require_unlocked(path: Path | None) -> None:
    """Raise sqlite's own error where another process keeps the file from being written."""
    if path is None or not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_PROBE_S, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")


@contextlib.contextmanager
def _setup_lock(path: Path | None) -> Iterator[None]:
    """Let one mirror at a time create tables: two that do it in one new sqlite file destroy each other's work."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(path.with_name(f".{path.name}.setup"))
    if not lock.acquire(_SETUP_TIMEOUT_S):
        raise OSError(f"process {lock.holder()} has been creating its tables for more than {_SETUP_TIMEOUT_S:.0f} s")
    with lock:
        yield


def _parts(values: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs in the portions MLflow takes in one call."""
    pairs = iter(sorted(values.items()))
    while part := list(islice(pairs, _MAX_PAIRS)):
        yield part


def _shortened(values: Mapping[str, str]) -> dict[str, str]:
    return {name: str(value)[:_MAX_VALUE_LENGTH] for name, value in values.items()}


def _user() -> str:
    # A container may run under a number that has no name.
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())

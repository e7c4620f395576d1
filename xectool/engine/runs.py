"""The ``runs`` commands: list runs, compare two of them, bring a tracking database up to date."""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from xectool.config.serialize import dotted_values
from xectool.errors import UsageError
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord
from xectool.runlog.storage import RECORD_DIR
from xectool.training.tracking import resolve_uri, sync_run

CONFIG_FILE: Final = "config.yaml"
BEST_METRIC: Final = "val/loss"


@dataclass(frozen=True)
class RunRow:
    """One run in the table.

    Attributes:
        name: Name of the run.
        path: Its directory.
        kind: ``regressor``, ``mae``, ``inpainter``, or empty where the configuration is missing or unreadable.
        status: ``running``, ``finished``, ``failed``, ``interrupted``, ``killed`` or ``unknown``; ``unreadable`` where
            the record is of a newer version.
        epochs: Finished epochs.
        steps: Optimizer steps.
        best: Lowest validation loss, NaN where none was measured.
        best_epoch: Epoch of that loss, 0 where none was measured.
        started: Local time of the first record, ISO 8601; empty without any.
        seconds: Wall time from the first to the last record.
    """

    name: str
    path: str
    kind: str
    status: str
    epochs: int = 0
    steps: int = 0
    best: float = math.nan
    best_epoch: int = 0
    started: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class RunsResult:
    """The runs below a directory, oldest first."""

    root: str
    runs: tuple[RunRow, ...]


@dataclass(frozen=True)
class RunDifference:
    """One configuration key or metric of two runs; None where a run does not have it."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True)
class RunsCompared:
    """Two runs side by side.

    Attributes:
        first: Directory of the first run.
        second: Directory of the second run.
        config: The configuration keys on which they differ.
        metrics: All metrics of the best epoch of each run.
    """

    first: str
    second: str
    config: tuple[RunDifference, ...]
    metrics: tuple[RunDifference, ...]


@dataclass(frozen=True)
class SyncResult:
    """What a replay did: number of points logged now, into which database, as which MLflow run."""

    replayed: int
    uri: str
    run_id: str


def list_runs(root: Path | str = "artifacts") -> RunsResult:
    """List the runs below a directory, live ones included.

    Args:
        root: Directory that holds run directories (``checkpoint.save_dir``), or a run directory.

    Raises:
        UsageError: The directory does not exist.
    """
    place = Path(root).expanduser()
    if not place.is_dir():
        raise UsageError("no such directory", where=str(place), fix="xectool runs --root DIRECTORY_OF_YOUR_RUNS")
    rows = (_row(path) for path in _run_dirs(place))
    return RunsResult(str(place), tuple(sorted(rows, key=lambda row: row.started)))


def compare(first: Path | str, second: Path | str) -> RunsCompared:
    """Compare configuration and metrics of two runs.

    Raises:
        UsageError: A directory is not a run.
    """
    a, b = Path(first).expanduser(), Path(second).expanduser()
    config = _differences(dotted_values(_config(a)), dotted_values(_config(b)))
    metrics = _differences(_best_metrics(a), _best_metrics(b), only_unequal=False)
    return RunsCompared(str(a), str(b), config, metrics)


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


def _run_dirs(root: Path) -> Iterator[Path]:
    patterns = (RECORD_DIR, f"*/{RECORD_DIR}", f"*/*/{RECORD_DIR}")
    yield from (path.parent for pattern in patterns for path in sorted(root.glob(pattern)) if any(path.glob("a[0-9]*")))


def _row(path: Path) -> RunRow:
    name, kind = path.resolve().name, _kind(path)
    try:
        reader = RunReader(path)
        status, epochs = reader.status(), reader.epochs()
    except UsageError:  # one run of a newer version must not hide the others
        return RunRow(name, str(path), kind, "unreadable")
    best = _best(epochs)
    return RunRow(
        name=name,
        path=str(path),
        kind=kind,
        status=status.state,
        epochs=epochs[-1].epoch if epochs else 0,
        steps=status.step,
        best=best.metrics[BEST_METRIC] if best else math.nan,
        best_epoch=best.epoch if best else 0,
        started=_local_time(status.started) if status.started else "",
        seconds=status.seconds,
    )


def _local_time(timestamp: float) -> str:
    return datetime.datetime.fromtimestamp(timestamp).astimezone().isoformat(timespec="seconds")


def _kind(run_dir: Path) -> str:
    try:
        return str(_config(run_dir).get("kind", ""))
    except UsageError:
        return ""


def _best(epochs: list[EpochRecord]) -> EpochRecord | None:
    """Return the epoch of the lowest validation loss; a loss that is not finite is never the best."""
    measured = [record for record in epochs if math.isfinite(record.metrics.get(BEST_METRIC, math.nan))]
    return min(measured, key=lambda record: record.metrics[BEST_METRIC], default=None)


def _best_metrics(run_dir: Path) -> dict[str, Any]:
    epochs = RunReader(run_dir).epochs()
    best = _best(epochs) or (epochs[-1] if epochs else None)
    return {"epoch": best.epoch, **best.metrics} if best else {}


def _config(run_dir: Path) -> Mapping[str, Any]:
    path = run_dir / CONFIG_FILE
    if not path.exists():
        fix = "name the directory of a run; `xectool runs` lists them"
        raise UsageError("this directory holds no resolved configuration", where=str(path), fix=fix)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        content = str(error).partition("\n")[0]
    if isinstance(content, Mapping):
        return content
    problem = f"the resolved configuration cannot be read: {content or 'it is empty'}"
    raise UsageError(problem, where=str(path), fix=f"head {shlex.quote(str(path))}")


def _differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, only_unequal: bool = True
) -> tuple[RunDifference, ...]:
    keys = [*first, *(key for key in second if key not in first)]
    pairs = (RunDifference(key, first.get(key), second.get(key)) for key in keys)
    return tuple(pair for pair in pairs if not only_unequal or pair.first != pair.second)

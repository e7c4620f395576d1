"""``runs compare``: configuration keys that differ, and metrics with their statistical errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xectool.config.document import CONFIG_FILE
from xectool.config.serialize import dotted_values
from xectool.engine.mlflow_runs import mlflow_run
from xectool.engine.predicted_state import PREDICTIONS, stale_predictions
from xectool.engine.run_comparability import errors_missing, is_same, losses_differ
from xectool.engine.run_files import Measurement, measurement, resolved_config
from xectool.errors import MisnamedRun
from xectool.runlog.metrics import with_unit
from xectool.runlog.reader import RunReader
from xectool.runlog.run_dirs import USUAL_DIR, require_record, run_called
from xectool.training.tracking.params import run_params

if TYPE_CHECKING:
    from xectool.report.predictions import PredictionFile
    from xectool.tasks.paired import PairedMetric
    from xectool.tasks.residuals import Columns


@dataclass(frozen=True)
class RunDifference:
    """One configuration key or metric; None where a run does not have it.

    Attributes:
        key: Name of the key or metric.
        first: Value of the first run.
        second: Value of the second run.
        values: Values of all runs.
        absent: For each run whether it does not know the key at all; None is a value of some keys.
        errors: Of a metric, the statistical errors of the values; None where they are not known.
        differences: Of a metric with errors, each run minus the first one, from the second run on.
        difference_errors: Errors of the differences; smaller than those of the values, as the events are the same.
    """

    key: str
    first: Any
    second: Any
    values: tuple[Any, ...] = ()
    absent: tuple[bool, ...] = ()
    errors: tuple[float | None, ...] = ()
    differences: tuple[float | None, ...] = ()
    difference_errors: tuple[float | None, ...] = ()

    @property
    def title(self) -> str:
        """Return the name as it is shown: that of a metric with its unit."""
        return with_unit(self.key)


@dataclass(frozen=True)
class RunsCompared:
    """Runs side by side.

    Attributes:
        first: The first run.
        second: The second run.
        runs: All of them.
        config: The configuration keys on which they differ; parameters where one of them is of MLflow.
        metrics: All metrics of the best epoch of each run; of one without any epoch, those measured at its end.
        events: Events whose predictions gave the errors; 0 without.
        without_config: Runs whose ``config.yaml`` is gone, or without parameters in MLflow; with one of them no keys
            are compared.
        notes: Why losses are not comparable, why metrics have no error, what is not of a best epoch; a line each.
    """

    first: str
    second: str
    runs: tuple[str, ...]
    config: tuple[RunDifference, ...]
    metrics: tuple[RunDifference, ...]
    events: int
    without_config: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Side:
    label: str
    config: Mapping[str, Any] | None
    params: Mapping[str, str]
    metrics: Mapping[str, Any]
    directory: Path | None = None  # None of a run that only a database tells of
    measured: Measurement | None = None

    @property
    def has_settings(self) -> bool:
        return bool(self.config or self.params)


def compare(
    first: Path | str,
    second: Path | str,
    *others: Path | str,
    tracking_uri: str | None = None,
    root: Path | str = USUAL_DIR,
) -> RunsCompared:
    """Compare configuration and metrics of runs.

    Errors of metrics come from the predictions that a training writes at its end, where all runs have them of the same
    validation events, made with the weights whose metrics are compared.

    Args:
        first: Run directory, or its name below ``root``, or name or id of an MLflow run; what the others are compared
            with.
        second: The same.
        others: Further ones.
        tracking_uri: Database in which names that are no run directories are looked up.
        root: Directory below which they are looked up else.

    Raises:
        UsageError: A directory is not a run, or the database has no run of that name.
        TrackerError: The database cannot be read.
    """
    sides = _sides((first, second, *others), tracking_uri, Path(root).expanduser())
    recorded = _rows([side.metrics for side in sides])
    measured, events, reasons = _measured(sides)
    metrics = {item.key: item for item in (*recorded, *measured)}
    without = sum(not item.errors for item in metrics.values() if item.key != "epoch")
    has_losses = all("val/loss" in side.metrics for side in sides)
    apart = losses_differ([side.config for side in sides]) if has_losses else ""
    at_end = (_measured_at_end(side) for side in sides)
    notes = apart, *at_end, *(errors_missing(without, events, reason) for reason in reasons or ("",))
    labels = tuple(side.label for side in sides)
    bare = tuple(side.label for side in sides if not side.has_settings)
    differing = () if bare else _differences(sides)
    told = tuple(filter(None, notes))
    return RunsCompared(labels[0], labels[1], labels, differing, tuple(metrics.values()), events, bare, told)


def _differences(sides: Sequence[_Side]) -> tuple[RunDifference, ...]:
    """Return the settings in which runs differ."""
    flat = any(side.config is None for side in sides)
    settings = [side.params if flat else dotted_values(side.config or {}) for side in sides]
    differing = (
        item for item in _rows(settings) if any(item.absent) or not all(is_same(item.first, v) for v in item.values)
    )
    # Only a trainer knows some parameters, and each version logs others.
    return tuple(item for item in differing if not (flat and any(item.absent)))


def _sides(places: Sequence[Path | str], tracking_uri: str | None, root: Path) -> list[_Side]:
    """Return the runs.

    Raises:
        MisnamedRun: Some places are none; it names all of them.
    """
    sides, misnamed = [], []
    for place in places:
        try:
            sides.append(_side(place, tracking_uri, root))
        except MisnamedRun as error:
            misnamed.append(error)
    if misnamed:
        raise misnamed[0].joined(misnamed[1:])
    return sides


def _side(place: Path | str, tracking_uri: str | None, root: Path) -> _Side:
    directory = Path(place).expanduser() if tracking_uri is not None else run_called(place, root)
    if tracking_uri is not None and not (directory / CONFIG_FILE).exists():
        run = mlflow_run(tracking_uri, str(place))
        return _Side(run.name, None, run.params, run.metrics)
    config = resolved_config(directory) if (directory / CONFIG_FILE).exists() else None
    if config is None:
        require_record(directory)
    reader = RunReader(directory)
    known = measurement(reader, reader.epochs())
    metrics = {"epoch": known.epoch, **known.metrics} if known else {}
    params = run_params(config, {}) if config is not None else {}
    return _Side(str(directory), config, params, metrics, directory, known)


def _measured_at_end(side: _Side) -> str:
    known = side.measured
    if known is None or known.epoch:
        return ""
    return f"{side.label} finished no epoch: its metrics were measured at its end, after step {known.step}"


def _rows(values: Sequence[Mapping[str, Any]]) -> list[RunDifference]:
    keys = dict.fromkeys(key for own in values for key in own)
    return [
        RunDifference(
            key,
            values[0].get(key),
            values[1].get(key),
            tuple(own.get(key) for own in values),
            tuple(key not in own for own in values),
        )
        for key in keys
    ]


def _measured(sides: Sequence[_Side]) -> tuple[list[RunDifference], int, tuple[str, ...]]:
    """Return metrics with errors, and the number of events; else why the runs did not predict the same ones."""
    if unplaced := [side.label for side in sides if side.directory is None]:
        return [], 0, (f"only a database tells of {', '.join(unplaced)}; errors need the directories of the runs",)
    placed = [(side, side.directory) for side in sides if side.directory is not None]
    if lacking := [side.label for side, place in placed if not (place / PREDICTIONS).is_file()]:
        return [], 0, (f"no {PREDICTIONS} of {', '.join(lacking)}, which a training writes at its end",)
    stale = (stale_predictions(place, side.config, side.measured) for side, place in placed)
    if reasons := tuple(filter(None, stale)):
        return [], 0, reasons
    return _with_events([place / PREDICTIONS for _, place in placed])


def _with_events(paths: Sequence[Path]) -> tuple[list[RunDifference], int, tuple[str, ...]]:
    """Return the metrics of prediction files of the same events, as `_measured`."""
    # torch and uproot, which the rest does without
    from xectool.config.tasks import HEADLINE_METRICS
    from xectool.report.predictions import PredictionFile

    with ExitStack() as stack:
        files = [stack.enter_context(PredictionFile(path)) for path in paths]
        tasks = [name for name in files[0].tasks if name in HEADLINE_METRICS and all(name in f.tasks for f in files)]
        if not tasks:
            return [], 0, (f"the files {PREDICTIONS} of the runs share no task that is measured event by event",)
        if not all(_same_events(files[0], file) for file in files[1:]):
            return [], 0, ("the runs predicted other validation events",)
        return [row for task in tasks for row in _task_rows(task, files)], files[0].num_events, ()


def _same_events(first: PredictionFile, second: PredictionFile) -> bool:
    if first.num_events != second.num_events:
        return False
    ours, theirs = first.identity(), second.identity()
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


def _task_rows(task: str, files: Sequence[PredictionFile]) -> Iterator[RunDifference]:
    from xectool.tasks.paired import paired_metrics
    from xectool.tasks.residuals import residual_columns

    found = [predictions for file in files if (predictions := file.task(task)) is not None]
    if len(found) < len(files):
        return
    shared = reduce(np.intersect1d, [predictions.rows for predictions in found])
    columns: dict[str, Columns] = {}
    for number, own in enumerate(found):
        kept = np.isin(own.rows, shared)
        sigma = None if own.sigma is None else own.sigma[kept]
        columns[str(number)] = residual_columns(task, own.prediction[kept], own.truth[kept], sigma)
    if len(shared):
        yield from (_with_errors(metric) for metric in paired_metrics(task, columns, "0"))


def _with_errors(metric: PairedMetric) -> RunDifference:
    values, errors = (tuple(found.values()) for found in (metric.values, metric.value_errors))
    differences = tuple(metric.differences.values())
    return RunDifference(
        metric.metric,
        values[0],
        values[1],
        values,
        absent=len(values) * (False,),
        errors=errors,
        differences=differences,
        difference_errors=tuple(metric.errors.values()),
    )

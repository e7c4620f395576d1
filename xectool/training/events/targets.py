"""Measure the spread of each target, so that nanoseconds train as well as degrees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from xectool.config.guards import GuardsConfig
from xectool.config.impossible_room import room_for_impossible
from xectool.config.left_out import leaving_out
from xectool.config.root import RegressorConfig
from xectool.config.tasks import TaskConfig
from xectool.config.truth_mends import BY_HAND, MOST_NAMED, constant_mends
from xectool.data.events import EventSource
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.detector.truth_ranges import are_few, impossible, never_filled, no_number, told_no_number
from xectool.errors import ConfigError, DataUnusable, in_shell
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Mend
from xectool.models.heads import LOG_FLOOR

PLAUSIBLE_SIGMA = 200.0  # the times of pile-up lie up to 100 widths of the peak away, and are no damage
FAR_SIGMA = 20.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution


def resolve_target_scaling(config: RegressorConfig, source: EventSource) -> RegressorConfig:
    """Return the configuration with every ``scale: auto`` and ``shift: auto`` replaced by numbers.

    The scale of a task is one number, the root mean square spread over its components, so components keep their
    relative weight; the shift is the mean of each component. Both refer to the logarithm under ``log_transform``.
    Events that training will leave out set no scale, for their unit would stay: those whose truth none can have, and
    in a run that heals itself the few far from all others.

    Raises:
        DataUnusable: No training event has a known truth of a task, or the truth is constant.
        ConfigError: ``log_transform`` meets a truth that is not positive.
    """
    require_logarithms(config, source)
    tasks = config.tasks.enabled()
    known = {name: np.concatenate(known_truth(name, source)) for name in tasks}
    left_out = rows_left_out(config.guards, source, tasks)
    resolved = {}
    for name, task in tasks.items():
        if _is_auto(task):
            truth = known[name][~left_out[name]]
            resolved[name] = _resolve(name, tasks, truth[~_far_few(config, task, truth)], source)
    return config.model_copy(update={"tasks": config.tasks.model_copy(update=resolved)}) if resolved else config


def measured_scales(config: RegressorConfig, truths: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return what ``scale: auto`` measures of the truth of each task in all events, shape (n, D); NaN of too few."""
    left_out, found = _impossible_few(config.guards, truths), {}
    for name, task in config.tasks.enabled().items():
        truth = truths[name][is_known(truths[name])][~left_out[name]]
        measured = _measured(task, truth[~_far_few(config, task, truth)]) if len(truth) else truth
        measured = measured[plausible(measured)] if len(measured) else measured
        found[name] = _spread(measured) if len(measured) > 1 else math.nan
    return found


def _spread(truth: np.ndarray) -> float:
    return float(np.sqrt(truth.var(axis=0).mean()))


def rows_left_out(guards: GuardsConfig, source: EventSource, tasks: Iterable[str]) -> dict[str, np.ndarray]:
    """Return which known truths of each task no event can have, bool (n,), where their events are few enough.

    An event counts once, whatever number of its truths cannot be.

    Args:
        guards: Say how many may be left out.
        source: Training events.
        tasks: Tasks that are trained.
    """
    truths = {name: np.concatenate([source.truth(index, name) for index in range(len(source.files))]) for name in tasks}
    return _impossible_few(guards, truths)


def _impossible_few(guards: GuardsConfig, truths: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {name: impossible(name, truth) for name, truth in truths.items()}
    bad = np.any(list(found.values()), axis=0) if found else np.zeros(0, bool)
    is_few = int(bad.sum()) <= room_for_impossible(guards, len(bad))
    return {name: found[name][is_known(truth)] & is_few for name, truth in truths.items()}


def _is_auto(task: TaskConfig) -> bool:
    return task.scale == "auto" or task.shift == "auto"


def _measured(task: TaskConfig, truth: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(truth, LOG_FLOOR)) if task.log_transform else truth


def _far_few(config: RegressorConfig, task: TaskConfig, truth: np.ndarray) -> np.ndarray:
    """Return the few events, bool (B,), 20 to 200 robust standard deviations away in a run that takes spikes back."""
    measured = _measured(task, truth)
    far = plausible(measured) & ~plausible(measured, FAR_SIGMA)
    return far if _heals(config) and are_few(int(far.sum()), len(far)) else np.zeros(len(far), bool)


def _heals(config: RegressorConfig) -> bool:
    return config.guards.on_spike == "rewind"


def _resolve(name: str, tasks: Mapping[str, TaskConfig], truth: np.ndarray, source: EventSource) -> TaskConfig:
    task = tasks[name]
    truth = _measured(task, truth)
    # One corrupted value a thousand times too large would set the unit of all others.
    truth = truth[plausible(truth)]
    if len(truth) == 1:
        raise DataUnusable(
            f"files and cuts leave one training event with a known truth for task '{name}'",
            where="data.train_path, data.fiducial",
            fix="give more files, or widen the cut: data.fiducial.enabled: false",
            code="XT-DATA-NO-EVENTS",
        )
    spread = _spread(truth)
    if not spread > 0:
        raise DataUnusable(
            f"the truth of task '{name}' is the same in all {len(truth)} training events: {truth[0].tolist()}",
            where=f"branch {source.branches.truth[name]}",
            fix="   # or, to train on it all the same: ".join(constant_mends(name, tasks)),
            code="XT-DATA-CONSTANT",
        )
    changes: dict[str, object] = {}
    if task.scale == "auto":
        changes["scale"] = spread
    if task.shift == "auto":
        changes["shift"] = tuple(float(mean) for mean in truth.mean(axis=0))
    return task.model_copy(update=changes)


def require_logarithms(config: RegressorConfig, source: EventSource) -> None:
    """Refuse events whose truth has no logarithm although its task takes one.

    Raises:
        ConfigError: Naming the first such event with its file.
    """
    for name in (name for name, task in config.tasks.enabled().items() if task.log_transform):
        for index, file in enumerate(source.files):
            truth = source.truth(index, name)
            rows = np.flatnonzero(((truth <= 0) & (truth > -UNKNOWN_ABOVE)).any(axis=1))
            if len(rows):
                entry = int(rows[0] if file.selected is None else file.selected[rows[0]])
                raise ConfigError(
                    f"log_transform needs positive truth, but {name} is {truth[rows[0]].tolist()}",
                    where=f"{file.name} entry {entry}, branch {source.branches.truth[name]}",
                    fix=f"tasks.{name}.log_transform: false",
                    code="CFG-10",
                )


def odd_truth(source: EventSource) -> Iterator[Finding]:
    """Yield a warning for each task whose truth is no number in some events; of many `check-data` makes an error.

    They are left out of the task's loss and metrics, as events are whose truth is marked as unknown by 1e10.
    """
    for name, branch in source.branches.truth.items():
        count, first, mends = 0, "", list[Mend]()
        for index, file in enumerate(source.files):
            rows = np.flatnonzero(no_number(name, source.truth(index, name)))
            if len(rows) and not count:
                entry = int(rows[0]) if file.selected is None else int(file.selected[rows[0]])
                first = f"{file.name} branch {branch} entry {entry}"
            if len(rows):
                mends.append(Mend(file.path, file.tree, branch, Change(is_finite=True)))
            count += len(rows)
        if count:
            yield Finding(
                "DAT-16",
                Severity.WARNING,
                told_no_number(name, count, source.num_events) + ", which take no part in its loss and metrics",
                where=first,
                fix=BY_HAND,
                mends=tuple(mends),
            )


def stretched_scales(config: RegressorConfig, source: EventSource) -> Iterator[Finding]:
    """Yield a warning for each ``scale: auto`` that few events make more than sqrt(2) times as wide as all others do.

    They lie beyond 20 robust standard deviations; what lies beyond 200 sets no scale (`plausible`), and neither do they
    where a run heals itself, nor what no event can have where that is left out (`rows_left_out`).
    """
    makes, tasks = "would make" if _heals(config) else "makes", config.tasks.enabled()
    read = {
        name: [source.truth(index, name).astype(np.float64) for index in range(len(source.files))] for name in tasks
    }
    known = {name: np.flatnonzero(is_known(np.concatenate(truths))) for name, truths in read.items()}
    left_out = rows_left_out(config.guards, source, tasks)
    for name, task in ((name, task) for name, task in tasks.items() if task.scale == "auto"):
        truths, truth, rows = read[name], np.concatenate(read[name]), known[name][~left_out[name]]
        measured = _measured(task, truth[rows])
        kept = plausible(measured) if len(rows) else np.zeros(0, bool)
        rows, measured = rows[kept], measured[kept]
        near = plausible(measured, FAR_SIGMA) if len(rows) > 1 else np.ones(len(rows), bool)
        num_far = int(np.count_nonzero(~near))
        if not (num_far and are_few(num_far, len(rows))):
            continue
        worst = int(((measured - np.median(measured, axis=0)) ** 2).sum(axis=1).argmax())
        wide, narrow = (float(np.sqrt(part.var(axis=0).mean())) for part in (measured, measured[near]))
        if not wide**2 > 2 * narrow**2 > 0:
            continue
        ends = np.cumsum([len(part) for part in truths])
        index = int(np.searchsorted(ends, rows[worst], side="right"))
        row, file = int(rows[worst] - ends[index] + len(truths[index])), source.files[index]
        entry = row if file.selected is None else int(file.selected[row])
        alone = f"--set {in_shell(leaving_out(config.data, (file.name, entry)))}"
        yield Finding(
            "DAT-16",
            Severity.WARNING,
            f"the truth of task {name} lies beyond {FAR_SIGMA:g} robust standard deviations in {num_far} of "
            f"{len(rows)} events, farthest at {truths[index][row].tolist()}, which {makes} tasks.{name}.scale: auto "
            f"{wide / narrow:.2g} times as wide: {wide:.3g}, else {narrow:.3g}"
            + ("; it goes by the others, as guards.on_spike is rewind" if _heals(config) else ""),
            where=f"{file.name} branch {source.branches.truth[name]} entry {entry}",
            fix=f"{alone if num_far == 1 else 'leave these events out (data.exclude)'}, or --set "
            f"tasks.{name}.scale={narrow:.3g}",
        )


def plausible(truth: np.ndarray, sigmas: float = PLAUSIBLE_SIGMA) -> np.ndarray:
    """Return which events have a truth within 200 robust standard deviations of the median in every component.

    The robust standard deviation is 1.4826 times the median distance from the median, as for a normal distribution; a
    component where that is zero tells nothing. In sound data every event is plausible.

    Args:
        truth: Any units, shape (B, D).
        sigmas: Another number of standard deviations.

    Returns:
        Booleans, shape (B,).
    """
    distance = np.abs(truth - np.median(truth, axis=0))
    sigma = MAD_TO_SIGMA * np.median(distance, axis=0)
    return np.asarray(((distance <= sigmas * sigma) | (sigma == 0)).all(axis=1))


def truth_by_file(name: str, source: EventSource) -> list[np.ndarray]:
    """Return the known truth of a task in physical units, float64, shape (B, D), of each file."""
    found = [source.truth(index, name).astype(np.float64) for index in range(len(source.files))]
    return [truth[is_known(truth)] for truth in found]


def is_known(truth: np.ndarray) -> np.ndarray:
    """Return which truths of a task, shape (B, D), are known in every component: bool (B,)."""
    return np.asarray((np.isfinite(truth) & (np.abs(truth) < UNKNOWN_ABOVE)).all(axis=1))


def count_truth(name: str, source: EventSource, is_odd: Callable[[str, np.ndarray], np.ndarray]) -> dict[str, Any]:
    """Return how many events have an odd truth of a task, and the first of them; empty without any.

    Args:
        name: The task.
        source: Its events.
        is_odd: Whether a truth is, shape (B,), of the task and its truth, shape (B, D).

    Returns:
        ``count``, ``file`` as its index, ``entry`` and ``value`` of the first, in how many events it stands as all of
        their truth (``same``), and the first sixteen as index of the file and entry (``places``).
    """
    count = same = 0
    places: list[tuple[int, int]] = []
    first: dict[str, Any] = {}
    for index, file in enumerate(source.files):
        truth = source.truth(index, name)
        rows = np.flatnonzero(is_odd(name, truth))
        count += len(rows)
        entries = rows if file.selected is None else file.selected[rows]
        places += [(index, int(entry)) for entry in entries[: MOST_NAMED - len(places)]]
        if len(rows) and not first:
            value = truth[rows[0]]
            first = {"file": index, "entry": places[0][1], "value": float(value[np.abs(value).argmax()])}
        if first:
            same += int((truth == np.float32(first["value"])).all(axis=1).sum())
    return {"count": count, **first, "same": same, "places": places} if first else {}


def known_truth(name: str, source: EventSource) -> list[np.ndarray]:
    """Return the same of a task that is learned from it.

    Raises:
        DataUnusable: No event has a known truth.
    """
    known = truth_by_file(name, source)
    if all(never_filled(name, rows).all() for rows in known):
        raise DataUnusable(
            f"none of the {source.num_events} training events has a known truth for task '{name}'",
            where=f"branch {source.branches.truth[name]} (unknown means NaN, infinite, 1e10, or 0 where none can be)",
            fix=f"tasks.{name}.enabled: false",
            code="XT-DATA-NO-TRUTH",
        )
    return known

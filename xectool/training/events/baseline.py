"""What a prediction that does not look at the event reaches; a network that has learned must beat it.

Axes: B events, D components of a target, S sensors, C channels, G groups of sensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from xectool.config.left_out import leaving_out
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.truth_mends import MOST_NAMED, FileUnit, UnitsOfTruth, excluding, possible
from xectool.data.batch import EventBatch
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan
from xectool.detector.truth_ranges import (
    NEVER_FILLED_FIX,
    impossible,
    never_filled,
    no_number,
    other_unit,
    told_impossible,
    told_never_filled,
    typical_size,
)
from xectool.errors import in_shell
from xectool.findings import Finding, Severity
from xectool.findings.mends import Mend
from xectool.tasks.balance import ManualBalance
from xectool.tasks.base import TrainingTask
from xectool.tasks.sensor_task import SensorTask
from xectool.training.events.targets import count_truth, known_truth, plausible, rows_left_out, truth_by_file

Places = Collection[tuple[int, int]]  # index of the file, entry

FEWEST_OF_FILE = 10  # events whose truth tells its unit
SENSOR_EVENTS = 128  # with some hundred hidden sensors each
SENSOR_BATCH = 32
TOTAL = "total"
"""Name of the objective among the terms."""
MAX_EVENTS = 20_000  # evenly over the training events; the loss of a constant is known to a percent long before


@dataclass(frozen=True)
class Baseline:
    """What is known before the first step.

    Attributes:
        terms: Loss of the best constant prediction, by term; a task without truth has none.
        target_std: Spread of each task's truth in physical units, root mean square over its components.
        objective: The terms as the task combines them, or NaN.
        val_terms: The same as ``terms`` for the validation events; none without truth, or of the sensor kinds.
        units: Unit the truth of a task seems to be in, where that is another than it should be.
        val_units: The same of the tasks whose training files are in their unit.
        unit_files: The files in another unit with their trees, by task, as far as they can be told from others.
        val_unit_files: The same of ``val_units``.
        impossible: What `count_truth` found of each task with a truth that no event can have.
        never_filled: The same of truths of exactly 0.
        no_number: The same of truths that are NaN or infinite.
        findings: What the truth cannot be, to be said before the first step.
        left_out: Tasks with a truth that no event can have in so few events that training leaves those out.
        far: Share of the training events whose truth of a task is far from all others, by task.
    """

    terms: dict[str, float] = field(default_factory=dict)
    target_std: dict[str, float] = field(default_factory=dict)
    objective: float = math.nan
    far: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    val_units: dict[str, str] = field(default_factory=dict)
    unit_files: dict[str, list[str]] = field(default_factory=dict)
    val_unit_files: dict[str, list[str]] = field(default_factory=dict)
    val_terms: dict[str, float] = field(default_factory=dict)
    impossible: dict[str, dict[str, Any]] = field(default_factory=dict)
    never_filled: dict[str, dict[str, Any]] = field(default_factory=dict)
    no_number: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, config: RunConfig, task: TrainingTask, source: EventSource, val: EventSource, late: Places = ()
    ) -> Baseline:
        """Measure it on the training events, without those whose truth is far from all others.

        Args:
            config: The run.
            task: Its task.
            source: Training events.
            val: Those of validation.
            late: Training events that are left out since an epoch began: they count as left out.
        """
        source = source.without(late)
        if isinstance(task, SensorTask):
            return cls.of_sensors(task, first_events(config, source))
        if not isinstance(config, RegressorConfig):
            return cls()
        by_file = {name: known_truth(name, source) for name in task.terms}
        known = {name: np.concatenate(parts) for name, parts in by_file.items()}
        gone = rows_left_out(config.guards, source, known)
        sound = {name: plausible(values) & ~gone[name] for name, values in known.items()}
        truth = {name: _sample(values[sound[name]]) for name, values in known.items()}
        spread = {name: float(np.sqrt(values.var(axis=0).mean())) for name, values in truth.items()}
        terms = task.trivial_losses(truth)
        validated = {name: truth_by_file(name, val) for name in task.terms}
        of_val = {name: _plausible_sample(parts) for name, parts in validated.items()}
        units = _units(source, by_file, truth)
        val_units = _units(val, validated, of_val)
        val_terms = task.trivial_losses(of_val)
        beyond, empty, nonfinite = (
            _counted(source, task.terms, is_odd) for is_odd in (impossible, never_filled, no_number)
        )
        validated_only = {name: seen for name, seen in val_units.items() if name not in units}
        left_out = tuple(name for name, rows in gone.items() if rows.any())
        samples = [(source, beyond, units), (val, _counted(val, task.terms, impossible), val_units)]
        odd = tuple(seen.finding() for seen in (*units.values(), *val_units.values()))
        return cls(
            terms=terms,
            target_std=spread,
            objective=_objective(task, terms),
            far={name: 1.0 - float(rows.mean()) for name, rows in sound.items()},
            units={name: seen.told for name, seen in units.items()},
            val_units={name: f"{seen.seen} in {seen.place}" for name, seen in validated_only.items()},
            unit_files={name: [file.name for file in seen.judged] for name, seen in units.items()},
            val_unit_files={name: [file.name for file in seen.judged] for name, seen in validated_only.items()},
            val_terms=val_terms,
            impossible=beyond,
            never_filled=empty,
            no_number=nonfinite,
            findings=(*odd, *_beyond(config, samples, left_out, empty)),
            left_out=left_out,
        )

    @classmethod
    def of_sensors(cls, task: SensorTask, batches: Iterable[EventBatch]) -> Baseline:
        """Measure the objective where every term predicts one constant: the mean hidden reading of face and channel.

        An untrained network is a hundred times above it, so it says nothing about the first steps (``objective`` stays
        unknown), and single terms are far below the jitter of a young network, so only the sum is kept. Weights that
        are learnt change the objective itself; then there is no baseline.
        """
        if not isinstance(task.balance, ManualBalance):
            return cls()
        device = task.groups.members.device
        masked = [task.prepare(batch.to(device)) for batch in batches]
        weights = [task.loss_fn.weights(batch) for batch in masked]
        targets = [task.loss_fn.targets(batch) for batch in masked]
        shape = (len(task.groups.names), len(task.channels))
        counts = torch.zeros(shape, dtype=torch.float64, device=device)
        light, losses = counts.clone(), counts.clone()
        for weight, target in zip(weights, targets, strict=True):
            counts += task.groups.sums(weight.sum(dim=0))
            light += task.groups.sums(torch.where(weight > 0, target * weight, 0.0).sum(dim=0))
        constant = (task.groups.members.T @ (light / counts.clamp_min(1e-12))).to(torch.float32)
        for weight, batch in zip(weights, masked, strict=True):
            values = task.loss_fn.values(constant.expand_as(weight), batch)
            losses += task.groups.sums(torch.where(weight > 0, values * weight, 0.0).sum(dim=0))
        sums, known = losses.flatten().cpu(), counts.flatten().cpu()
        total = task.combine(sums, known)
        return cls({TOTAL: total}) if math.isfinite(total) else cls()


def first_events(config: RunConfig, source: EventSource) -> Iterator[EventBatch]:
    """Yield the first training events in small batches, as many as a mean reading needs."""
    yield from events_in_order(config, source.first(SENSOR_EVENTS))


def events_in_order(config: RunConfig, source: EventSource) -> Iterator[EventBatch]:
    """Yield all events in small batches."""
    plan = DataPlan(source.files, batch_size=SENSOR_BATCH, seed=config.training.seed, shuffle=False, num_shards=1)
    with EventLoader(source, plan) as loader:
        yield from loader.epoch(0)


def units_of_truth(source: EventSource, tasks: Iterable[str]) -> dict[str, UnitsOfTruth]:
    """Return the tasks whose truth seems to be in another unit, in any of the files of a source."""
    by_file = {name: truth_by_file(name, source) for name in tasks}
    return _units(source, by_file, {name: _plausible_sample(parts) for name, parts in by_file.items()})


def _plausible_sample(by_file: Sequence[np.ndarray]) -> np.ndarray:
    values = np.concatenate(by_file)
    return _sample(values[plausible(values)]) if len(values) else values


def _units(
    source: EventSource, by_file: Mapping[str, Sequence[np.ndarray]], truth: Mapping[str, np.ndarray]
) -> dict[str, UnitsOfTruth]:
    """Return the tasks whose truth seems to be in another unit, by the known truth of each file and of all."""
    found = {}
    for task, parts in by_file.items():
        known = [(file.path, file.tree, rows) for file, rows in zip(source.files, parts, strict=True) if len(rows)]
        odd = [
            FileUnit(path, tree, unit, typical_size(rows))
            for path, tree, rows in known
            if len(rows) >= FEWEST_OF_FILE and (unit := other_unit(task, _sample(rows)))
        ]
        rows, files = truth[task], [(path, tree) for path, tree, _ in known]
        size = typical_size(rows) if len(rows) else math.nan
        seen = UnitsOfTruth(task, source.branches.truth[task], files, odd, other_unit(task, rows), size)
        if seen.seen:
            found[task] = seen
    return found


def _objective(task: TrainingTask, terms: Mapping[str, float]) -> float:
    sums = torch.tensor([terms.get(term, 0.0) for term in task.terms], dtype=torch.float64)
    counts = torch.tensor([float(term in terms) for term in task.terms], dtype=torch.float64)
    return task.combine(sums, counts)


def _counted(
    source: EventSource, tasks: Iterable[str], is_odd: Callable[[str, np.ndarray], np.ndarray]
) -> dict[str, dict[str, Any]]:
    """Return what `count_truth` finds, of the tasks where it finds something."""
    return {name: found for name in tasks if (found := count_truth(name, source, is_odd))}


def _beyond(
    config: RegressorConfig,
    samples: Sequence[tuple[EventSource, Mapping[str, dict[str, Any]], Container[str]]],
    left_out: Container[str],
    empty: Mapping[str, dict[str, Any]],
) -> Iterator[Finding]:
    """Yield a warning for each truth that cannot be or was never filled, and for those of validation that cannot be.

    Where it is in another unit that is told instead. Few such events are named in a setting that leaves all of them
    out: a second one, of another task or sample, would undo the first.
    """
    found = [
        (index, source, task, told)
        for index, (source, beyond, units) in enumerate(samples)
        for task, told in beyond.items()
        if task not in units
    ]
    trained = samples[0][0]
    few = [(trained, told) for told in empty.values() if told["count"] == len(told["places"])]
    counts = [(source, told) for _, source, _, told in found] + few
    events = [(source.files[file].name, entry) for source, told in counts for file, entry in told["places"]]
    are_all = all(told["count"] == len(told["places"]) for _, told in counts) and len(set(events)) <= MOST_NAMED
    exclude = in_shell(leaving_out(config.data, *events)) if are_all and events else ""
    for index, source, task, told in found:
        file, branch = source.files[told["file"]], source.branches.truth[task]
        held = [of for index, of in enumerate(source.files) if impossible(task, source.truth(index, task)).any()]
        yield Finding(
            "DAT-16",
            Severity.WARNING,
            told_impossible(task, told["value"], told["count"])
            + (", left out of the training" if not index and task in left_out else ""),
            where=f"{file.name} branch {branch} entry {told['entry']}",
            fix=excluding(exclude),
            mends=tuple(Mend(of.path, of.tree, branch, possible(task)) for of in held),
        )
    yield from _empty(empty, trained, exclude if few else "")


def _empty(never_filled: Mapping[str, dict[str, Any]], source: EventSource, exclude: str) -> Iterator[Finding]:
    for task, found in never_filled.items():
        yield Finding(
            "DAT-16",
            Severity.WARNING,
            told_never_filled(task, found["count"], source.num_events),
            where=f"{source.files[found['file']].name} branch {source.branches.truth[task]} entry {found['entry']}",
            fix=f"--set {exclude}   # or {NEVER_FILLED_FIX}" if exclude else NEVER_FILLED_FIX,
        )


def _sample(truth: np.ndarray) -> np.ndarray:
    return truth[:: max(1, len(truth) // MAX_EVENTS)]

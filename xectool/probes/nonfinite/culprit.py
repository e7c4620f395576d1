"""Who is to blame when a step does not stay finite: events, sensors, numbers, weights, or how they meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from xectool.data.batch import EventBatch
from xectool.probes.instruments.bench import Bench, in_double
from xectool.probes.instruments.trial import GRADIENT, UPDATE, StepTrial, try_step
from xectool.probes.nonfinite.locate import Place, locate
from xectool.probes.nonfinite.raw import not_a_reading
from xectool.probes.nonfinite.readings import NPHO, TIME, Item, Reading, Readings
from xectool.training.triage import bisect_events

INPUT, WEIGHTS, COMBINATION, MODULE = "input", "weight", "combination", "module"
MAX_EVENTS = 8  # bad events that are told apart; of more the first is taken
MAX_NAMED_ITEMS = 64  # more numbers than this together: it is the event as a whole, not single sensors
NUM_CONTROLS = 3  # other events that are tried alone; if all of them fail too, no event is to blame


@dataclass(frozen=True)
class Culprit:
    """Why a step is not finite.

    Attributes:
        trial: What happened to the window as it came.
        place: The first module and operation that is not finite.
        cause: ``input``, ``weight``, ``combination`` (finite numbers that overflow where they meet), or ``module``
            (not finite whatever goes in).
        window: The fewest events that fail, batch by batch.
        readings: The fewest numbers of them that fail; empty where none in particular.
        alone: Whether each event of the window fails by itself; False means only together.
        facts: What else was tried and whether it stayed finite, e.g. ``finite_in_float32``.
    """

    trial: StepTrial
    place: Place
    cause: str
    window: tuple[EventBatch, ...]
    readings: tuple[Reading, ...] = ()
    alone: bool = True
    facts: dict[str, bool] = field(default_factory=dict)


def find_culprit(bench: Bench, window: Sequence[EventBatch], controls: EventBatch | None = None) -> Culprit | None:
    """Return why a step over a window is not finite, or None where it is.

    Args:
        bench: What is trained; weights and moments are sound (see `broken_weights`).
        window: Batches of one optimizer step.
        controls: Other events; when they fail too, no event is to blame.
    """
    whole = Window(bench.prepared(window))
    trial = try_step(bench, whole.batches)
    if not trial.bad:
        return None
    rows, alone = _fewest_events(bench, whole, trial.stage)
    fewest = whole.take(rows) or whole.batches
    of_fewest = try_step(bench, fewest)
    place = locate(bench, fewest, of_fewest)
    readings, always = _fewest_readings(bench, fewest, UPDATE if of_fewest.stage == UPDATE else GRADIENT)
    others = [*whole.singles(), *(Window(bench.prepared([controls])).singles() if controls is not None else ())]
    tried = [try_step(bench, other).bad for other in others[: NUM_CONTROLS + 1]]
    facts = {"fails_with_any_readings": always}
    if len(tried) > 1:
        facts["every_event_fails"] = all(tried)
    facts |= _facts(bench, fewest)
    return Culprit(trial, place, _cause(readings, facts, trial), tuple(fewest), tuple(readings), alone, facts)


def _fewest_events(bench: Bench, whole: Window, stage: str) -> tuple[list[int], bool]:
    """Return the rows of the fewest events that fail, and whether one of them does so alone."""
    singles: list[int] = []

    def fails(chosen: Sequence[int]) -> bool:
        bad = try_step(bench, whole.take(chosen), stage).bad
        if bad and len(chosen) == 1:
            singles.append(chosen[0])
        return bad

    rows = bisect_events(fails, whole.num_events, limit=MAX_EVENTS)
    if singles:
        return [min(singles)], True
    return rows or list(range(whole.num_events)), False


class Window:
    """The events of several batches, numbered through.

    Args:
        batches: Prepared, so that what is hidden stays hidden.
    """

    def __init__(self, batches: Sequence[EventBatch]) -> None:
        self.batches = list(batches)
        self._starts = np.cumsum([0, *(batch.num_events for batch in batches)])

    @property
    def num_events(self) -> int:
        """Events of all batches."""
        return int(self._starts[-1])

    def singles(self) -> Iterator[list[EventBatch]]:
        """Yield every event as a window of its own."""
        yield from (self.take([row]) for row in range(self.num_events))

    def take(self, rows: Sequence[int]) -> list[EventBatch]:
        """Return the batches with the chosen events only, without those that become empty."""
        chosen = np.asarray(rows, dtype=np.int64)
        found = []
        for batch, start, stop in zip(self.batches, self._starts, self._starts[1:], strict=False):
            inside = chosen[(chosen >= start) & (chosen < stop)] - start
            if len(inside):
                found.append(batch.take(inside))
        return found


def _fewest_readings(bench: Bench, window: Sequence[EventBatch], stage: str) -> tuple[list[Reading], bool]:
    """Return the fewest numbers of a window that fail when all others are harmless, and whether it fails without any.

    They are those that fail up to ``stage``.
    The batches are reduced one after the other, each beside the others as reduced so far.
    """
    reduced = list(window)
    harmless = [Readings(bench, batch).keeping([]) for batch in window]
    if try_step(bench, harmless).bad:
        return [], True
    found: list[Reading] = []
    for number, batch in enumerate(window):
        readings = Readings(bench, batch)

        def fails(chosen: Sequence[int], at: int = number, of: Readings = readings) -> bool:
            return try_step(bench, [*reduced[:at], of.keeping(chosen), *reduced[at + 1 :]], stage).bad

        if fails([]):  # this batch is only needed as it is, not for its numbers
            reduced[number] = readings.keeping([])
            continue
        prefix = next(size for size in _sizes(len(readings.items)) if size == len(readings.items) or fails(range(size)))
        chosen = bisect_events(fails, prefix, limit=MAX_NAMED_ITEMS)
        reduced[number] = readings.keeping(chosen) if chosen else batch
        for item in (readings.items[index] for index in chosen):
            found += [replace(r, batch=number) for r in readings.numbers(item, _channels(readings, item))]
    return found, False


def _sizes(count: int) -> Iterator[int]:
    """Yield growing counts: the most extreme numbers come first, so few tries are needed."""
    size = 1
    while size < count:
        yield size
        size *= 4
    yield count


def _channels(readings: Readings, item: Item) -> tuple[str, ...]:
    """Return the channel of a sensor that is no reading; without one, both."""
    at = (item.row, item.sensor)
    odd = [
        name
        for name, values in ((NPHO, readings.batch.npho), (TIME, readings.batch.time))
        if bool(not_a_reading(values[at]))
    ]
    return tuple(odd) or (NPHO, TIME)


def _facts(bench: Bench, window: Sequence[EventBatch]) -> dict[str, bool]:
    plain = list(window)
    found: dict[str, bool] = {}
    if bench.execution.autocast_dtype is not None:
        found["finite_in_float32"] = not try_step(bench.with_execution(autocast_dtype=None), plain).bad
    found["finite_in_float64"] = not try_step(bench.doubled(), [in_double(batch) for batch in plain]).bad
    if bench.fresh is not None:
        fresh = replace(bench.fresh(), evaluating=bench.evaluating)
        found["finite_with_fresh_weights"] = not try_step(fresh, plain).bad
    if bench.evaluating:
        found["in_evaluation_only"] = not try_step(replace(bench, evaluating=False), plain).bad
    return found


def _cause(readings: Sequence[Reading], facts: dict[str, bool], trial: StepTrial) -> str:
    if trial.refused is not None or any(bool(not_a_reading(torch.tensor(r.value))) for r in readings):
        return INPUT
    whoever = facts.get("every_event_fails") or facts["fails_with_any_readings"]
    if whoever and facts.get("finite_with_fresh_weights"):
        return WEIGHTS
    if facts.get("finite_in_float32"):
        return COMBINATION
    return MODULE if facts["fails_with_any_readings"] else COMBINATION

"""The jumps of the loss of a run, each with all that is known about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis.cases.growth import HIGH_LR, LOOK_BACK
from xectool.diagnosis.cases.high_losses import CLIMB_STEPS, CLIMBED, high_rows
from xectool.diagnosis.cases.no_spike import by_mask, of_another_objective
from xectool.diagnosis.cases.start import START_STEPS, constant_loss, exploding_start
from xectool.diagnosis.cases.step import StepCase
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.history import StepHistory
from xectool.diagnosis.evidence.incidents import identities, number
from xectool.diagnosis.evidence.statistics import finite, groups, median
from xectool.errors import counted
from xectool.runlog.records import EventRecord

RECOVERY_STEPS: Final = 100  # F040
MAX_CASES: Final = 60
_GAP: Final = 20
_HIGHER: Final = 1.1  # times the rise of the first step: a higher one later is told with its step
TAIL_EVENTS: Final = 3  # events that stand out one by one; fewer are damage, more are how the data are distributed
TAIL_FACTOR: Final = 100.0  # and none of them by more than this


@dataclass(frozen=True)
class SpikeCase(StepCase):
    """A group of neighbouring steps whose loss is far above the steps before.

    Attributes:
        level: What was normal before.
        at_start: Whether the loss explodes from the start.
        epochs_with_one: Epochs in a row with one jump each.
        num_cases: Jumps of the run.
        tail: Whether the run only meets the tail of a distribution.
    """

    other_kind: ClassVar[str] = "nonfinite"
    level: float
    at_start: bool
    epochs_with_one: int
    num_cases: int
    tail: bool = False

    @property
    def symptom(self) -> str:
        """Name under which the rules speak about it."""
        return f"spike@{self.step}"

    @cached_property
    def peak(self) -> float:
        """Largest loss."""
        return max(self.losses.values(), default=math.nan)

    @cached_property
    def losses(self) -> dict[int, float]:
        """Loss by step, where it is finite."""
        steps = self.evidence.steps
        found = dict(zip(steps["step"][self.rows].tolist(), steps["loss"][self.rows].tolist(), strict=True))
        # A step that was taken again, or held back, is recorded as it ended; the guard says what it was.
        for event in self.evidence.of("spike"):
            if event.step in found and (said := number(event.data.get("loss"))) > found[event.step]:
                found[event.step] = said
        return {int(step): loss for step, loss in found.items() if math.isfinite(loss)}

    @cached_property
    def usual(self) -> float:
        """What is told as normal: the median of the guard where it said so at the first step, as on the console."""
        event = self.told("spike")
        said = number(event.data.get("median")) if event is not None and event.step == self.step else math.nan
        return self.level if math.isnan(said) else said

    @property
    def height(self) -> str:
        """The rise in words: to the loss of the first step, and to the largest where another step had that."""
        first = self.losses.get(self.step, math.nan)
        if not self.peak - self.level > _HIGHER * (first - self.level):
            return f"from {self.usual:.4g} to {self.peak:.4g}"
        highest = max(self.losses, key=lambda step: self.losses[step])
        return f"from {self.usual:.4g} to {first:.4g}, and to {self.peak:.4g} at step {highest}"

    @cached_property
    def width(self) -> int:
        """Steps from the first to the last that is high."""
        return int(self.rows[-1] - self.rows[0]) + 1

    @cached_property
    def duration(self) -> int:
        """Steps until the loss was normal again, by the guard where it says so, else by the steps that are high.

        Steps that are as high for long become the level of the record, and are no longer seen to be.
        """
        later = [event for event in self.evidence.of("spike_recovered") if event.step > self.step]
        following = [event.step for event in self.evidence.of("spike") if event.step > self.step]
        if later and not (following and following[0] <= later[0].step):
            return max(int(later[0].step - self.step), 1)
        return self.width

    @cached_property
    def weight_norm_before(self) -> float:
        """Last norm of all weights on record before the resume of its attempt; NaN where none was taken."""
        steps = self.evidence.steps
        known = finite(steps["weight_norm"][steps.attempt < steps.attempt[self.row]])
        return float(known[-1]) if known.size else math.nan

    @cached_property
    def grew(self) -> bool:
        """Whether loss and gradient had been rising before, over decades or just now over several steps."""
        near = self.evidence.steps.before(self.row, CLIMB_STEPS)
        if self.before.grew or near.size < CLIMB_STEPS:
            return self.before.grew
        norms = self.evidence.steps["grad_norm"]
        usual = median(norms[self.evidence.steps.before(self.row, LOOK_BACK)])
        losses = median(self.evidence.steps["loss"][near]) - self.level
        return bool(losses >= (CLIMBED - 1) * abs(self.level) and median(norms[near]) >= CLIMBED * usual)

    @cached_property
    def recovered(self) -> bool:
        """Whether the loss came back within 100 steps to less than twice its level (or thrice its spread)."""
        later = self.evidence.steps.after(int(self.rows[-1]), RECOVERY_STEPS)
        if not later.size:
            return False
        losses = self.evidence.steps["loss"][later]
        return bool(median(losses[-max(1, later.size // 2) :]) <= self.level + abs(self.level) + 1e-12)

    @cached_property
    def resume(self) -> EventRecord | None:
        """The resume of the attempt it lies in."""
        earlier = [event for event in self.evidence.of("resume") if event.step < self.step]
        return earlier[-1] if earlier and self.steps_since_resume is not None else None

    @cached_property
    def suspects(self) -> tuple[tuple[int, ...], ...]:
        """Events that are bad by themselves, if they are few."""
        event = self.told("spike")
        named = identities(event.data.get("suspects")) if event else ()
        named = named or (self.incident.suspects if self.incident else ())
        return named if len(named) <= max(1, self.num_events // 2) else ()

    @cached_property
    def rate_too_high(self) -> bool:
        """Whether the rate is beyond what AdamW takes, and other events stand out each time or the loss stays high.

        Then it is the network that is off.
        """
        said = self.evidence.of("spike")
        events = {event for record in said for event in identities(record.data.get("suspects"))}
        return self.before.lr > HIGH_LR and (len(events) >= TAIL_EVENTS or not self.recovered)

    @cached_property
    def raised(self) -> EventRecord | None:
        """A deliberate rise of the learning rate just before."""
        return next(
            (
                event
                for event in reversed(self.evidence.of("lr_change"))
                if self.step - LOOK_BACK <= event.step <= self.step
                and (event.data.get("reason") != "schedule" or not self.had_rate(event))
                and number(event.data.get("lr_after")) > number(event.data.get("lr_before"))
            ),
            None,
        )

    def had_rate(self, event: EventRecord) -> bool:
        """Return whether the rate to which an event raised it had been used before: else it is no restart."""
        steps = self.evidence.steps
        rates = finite(steps["lr"][steps["step"] < event.step])
        return bool(rates.size and number(event.data.get("lr_after")) <= 1.5 * rates.max())

    @cached_property
    def rate_known_before(self) -> bool:
        """Whether the run had been at this rate before, well ahead of the jump."""
        rates = finite(self.evidence.steps["lr"][: max(0, self.row - LOOK_BACK)])
        return bool(rates.size and self.before.lr <= 1.5 * rates.max())

    def text(self) -> str:
        """Return the jump as a line of evidence."""
        high = counted(self.width, "step")
        where = f"over {high}" if len(self.rows) == self.width else f"in {len(self.rows)} of {high}"
        return (
            f"running median {self.usual:.4g}, peak {self.peak:.4g} {where}, {self._end()}; "
            f"gradient norm {self.evidence.steps['grad_norm'][self.row]:.4g}, lr {self.before.lr:.3g}"
        )

    def _end(self) -> str:
        """Return how it went on: steps that are high for long become the level, beside which later ones are not."""
        steps = self.evidence.steps
        later = steps.good_rows[steps.good_rows > self.rows[-1]]
        if not later.size:
            return "and the record ends there"
        if self.recovered:
            return "came back"
        highest = later[np.argmax(steps["loss"][later])]
        higher = f", {steps['loss'][highest]:.4g} at step {steps['step'][highest]:.0f}"
        return "did not come back" + higher * bool(steps["loss"][highest] > self.peak)


def spike_cases(evidence: Evidence) -> list[SpikeCase]:
    """Return the jumps of the loss, oldest first."""
    steps = evidence.steps
    high = high_rows(evidence)
    found = [(rows, False) for rows in groups(high, _GAP)]
    start = exploding_start(evidence)
    if start is not None:
        found = [(rows, False) for rows, _ in found if rows[0] > start[-1] + _GAP]
        found.insert(0, (start, True))
    found = [(rows, at_start) for rows, at_start in found if not of_another_objective(evidence, int(rows[0]))]
    found = [(rows, at_start) for rows, at_start in found if at_start or not by_mask(evidence, rows)]
    one_each = _epochs_with_one(steps, high)
    cases = [
        SpikeCase(evidence, rows, _level(evidence, rows, at_start), at_start, one_each, len(found))
        for rows, at_start in found[:MAX_CASES]
    ]
    return [replace(case, tail=True) for case in cases] if _from_a_tail(cases) else cases


def _from_a_tail(cases: Sequence[SpikeCase]) -> bool:
    """Return whether a run only meets the tail of a distribution: several events, none by much, each over at once."""
    if not cases:
        return False
    said = cases[0].evidence.of("spike")
    events = {event for record in said for event in identities(record.data.get("suspects"))}
    usual = TAIL_FACTOR * _mean_over_median(cases[0].evidence)
    small = all(case.peak <= usual * abs(case.level) for case in cases)
    return len(events) >= TAIL_EVENTS and small and all(case.recovered or case.duration <= 1 for case in cases)


def _mean_over_median(evidence: Evidence) -> float:
    """Return how far the mean loss of a constant lies above the median of the first batches, 1 at least.

    A distribution with a tail has a mean far above its median, before anything is learned.
    """
    mean = constant_loss(evidence)
    first = median(evidence.steps["loss"][evidence.steps.good_rows[:START_STEPS]])
    return max(1.0, mean / first) if first > 0 and mean > 0 else 1.0


def _level(evidence: Evidence, rows: NDArray[np.intp], at_start: bool) -> float:
    """Return what was normal before: the first loss, or the running median, else what the guard took for normal."""
    steps = evidence.steps
    if at_start:
        return float(steps["loss"][steps.good_rows[0]])
    level, step = float(steps.loss_level[rows[0]]), int(steps["step"][rows[0]])
    said = next((event for event in evidence.of("spike") if event.step == step), None)
    return number(said.data.get("median")) if math.isnan(level) and said is not None else level


def _epochs_with_one(steps: StepHistory, high: NDArray[np.intp]) -> int:
    """Return the number of epochs with one spike each, where none has more and none between them has none."""
    counts = Counter(steps["epoch"][high].tolist())
    one_each = bool(counts) and max(counts.values()) == 1
    return len(counts) if one_each and max(counts) - min(counts) == len(counts) - 1 else 0

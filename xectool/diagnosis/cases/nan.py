"""The non-finite steps of a run, each with all that is known about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xectool.diagnosis.cases.growth import HIGH_LR
from xectool.diagnosis.cases.incident_batch import INFINITE, outlier_lines
from xectool.diagnosis.cases.step import StepCase
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import INCIDENTS_DIR, Triage, confidence, identities
from xectool.diagnosis.evidence.statistics import finite, groups, median
from xectool.runlog.records import EventRecord

MAX_CASES: Final = 60
AFTER_RESUME: Final = 3  # steps in which a damaged state shows itself: moments act from the second step on
LASTING: Final = 3  # bad steps in a row, to the end, that no single batch explains
GONE_ON: Final = 20  # finite steps of a later attempt, after which what ended the one before is history
_GAP: Final = 3  # rows; bad steps with no more than two finite ones between are one episode
_SETTLED: Final = 50  # steps in a row without overflow after which a loss scale has settled
_REPEATED: Final = 3
_UNSCALED: Final = 1.0  # a gradient that overflows at this scale is broken
_MAX_HALVINGS: Final = 16  # from 2^16, where scaling starts, to 1
_FIRST: Final = 3  # steps whose loss says where a run began
_LATER: Final = 10
_ERASING: Final = 10 * HIGH_LR  # of weights of 0.03 to 0.1 nothing is left after one step
_RISEN: Final = 3.0  # times the first losses; a sound start may rise so far, but not at such rates


NONFINITE: Final = "nonfinite@"  # symptom of such steps, before the first one


@dataclass(frozen=True)
class NanCase(StepCase):
    """A group of neighbouring non-finite steps.

    Attributes:
        shared_events: Events that were in the bad batches of every epoch.
        never_again: Whether the bad batches of different epochs have no event in common.
        num_cases: Groups of the run.
    """

    shared_events: tuple[tuple[int, ...], ...]
    never_again: bool
    num_cases: int

    @property
    def symptom(self) -> str:
        """Name under which the rules speak about it."""
        return f"{NONFINITE}{self.step}"

    @cached_property
    def recovered(self) -> bool:
        """Whether finite steps followed."""
        return bool(self.evidence.steps.after(int(self.rows[-1]), 1).size)

    @cached_property
    def over(self) -> int:
        """Finite steps of a later attempt since these ended their own; 0 where they did not, or came again."""
        steps, last = self.evidence.steps, int(self.rows[-1])
        since = np.arange(last + 1, len(steps))
        same = steps.attempt[since] == steps.attempt[last]
        if same.any() or (steps["nonfinite"][since] > 0).any() or since.size < GONE_ON:
            return 0
        return int(since.size)

    @cached_property
    def first_of_run(self) -> bool:
        """Whether no update was made before it."""
        return self.before.total == 0

    @cached_property
    def lasting(self) -> bool:
        """Whether no batch was finite from here to the end of the record."""
        return not self.recovered and self.rows.size >= LASTING

    @cached_property
    def after_resume(self) -> bool:
        """Whether it began within three steps of a resume."""
        return self.steps_since_resume is not None and self.steps_since_resume <= AFTER_RESUME

    @cached_property
    def driven(self) -> bool:
        """Whether steps beyond what AdamW takes had raised the loss by then, or moved weights by more than their size.

        What then overflows follows from that.
        """
        steps = self.evidence.steps
        before = np.arange(self.row)
        losses = finite(steps["loss"][before])
        with np.errstate(invalid="ignore"):
            taken = (steps["lr"][before] > HIGH_LR) & (steps["skipped"][before] == 0)
            if (taken & (steps["lr"][before] > _ERASING)).any():
                return True
        if losses.size < 2 * _FIRST or not taken.any():
            return False
        return median(losses[-_LATER:]) >= _RISEN * abs(median(losses[:_FIRST]))

    @cached_property
    def skip(self) -> EventRecord | None:
        """What the guard recorded about it."""
        return self.told("nonfinite_skip")

    @cached_property
    def triage(self) -> Triage:
        """What the automatic look at the incident found; empty where there was none."""
        if self.incident is not None and (self.incident.triage.cause or not self._triage_event):
            return self.incident.triage
        event = self._triage_event
        if event is None:
            return Triage()
        return Triage(cause=str(event.data.get("cause") or ""), confidence=confidence(event.data.get("confidence")))

    @cached_property
    def _triage_event(self) -> EventRecord | None:
        return self.told("triage")

    @cached_property
    def suspects(self) -> tuple[tuple[int, ...], ...]:
        """Events that are bad by themselves."""
        named = identities(self.skip.data.get("suspects")) if self.skip else ()
        return named or (self.incident.suspects if self.incident else ())

    @cached_property
    def few_suspects(self) -> bool:
        """Whether some events are bad by themselves and most are not."""
        return 0 < len(self.suspects) <= max(1, self.num_events // 2)

    @property
    def named(self) -> tuple[tuple[int, ...], ...]:
        """Events that are bad by themselves, where others are not.

        The look at a batch tries its events one by one: those that only came again may have met by chance.
        """
        chance = self.before.grew or (bool(self.triage.cause) and not self.suspects)
        return self.suspects if self.few_suspects else () if chance else self.shared_events

    @cached_property
    def outliers(self) -> tuple[str, ...]:
        """What sets the events that are bad by themselves apart, but for what the loss cannot take anyway."""
        return tuple(line for line in self._outliers if line not in self.outside_domain)

    @cached_property
    def outside_domain(self) -> tuple[str, ...]:
        """Finite targets, far from all others, of which the loss takes the logarithm: it overflows for none of them."""
        names = tuple(f"target {term}[" for term in self.logarithms)
        return tuple(line for line in self._outliers if line.startswith(names) and INFINITE not in line)

    @cached_property
    def logarithms(self) -> tuple[str, ...]:
        """Bad loss terms that take the logarithm of their target."""
        return tuple(term for term in self.bad_terms if self.evidence.setting(f"tasks.{term}.log_transform"))

    @cached_property
    def _outliers(self) -> tuple[str, ...]:
        if self.incident is None or not self.few_suspects:
            return ()
        return outlier_lines(self.evidence.run_dir / INCIDENTS_DIR / self.incident.name, self.suspects)

    @cached_property
    def stage(self) -> str:
        """Where it first went non-finite: input, loss, gradient, weights, or empty."""
        return str(self.skip.data.get("stage") or "") if self.skip else ""

    @cached_property
    def loss_finite(self) -> bool:
        """Whether the loss was finite, so that only the gradient was not."""
        if self.stage in ("input", "loss", "gradient"):
            return self.stage == "gradient"
        return bool(np.isfinite(self.evidence.steps["loss"][self.row]))

    @cached_property
    def bad_terms(self) -> tuple[str, ...]:
        """Loss terms that were not finite."""
        named = self.skip.data.get("terms") if self.skip else None
        if named:
            return tuple(str(term) for term in named)
        return tuple(
            name for name, values in self.evidence.steps.terms.items() if not math.isfinite(float(values[self.row]))
        )


def nan_cases(evidence: Evidence) -> list[NanCase]:
    """Return the non-finite episodes of a run that are no mere overflow of scaled gradients, oldest first."""
    steps = evidence.steps
    # A step that was taken again without its bad events is finite; the guard's own word counts all the same.
    rows = np.flatnonzero((steps.bad & ~overflow_rows(evidence)) | _named(evidence))
    kept = groups(rows, _GAP)
    shared, never_again = _recurring(evidence)
    return [NanCase(evidence, rows, shared, never_again, len(kept)) for rows in kept[:MAX_CASES]]


def overflow_rows(evidence: Evidence) -> NDArray[np.bool_]:
    """Return which rows were skipped only because a scaled gradient left the range of float16.

    The recorded scale is that after the step: where it is still at least the one at which gradients are not scaled,
    there was something to halve. What the guard named is no overflow.
    """
    steps = evidence.steps
    if not evidence.uses_fp16:
        return np.zeros(len(steps), dtype=bool)
    scale = steps["amp_scale"]
    halved = np.isfinite(scale) & (scale >= _UNSCALED)
    return steps.bad & np.isfinite(steps["loss"]) & halved & ~_named(evidence)


def _named(evidence: Evidence) -> NDArray[np.bool_]:
    """Return the rows of the steps that the guard called non-finite."""
    named = {event.step for event in evidence.of("nonfinite_skip")}
    named |= {item.step for item in evidence.incidents if item.kind == "nonfinite"}
    return np.isin(evidence.steps["step"], list(named))


def unsettled_overflows(evidence: Evidence) -> tuple[int, int]:
    """Return how many steps overflowed after the loss scale had settled, and of how many.

    Scaling starts at 2^16 and halves until nothing overflows: up to 16 skipped steps are the normal start.
    """
    overflow = overflow_rows(evidence)
    rows = np.flatnonzero(overflow)
    if rows.size <= _MAX_HALVINGS and (not rows.size or rows[-1] < 2 * _SETTLED):
        return 0, len(overflow)
    calm = np.flatnonzero(np.diff(np.concatenate(([-1], rows, [len(overflow)]))) > _SETTLED)
    late = rows if not calm.size or calm[0] == 0 else rows[calm[0] :]
    # Growing back every 2000 steps, a settled scale overflows alone; a fault does so again and again.
    return (late.size, len(overflow) - int(late[0])) if late.size >= _REPEATED else (0, len(overflow))


def settled_overflows(evidence: Evidence) -> NDArray[np.bool_]:
    """Return which rows overflowed while the loss scale found its place, which is no fault; none where it never did."""
    overflow = overflow_rows(evidence)
    return np.zeros_like(overflow) if unsettled_overflows(evidence)[0] else overflow


def _recurring(evidence: Evidence) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """Return the events that were in the skipped batches of every epoch with some, and whether there is none at all.

    In one epoch an event occurs once, so what is bad by itself comes back in each later epoch. Where many batches were
    skipped, some events come back by chance: they count only where there are more than twice as many as that.
    """
    epochs: dict[int, set[tuple[int, ...]]] = {}
    for event in evidence.of("nonfinite_skip"):
        if event.data.get("events"):
            epochs.setdefault(event.epoch, set()).update(identities(event.data["events"]))
    if len(epochs) < 2:
        return (), False
    common = set.intersection(*epochs.values())
    smallest = min(epochs, key=lambda epoch: len(epochs[epoch]))
    by_chance = len(epochs[smallest]) * math.prod(_bad_share(evidence, epoch) for epoch in epochs if epoch != smallest)
    telling = len(common) <= max(1, len(epochs[smallest]) // 2) and len(common) > 2 * by_chance
    return tuple(sorted(common)) if telling else (), not common and not evidence.of("quarantine")


def _bad_share(evidence: Evidence, epoch: int) -> float:
    """Return the share of the batches of an epoch, as long as the longest, that were not finite at their first try."""
    epochs = evidence.steps["epoch"]
    longest = int(np.unique(epochs, return_counts=True)[1].max(initial=1))
    named = {event.step for event in evidence.of("nonfinite_skip") if event.epoch == epoch}
    bad = evidence.steps["step"][evidence.steps.bad & (epochs == epoch)]
    return min(1.0, len(named.union(bad.astype(int).tolist())) / longest)

"""A bad step again with one thing changed: which change cures it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xectool.data.batch import EventBatch
from xectool.probes.instruments.bench import Bench, in_double
from xectool.probes.instruments.trial import StepTrial, try_step
from xectool.probes.repetition.replay import Moment, Replay

WITHOUT_SUSPECTS, LOWER_RATE, DOUBLE, NO_AMP = "without suspects", "lr / 10", "float64", "amp off"
RATE_FACTOR = 0.1
LOWER_RATE_STEPS = 50  # steps before the bad one that are run again at the lower rate


@dataclass(frozen=True)
class Judge:
    """Says whether a step is healthy.

    Attributes:
        limit: Loss beyond which it is a spike; infinite where nothing is known of the steps before.
    """

    limit: float = math.inf

    def healthy(self, trial: StepTrial) -> bool:
        """Return whether a step stays finite and its loss is no spike."""
        return not trial.bad and trial.loss <= self.limit


@dataclass(frozen=True)
class Counterfactual:
    """One change.

    Attributes:
        change: What was changed.
        loss: Loss of the step then; NaN where it got none.
        grad_norm: Gradient norm before clipping.
        healthy: Whether the step is finite and no spike.
        cures: Whether it is healthy and was not before; None where nothing was wrong.
        detail: What exactly was changed.
    """

    change: str
    loss: float
    grad_norm: float
    healthy: bool
    cures: bool | None
    detail: str


@dataclass(frozen=True)
class Situation:
    """A step about to be taken.

    Attributes:
        bench: The run as it stands.
        window: Its batches.
        suspects: The same batches without the events under suspicion; None where there are none.
        suspicion: Which events those are.
        early: The run some steps earlier, for another rate; None at the first step.
    """

    bench: Bench
    window: Sequence[EventBatch]
    suspects: Sequence[EventBatch] | None
    suspicion: str
    early: Moment | None


def counterfactuals(replay: Replay, situation: Situation, judge: Judge) -> list[Counterfactual]:
    """Return what each change does to a step; the run is afterwards where it was."""
    bench, window = situation.bench, situation.window
    was_healthy = judge.healthy(try_step(bench, window))
    single = bench.with_execution(autocast_dtype=None, use_scaler=False)
    changes: list[tuple[str, str, Callable[[], StepTrial]]] = []
    if situation.suspects is not None:
        rest = situation.suspects
        changes.append((WITHOUT_SUSPECTS, situation.suspicion, lambda: try_step(bench, rest)))
    early = situation.early
    if early is not None:
        steps = replay.step - early.step
        detail = f"the last {steps} steps at a tenth of their rates" if steps else "the update at a tenth of its rate"
        changes.append((LOWER_RATE, detail, lambda: _at_lower_rate(replay, early, window)))
    changes.append((DOUBLE, "weights and events in float64", lambda: _doubled(bench, window)))
    if bench.execution.autocast_dtype is not None:
        changes.append((NO_AMP, "float32 without autocast", lambda: try_step(single, window)))
    found = []
    for change, detail, attempt in changes:
        trial = attempt()
        healthy = judge.healthy(trial)
        cures = None if was_healthy else healthy
        found.append(Counterfactual(change, trial.loss, trial.grad_norm, healthy, cures, detail))
    return found


def _doubled(bench: Bench, window: Sequence[EventBatch]) -> StepTrial:
    return try_step(bench.doubled(), [in_double(batch) for batch in window])


def _at_lower_rate(replay: Replay, early: Moment, window: Sequence[EventBatch]) -> StepTrial:
    here = replay.moment()
    replay.go_to(early)
    replay.run_until(here.step, RATE_FACTOR)
    bench = replay.bench()
    trial = try_step(bench, window)
    replay.go_to(here)
    return trial

"""How long a run will still take."""

from __future__ import annotations

from typing import Any

import pytest
from xectool.training.stepping.state import Progress
from xectool.training.stepping.time_left import TimeLeft


class Some:
    """An object of given attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__ |= values


def parts(epochs: int = 3, interval: int = 1, accum: int = 1) -> Any:
    return Some(
        config=Some(
            training=Some(epochs=epochs, grad_accum_steps=accum), validation=Some(interval=interval)
        ),
        train_loader=Some(plan=Some(num_steps=10)),
        val_loader=Some(plan=Some(num_events=100)),
    )  # fmt: skip


def left(of: Any, max_steps: int | None, progress: Progress, *steps_s: float, count: int = 1) -> dict[str, float]:
    time_left = TimeLeft(of, max_steps)
    return [time_left.after(progress, count, step_s) for step_s in steps_s][-1]


def test_the_first_step_of_an_attempt_tells_nothing() -> None:
    """It compiles: 60 s of it were taken for the time of every step."""
    assert left(parts(), None, Progress(batch=1, step=1), 60.0) == {}
    known = left(parts(), None, Progress(batch=2, step=2), 60.0, 1.0)
    assert known == {"run_left_s": 28.0, "unmeasured_validations": 3.0}


def test_validations_ahead_take_as_long_as_the_last_one() -> None:
    """Of epochs 2 and 3; that of epoch 1 took 100 events / (20 events/s)."""
    progress = Progress(epoch=2, batch=4, step=14, history=[{"epoch": 1.0, "perf/val_events_per_s": 20.0}])
    assert left(parts(), None, progress, 9.0, 1.0, 3.0) == {"run_left_s": 32.0 + 10.0, "unmeasured_validations": 0.0}


@pytest.mark.parametrize(("interval", "validations"), [(1, 5.0), (2, 3.0), (9, 1.0)])
def test_the_last_epoch_is_always_validated(interval: int, validations: float) -> None:
    known = left(parts(5, interval), None, Progress(batch=2, step=2), 9.0, 1.0)
    assert known["unmeasured_validations"] == validations


def test_the_last_step_of_an_epoch_has_fewer_batches() -> None:
    """Ten batches in steps of four are three steps: after step 2 of 6 two and ten are left, not sixteen."""
    known = left(parts(epochs=9, accum=4), 6, Progress(batch=8, step=2), 9.0, 4.0, count=4)
    assert known == {"run_left_s": 12.0, "unmeasured_validations": 2.0}


@pytest.mark.parametrize(("max_steps", "left_s", "validations"), [(3, 4.0, 0.0), (5, 12.0, 1.0), (99, 52.0, 3.0)])
def test_a_run_of_some_steps_ends_with_them(max_steps: int, left_s: float, validations: float) -> None:
    """Two micro-batches a step, 2 s each."""
    known = left(parts(accum=2), max_steps, Progress(batch=4, step=2), 9.0, 4.0, count=2)
    assert known == {"run_left_s": left_s, "unmeasured_validations": validations}

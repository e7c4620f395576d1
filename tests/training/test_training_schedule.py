"""The learning rate follows from the step alone."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xectool.config.training import RegressorTrainingConfig
from xectool.training.optimization.schedule import LearningRate


def rate(steps_per_epoch: int = 10, **keys: object) -> LearningRate:
    return LearningRate(RegressorTrainingConfig.model_validate({"lr": 1e-3, **keys}), steps_per_epoch)


def test_warm_up_rises_linearly_from_the_first_step() -> None:
    lr = rate(warmup_epochs=2, lr_scheduler="cosine", epochs=10)
    assert lr(0) == pytest.approx(1e-3 / 20)
    assert lr(19) == pytest.approx(1e-3)
    assert lr(0) > 0


def test_cosine_ends_at_lr_min_and_never_rises_again() -> None:
    lr = rate(warmup_epochs=1, lr_scheduler="cosine", epochs=10, lr_min=1e-6)
    after = [lr(step) for step in range(10, 300)]
    assert all(a >= b for a, b in itertools.pairwise(after))
    assert lr(100) == pytest.approx(1e-6)
    assert lr(250) == pytest.approx(1e-6)


def test_more_epochs_on_resume_keep_falling() -> None:
    longer = rate(warmup_epochs=0, lr_scheduler="cosine", epochs=40)
    longer.load_state_dict(rate(warmup_epochs=0, lr_scheduler="cosine", epochs=20).state_dict())
    tail = [longer(step) for step in range(200, 400)]
    assert all(a >= b for a, b in itertools.pairwise(tail))


def test_refreshed_schedule_spans_the_remaining_steps_without_warm_up() -> None:
    lr = rate(warmup_epochs=2, lr_scheduler="cosine", epochs=10, lr_min=1e-6)
    lr.restart(50)
    assert lr(50) == pytest.approx(1e-3)
    assert lr(100) == pytest.approx(1e-6)


def test_onecycle_peaks_at_max_lr_and_stays_at_its_end() -> None:
    lr = rate(warmup_epochs=0, lr_scheduler="onecycle", epochs=10, max_lr=2e-3, pct_start=0.3)
    assert lr(0) == pytest.approx(2e-3 / 25)
    assert lr(30) == pytest.approx(2e-3)
    assert lr(100) == lr(1000) == pytest.approx(2e-3 / 25 / 1e4)


def test_restarts_return_to_the_full_rate() -> None:
    lr = rate(
        warmup_epochs=0, lr_scheduler="cosine_restarts", epochs=100, lr_restart_period=2, lr_restart_mult=2, lr_min=0.0
    )
    assert [step for step in range(0, 200) if lr(step) == pytest.approx(1e-3)] == [0, 20, 60, 140]


def test_plateau_reduces_after_patience_and_ignores_nan() -> None:
    lr = rate(warmup_epochs=0, lr_scheduler="plateau", lr_patience=1, lr_factor=0.5)
    for loss in (1.0, 1.1, float("nan"), 1.2):
        lr.observe(loss)
    assert lr(1000) == pytest.approx(5e-4)


def test_plateau_state_survives_a_resume() -> None:
    first, second = (rate(warmup_epochs=0, lr_scheduler="plateau", lr_patience=0) for _ in range(2))
    for loss in (1.0, 2.0, 3.0):
        first.observe(loss)
    second.load_state_dict(first.state_dict())
    assert second(0) == first(0) == pytest.approx(2.5e-4)


def test_another_batch_size_keeps_the_place_in_the_epochs() -> None:
    keys: dict[str, object] = {"warmup_epochs": 0, "lr_scheduler": "cosine", "epochs": 10, "lr_min": 1e-6}
    before, after = rate(10, **keys), rate(40, **keys)
    after.load_state_dict(before.state_dict())
    assert after(after.place(6, 0)) == pytest.approx(before(before.place(6, 0)))
    assert after(after.place(11, 0)) == pytest.approx(1e-6)
    before.restart(before.place(6, 0))
    after.load_state_dict(before.state_dict())
    assert after(after.place(6, 0)) == pytest.approx(1e-3)


def test_place_counts_accumulated_steps() -> None:
    lr = rate(5, grad_accum_steps=4)
    assert [lr.place(1, 0), lr.place(1, 4), lr.place(2, 0), lr.place(2, 8)] == [0, 1, 5, 7]


@given(
    st.sampled_from(["constant", "cosine", "onecycle", "cosine_restarts", "plateau"]),
    st.integers(0, 3), st.integers(4, 12), st.integers(1, 50), st.integers(0, 2000),
)  # fmt: skip
def test_rate_is_always_positive_and_bounded(name: str, warmup: int, epochs: int, per_epoch: int, step: int) -> None:
    lr = rate(per_epoch, warmup_epochs=warmup, epochs=epochs, lr_scheduler=name)(step)
    assert math.isfinite(lr)
    assert 0 < lr <= 1e-3 + 1e-12


@given(
    st.sampled_from(["constant", "cosine", "onecycle", "cosine_restarts", "plateau"]),
    st.integers(0, 60), st.floats(1e-3, 1e2), st.booleans(),
)  # fmt: skip
def test_a_factor_asked_for_outlives_every_schedule_and_a_resume(name: str, at: int, factor: float, anew: bool) -> None:
    keys: dict[str, object] = {"warmup_epochs": 1, "epochs": 6, "lr_scheduler": name, "lr_patience": 0}
    plain, asked, resumed = (rate(10, **keys) for _ in range(3))
    asked.scale *= factor
    for lr in (plain, asked):
        lr.observe(1.0)
        lr.observe(2.0)
        if anew:  # checkpoint.refresh_lr
            lr.restart(at)
    resumed.load_state_dict(asked.state_dict())
    for step in range(at, 80):
        assert resumed(step) == asked(step) == pytest.approx(factor * plain(step))


def test_a_rate_that_is_planned_to_rise_is_told_from_one_that_falls_or_stays() -> None:
    falling, constant = (
        rate(warmup_epochs=2, lr_scheduler="cosine", epochs=30),
        rate(warmup_epochs=0, lr_scheduler="constant"),
    )
    assert [falling.rose_within(step, 5) for step in (0, 1, 19, 20, 23, 25, 200)] == [False, *[True] * 4, False, False]
    assert not any(constant.rose_within(step, 75) for step in range(300))
    constant.scale = 60.0  # which nobody planned
    assert not constant.rose_within(100, 75)
    constant.restart(100)
    assert [constant.rose_within(step, 75) for step in (100, 174, 175, 176)] == [True, True, False, False]


def test_a_restart_is_a_planned_rise_for_as_long_as_asked() -> None:
    lr = rate(warmup_epochs=0, lr_scheduler="cosine_restarts", epochs=40, lr_restart_period=10)
    (restart, *_) = (step for step in range(1, 400) if lr(step) > lr(step - 1))
    rose = [step for step in range(restart + 90) if lr.rose_within(step, 75)]
    assert rose[0] == restart
    assert len(rose) >= 75

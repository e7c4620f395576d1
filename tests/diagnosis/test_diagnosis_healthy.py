"""Healthy runs of every kind give nothing above a note."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from xectool.diagnosis.cause import Diagnosis
from xectool.findings import Severity

Record = Callable[[Any], Diagnosis]
few = settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
seeds = st.integers(0, 10**6)


def silent(found: Diagnosis) -> bool:
    assert [(cause.code, cause.problem, cause.evidence) for cause in found.causes] == []
    assert all(note.severity is Severity.INFO for note in found.notes)
    return found.healthy


@few
@given(
    seed=seeds,
    steps=st.sampled_from([1, 2, 5, 20, 60, 300]),
    per_epoch=st.sampled_from([3, 20, 40]),
    noise=st.floats(0.02, 0.6),
    floor=st.floats(0.02, 0.7),
    end=st.sampled_from(["finished", "interrupted"]),
)
def test_runs_of_any_length_and_noise(
    record: Record, course: Any, seed: int, steps: int, per_epoch: int, noise: float, floor: float, end: str
) -> None:
    assert silent(record(course(seed=seed, steps=steps, per_epoch=per_epoch, noise=noise, floor=floor, end=end)))


@few
@given(seed=seeds, at=st.integers(1, 150), noise=st.floats(0.02, 0.5))
def test_a_resumed_run(record: Record, course: Any, seed: int, at: int, noise: float) -> None:
    data = {"weights_finite": True, "optimizer_finite": True, "optimizer_absmax": 0.9, "digest_ok": True}
    assert silent(record(course(seed=seed, resume_at=at, resume_data=data, noise=noise)))


@few
@given(seed=seeds, period=st.integers(15, 60))
def test_warm_restarts_that_the_loss_takes_well(record: Record, course: Any, seed: int, period: int) -> None:
    run = course(seed=seed, config={"training": {"lr_scheduler": "cosine_restarts"}})
    for step, row in enumerate(run.rows):
        row["lr"] = 1e-7 + 1e-3 * 0.5 * (1 + math.cos(math.pi * (step % period) / period))
        row["loss"] *= 1.0 + 1.5 * (step >= period and step % period < 5)
    assert silent(record(run))


@few
@given(seed=seeds, offset=st.floats(1.2, 4))
def test_a_likelihood_that_crosses_zero(record: Record, course: Any, seed: int, offset: float) -> None:
    run = course(seed=seed, baseline=None, noise=0.25, start=3.0, floor=0.3)
    for row in run.rows:
        row["loss"] -= offset
        row["losses"] = {name: value - offset / 2 for name, value in row["losses"].items()}
    assert silent(record(run))


@few
@given(seed=seeds, bursts=st.integers(1, 16))
def test_a_loss_scale_that_settles(record: Record, course: Any, seed: int, bursts: int) -> None:
    run = course(seed=seed, config={"training": {"amp": "fp16"}})
    for step, row in enumerate(run.rows, start=1):
        row["amp_scale"] = 65536.0 / 2 ** min(step, bursts)
        if step <= bursts:
            row |= {"grad_norm": math.inf, "nonfinite": True, "skipped": True}
    assert silent(record(run))


@few
@given(seed=seeds, steps=st.sampled_from([20, 60, 300]))
def test_memory_that_fills_at_the_start(record: Record, course: Any, seed: int, steps: int) -> None:
    run, rng = course(seed=seed, steps=steps), np.random.default_rng(seed)
    for step, row in enumerate(run.rows):
        row["rss_bytes"] = int(1e9 - 6e8 * math.exp(-step / 8) + rng.normal(0, 2e6))
    assert silent(record(run))


@few
@given(seed=seeds, high=st.floats(2, 3.2))
def test_a_start_that_rises_before_it_falls(record: Record, course: Any, seed: int, high: float) -> None:
    run = course(seed=seed, noise=0.05, start=7.0, baseline=20.0)
    run.scale(2, np.array([high, 0.8 * high, 0.8 * high, 1.5]))
    assert silent(record(run))


@few
@given(seed=seeds, steps=st.sampled_from([48, 160]))
def test_a_term_that_learns_late_is_a_note(record: Record, course: Any, seed: int, steps: int) -> None:
    run = course(seed=seed, steps=steps, per_epoch=8, floor=0.5)
    for row in run.rows:
        row["losses"] = {"energy": row["loss"] - 0.6 * 0.9, "uvwFI": 0.6 * 0.9}
    run.event(steps, "no_learning", terms={"uvwFI": {"loss": 0.54, "trivial": 0.5, "ratio": 1.08}}, after_steps=steps)
    assert silent(record(run))


@pytest.mark.parametrize(("falls", "named"), [(True, False), (False, True)])
def test_a_short_run_that_still_learns_is_on_no_plateau(record: Record, course: Any, falls: bool, named: bool) -> None:
    """91 events in batches of 3, four epochs, as recorded: above the constant of few validated events, and falling."""
    train, validated = (0.8125, 0.7981, 0.776, 0.7621), (1.0174, 0.9874, 0.9713, 0.9554 if falls else 0.9714)
    run = course(steps=124, per_epoch=31, start=1.0, floor=1.0, noise=0.2, baseline=None)
    for row in run.rows:
        row["losses"] = {"energy": 0.55}
    both = enumerate(zip(train, validated, strict=True), 1)
    run.epochs = {number: {"metrics": {"train/loss": one, "val/loss": other}} for number, (one, other) in both}
    run.event(1, "baseline", terms={"energy": 0.5}, val_terms={"energy": 0.6})
    run.event(120, "no_learning", terms={"energy": {"loss": 0.5, "trivial": 0.45, "ratio": 1.1}}, after_steps=120)
    assert [cause.code for cause in record(run).causes] == ["XT-NO-LEARNING"] * named


def test_a_run_without_any_of_the_newer_records(record: Record, course: Any) -> None:
    run = course(input_scale=None, baseline=None)
    for row in run.rows:
        row |= {"block_norms": {}, "rss_bytes": -1}
    found = record(run)
    assert silent(found)
    assert {"InputScale", "MemoryGrowth", "UnevenRanks"} <= set(found.rules_skipped)
    assert all(found.rules_skipped.values())


_SMALL: Final = (
    1.373, 1.337, 1.314, 1.313, 1.322, 1.309, 1.31, 1.292, 1.302, 1.297, 1.276,
    1.268, 1.258, 1.251, 1.254, 1.24, 1.237, 1.231, 1.221, 1.212, 1.209, 1.211,
)  # fmt: skip  # validations of 13 events, of a training on 51, seed 112706 of the score


_TO_A_CONSTANT: Final = [
    1.3 * (1 + high * np.exp(-np.arange(22) / 22 / time)) for high, time in ((0.3, 0.2), (1.0, 0.15), (3.0, 0.1))
]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (_SMALL, False),
        ((*_SMALL[:9], math.nan, *_SMALL[10:]), False),
        ((*_SMALL[:6], *np.random.default_rng(3).permutation(_SMALL[6:])), True),
        *((values, True) for values in _TO_A_CONSTANT),
    ],
)
def test_validations_that_fall_by_more_than_their_noise_are_no_plateau(
    record: Record, course: Any, values: Sequence[float], named: bool
) -> None:
    """As recorded: steps scatter by more than is learned in 132 of them. Without a trend, or to a constant, named."""
    run = course(steps=132, per_epoch=6, start=1.4, floor=1.4, noise=0.15, baseline=None)
    for row in run.rows:
        row["losses"] = {"uvwFI": 0.706, "angleVec": 0.739}
    run.epochs = {
        number: {"metrics": {"train/loss": 1.4, "val/loss": float(value), "val/uvwFI/loss": 0.64}}
        for number, value in enumerate(values, 1)
    }
    run.event(1, "baseline", terms={"uvwFI": 0.667, "angleVec": 0.738}, val_terms={"uvwFI": 0.541, "angleVec": 0.516})
    found = [cause.code for cause in record(run).causes if cause.code != "XT-NAN-DATA"]  # of the validation
    assert found == ["XT-NO-LEARNING"] * named


@pytest.mark.parametrize("steps", [0])
def test_a_run_that_recorded_no_step_yet(record: Record, course: Any, steps: int) -> None:
    assert silent(record(course(steps=steps, end="interrupted")))

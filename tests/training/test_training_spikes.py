"""G06: a spike is seen at its very step, and nothing else is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from xectool.config.guards import GuardsConfig
from xectool.training.symptoms.spike import Judgement, SpikeDetector


def spikes(losses: np.ndarray, total: int = 2000, trivial: float = math.nan) -> list[int]:
    """Steps, from 1, that a detector calls a spike, each spike once."""
    detector = SpikeDetector(GuardsConfig(), total, trivial)
    found = []
    for step, loss in enumerate(losses.tolist(), 1):
        judgement = detector.judge(loss)
        if judgement is Judgement.SPIKE and not detector.steps_high:
            found.append(step)
        detector.accept(loss, judgement)
    return found


def falling(rng: np.random.Generator, steps: int = 2000, noise: float = 0.2) -> np.ndarray:
    return (0.05 + np.exp(-np.arange(steps) / 150)) * rng.lognormal(0.0, noise, steps)


HEALTHY = {
    "falling": lambda rng: falling(rng),
    "few events a batch": lambda rng: falling(rng) * rng.chisquare(2, 2000) / 2,
    "likelihood through zero": lambda rng: 2.0 - 4.0 * (1 - np.exp(-np.arange(2000) / 300)) + rng.normal(0, 0.3, 2000),
    "likelihood below zero": lambda rng: rng.normal(-3, 0.2, 2000),
    "warm restarts": lambda rng: falling(rng) + 0.3 * (np.arange(2000) % 500 < 40),
    "sum of tasks": lambda rng: falling(rng) + falling(rng, noise=0.5) + 0.02 * rng.chisquare(1, 2000),
    "first steps rise": lambda rng: falling(rng) * (1 + 2 * np.exp(-((np.arange(2000) - 8) ** 2) / 20)),
    "flat near zero": lambda rng: np.abs(rng.normal(0, 1e-6, 2000)),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", range(5))
def test_healthy_runs_of_2000_steps_have_no_spike(name: str, seed: int) -> None:
    assert spikes(HEALTHY[name](np.random.default_rng(seed)), trivial=1.0) == []


@pytest.mark.parametrize("factor", [12.0, 1000.0])
@pytest.mark.parametrize("seed", range(3))
def test_spike_is_seen_at_its_step(factor: float, seed: int) -> None:
    losses = np.random.default_rng(seed).normal(1.0, 0.05, 400)
    losses[119] *= factor
    assert spikes(losses) == [120]


@pytest.mark.parametrize(("total", "trusted_after"), [(40, 10), (400, 40), (3000, 100)])
def test_short_run_trusts_its_median_earlier(total: int, trusted_after: int) -> None:
    detector = SpikeDetector(GuardsConfig(), total)
    judged = []
    for loss in [2.0, *[1.0] * 119]:  # a higher loss at the start, as before any learning
        judged.append(detector.judge(15.0))
        detector.accept(loss, detector.judge(loss))
    assert judged.index(Judgement.SPIKE) == trusted_after


def test_spike_of_a_likelihood_is_seen() -> None:
    losses = np.random.default_rng(0).normal(-2.0, 0.2, 400)
    losses[299] = 300.0
    assert spikes(losses) == [300]


def test_divergence_from_the_first_steps_is_a_spike_without_any_median() -> None:
    detector = SpikeDetector(GuardsConfig(), 100_000)
    for _ in range(12):
        detector.accept(1.0, detector.judge(1.0))
    assert detector.judge(5.0) is Judgement.CALM
    assert detector.judge(100.0) is Judgement.SPIKE


def test_before_anything_is_known_only_the_trivial_loss_makes_a_step_suspect() -> None:
    assert SpikeDetector(GuardsConfig(), 1000).judge(1e9) is Judgement.CALM
    detector = SpikeDetector(GuardsConfig(), 1000, trivial=0.5)
    assert detector.judge(4.9) is Judgement.CALM
    assert detector.judge(5.1) is Judgement.SUSPECT


def test_recovery_is_told_with_its_length_and_a_new_level_is_accepted() -> None:
    detector = SpikeDetector(GuardsConfig(), 1000)
    for _ in range(150):
        detector.accept(1.0, detector.judge(1.0))
    after = [detector.accept(loss, detector.judge(loss)) for loss in (90.0, 60.0, 30.0, 1.1)]
    assert after == [0, 0, 0, 3]
    for _ in range(150):
        detector.accept(40.0, detector.judge(40.0))
    assert detector.judge(41.0) is Judgement.CALM
    assert detector.typical == 40.0


def test_detector_goes_on_from_its_state_as_if_nothing_had_happened() -> None:
    losses = falling(np.random.default_rng(3), 400).tolist()
    losses[250] = 80.0
    whole = SpikeDetector(GuardsConfig(), 400)
    other = SpikeDetector(GuardsConfig(), 400)
    for step, loss in enumerate(losses):
        whole.accept(loss, whole.judge(loss))
        if step < 251:
            other.accept(loss, other.judge(loss))
    resumed = SpikeDetector(GuardsConfig(), 400)
    resumed.load_state_dict(other.state_dict())
    for loss in losses[251:]:
        resumed.accept(loss, resumed.judge(loss))
    assert resumed.state_dict() == whole.state_dict()


def test_another_objective_is_measured_by_its_own_losses() -> None:
    detector = SpikeDetector(GuardsConfig(), 400)
    for _ in range(200):
        detector.accept(0.1, detector.judge(0.1))
    assert detector.judge(20.0) is Judgement.SPIKE
    detector.forget_losses()
    assert detector.judge(20.0) is Judgement.CALM

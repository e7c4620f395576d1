from __future__ import annotations

import pytest
import torch
from xectool.tasks.losses import LOSSES
from xectool.tasks.trivial import trivial_baseline

UNIFORM = (0.015 + 0.045 * (torch.arange(20001, dtype=torch.float64) + 0.5) / 20001).unsqueeze(1)


@pytest.mark.parametrize(
    ("name", "beta", "expected"),
    [("l1", 1.0, 0.01125), ("mse", 1.0, 1.6875e-4), ("smooth_l1", 1.0, 8.4375e-5), ("smooth_l1", 0.01, 7.0e-3)],
)
def test_energies_spread_uniformly(name: str, beta: float, expected: float) -> None:
    assert trivial_baseline(LOSSES[name], UNIFORM, beta) == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("name", ["l1", "mse", "smooth_l1", "relative_l1", "relative_mse"])
def test_no_other_constant_is_better(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(301, 2, generator=generator, dtype=torch.float64) ** 2
    best = trivial_baseline(LOSSES[name], targets, 0.3)
    for constant in torch.linspace(0, 1, 41, dtype=torch.float64):
        assert float(LOSSES[name](constant.expand_as(targets), targets, 0.3).mean()) >= best - 1e-9


def test_directions_over_the_whole_sphere_have_no_best_one() -> None:
    vectors = torch.randn(20000, 3, generator=torch.Generator().manual_seed(1))
    assert trivial_baseline(LOSSES["cosine"], vectors) == pytest.approx(1.0, abs=0.02)


def test_one_direction_is_predicted_perfectly() -> None:
    assert trivial_baseline(LOSSES["cosine"], torch.tensor([[80.0, 10.0]]).repeat(5, 1)) == pytest.approx(
        0.0, abs=1e-12
    )


def test_likelihood_of_the_best_gaussian() -> None:
    targets = 0.3 * torch.randn(5000, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    variance = targets.var(correction=0)
    expected = float(0.5 * (variance.log() + 1))
    assert trivial_baseline(LOSSES["gaussian_nll"], targets, 0.0) == pytest.approx(expected, rel=1e-9)

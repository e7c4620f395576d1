"""Weights that something puts in place between two steps are named; what an optimizer does to them never is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from xectool.training.symptoms.weight_reach import WeightReach

MATRICES = ["0.weight", "3.weight"]


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))


class Training:
    """Steps of AdamW on gradients of every kind: noise, rare bursts, and a course."""

    def __init__(self, lr: float = 1e-3, decay: float = 0.1, dtype: torch.dtype = torch.float32) -> None:
        self.net, self.lr, self.steps = network().to(dtype), lr, 0
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=lr, weight_decay=decay)
        self.reach = WeightReach(self.net, decay)

    def step(self, size: float = 1.0) -> list[str]:
        self.steps += 1
        for weight in self.net.parameters():
            weight.grad = size * (torch.randn_like(weight) + 0.3)
        self.optimizer.step()
        return self.reach.took(self.steps, self.lr)

    def kept(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.net.state_dict().items()}


@pytest.mark.parametrize("lr", [1e-9, 1e-4, 1e-2, 3.0])
@pytest.mark.parametrize("sizes", [[1.0], [1e-6] * 40 + [1e6], [0.0] * 30 + [1.0]], ids=["noise", "burst", "sudden"])
def test_no_step_moves_weights_beyond_its_reach(lr: float, sizes: list[float]) -> None:
    training = Training(lr)
    assert [found for number in range(240) if (found := training.step(sizes[number % len(sizes)]))] == []


def set_back(training: Training, kept: dict[str, Any]) -> None:
    training.net.load_state_dict(kept)


def turned(training: Training, kept: dict[str, Any]) -> None:
    with torch.no_grad():
        for weight in training.net.parameters():
            weight.neg_()


def enlarged(training: Training, kept: dict[str, Any]) -> None:
    with torch.no_grad():
        for weight in training.net.parameters():
            weight.mul_(50)


def flipped(training: Training, kept: dict[str, Any]) -> None:
    with torch.no_grad():
        training.net[0].weight[0, 0] += 1.0  # type: ignore[union-attr, operator, index]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("harm", "named"),
    [(set_back, MATRICES), (turned, MATRICES), (enlarged, []), (flipped, [])],
    ids=["set back", "turned", "enlarged", "one weight"],
)
def test_weights_of_another_state_are_named_and_damaged_ones_are_not(
    harm: Callable[[Training, dict[str, Any]], None], named: list[str], dtype: torch.dtype
) -> None:
    training = Training(dtype=dtype)
    for _ in range(20):
        training.step()
    kept = training.kept()
    for _ in range(50):
        assert training.step() == []
    harm(training, kept)
    assert training.step() == named
    assert training.step() == []


def test_a_return_to_an_earlier_step_is_meant() -> None:
    training = Training()
    for _ in range(20):
        training.step()
    kept = training.kept()
    for _ in range(50):
        training.step()
    training.net.load_state_dict(kept)
    training.steps = 20
    assert training.step() == []


def test_a_network_without_matrices_and_weights_that_are_not_finite_say_nothing() -> None:
    assert WeightReach(nn.LayerNorm(8), 0.0).took(1, 1e-3) == []
    training = Training()
    training.step()
    with torch.no_grad():
        training.net[0].weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    assert training.step() == []

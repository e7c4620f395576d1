"""Weights that something puts in place between two steps are named; what an optimizer does to them never is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from xectool.config.adam import ADAM_REACH
from xectool.training.optimization.optim import build_optimizer
from xectool.training.record.recorder import FlightRecorder
from xectool.training.symptoms.weight_reach import LOOK_EVERY, Move, WeightReach

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
        moves = self.unseen_step(size) + self.reach.look()
        assert [move.step for move in moves] in ([], [self.steps])
        return [name for move in moves for name in move.matrices]

    def unseen_step(self, size: float = 1.0) -> list[Move]:
        self.steps += 1
        for weight in self.net.parameters():
            weight.grad = size * (torch.randn_like(weight) + 0.3)
        self.optimizer.step()
        return self.reach.took(self.steps, self.lr)

    def kept(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.net.state_dict().items()}


SIZES = {
    "noise": [1.0],
    "burst": [1e-6] * 40 + [1e6],
    "sudden": [0.0] * 30 + [1.0],
}
LONG = {  # after many quiet steps: what moves weights farthest
    "two": [1e-6] * 1500 + [1e6] * 2,
    "three": [1e-6] * 1500 + [1e6] * 3,
    "ten": [1e-6] * 1500 + [1e6] * 10,
    "growth": [1e-9] * 2700 + [1e-9 * (0.999 / 0.9) ** number for number in range(300)],
    "faster growth": [1e-9] * 2900 + [1e-9 * 1.2**number for number in range(100)],
}


@pytest.mark.parametrize("lr", [1e-9, 1e-4, 1e-2, 3.0])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_no_step_moves_weights_beyond_its_reach(lr: float, sizes: list[float]) -> None:
    training = Training(lr)
    assert [found for number in range(240) if (found := training.step(sizes[number % len(sizes)]))] == []


@pytest.mark.parametrize("sizes", LONG.values(), ids=LONG)
def test_wild_gradients_after_many_quiet_ones_are_no_weights_of_another_state(sizes: list[float]) -> None:
    training = Training()
    assert [found for number in range(3000) if (found := training.step(sizes[number % len(sizes)]))] == []


def test_the_reach_is_what_gradients_that_grow_come_to() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    (group,) = build_optimizer([nn.ParameterList([weight])], 1.0, 0.0).param_groups
    optimizer, moved = torch.optim.AdamW([weight], lr=1.0, betas=group["betas"], weight_decay=0.0), 0.0
    for number in range(3000):
        before = weight.item()
        weight.grad = torch.full_like(weight, (0.999 / 0.9) ** (number - 2900) if number > 2500 else 0.0)
        optimizer.step()
        moved = max(moved, before - weight.item())
    assert moved < ADAM_REACH < 1.05 * moved


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


def test_steps_that_are_compared_together_are_told_apart() -> None:
    training, told = Training(), list[Move]()
    for number in range(1, 2 * LOOK_EVERY):
        if number in (LOOK_EVERY - 4, LOOK_EVERY + 3):
            turned(training, {})
        told += training.unseen_step()
    told += training.reach.look()
    assert told == [Move(LOOK_EVERY - 4, MATRICES), Move(LOOK_EVERY + 3, MATRICES)]
    assert training.reach.look() == []


def test_a_device_that_has_failed_keeps_its_own_error() -> None:
    """The last look asks the device as a run ends, also of one that ends because the device does."""

    def look() -> list[Move]:
        raise RuntimeError("CUDA error: unspecified launch failure")

    flight = FlightRecorder.__new__(FlightRecorder)
    flight._reach = SimpleNamespace(look=look)  # type: ignore[assignment]
    with pytest.raises(OSError, match="the first"), flight:
        raise OSError("the first")
    with pytest.raises(RuntimeError, match="launch failure"), flight:
        pass

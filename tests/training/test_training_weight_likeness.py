"""Weights that something other than the steps has changed are named, whatever the loss says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from xectool.training.optimization.parameter_blocks import weight_norm
from xectool.training.symptoms.weight_likeness import WeightLikeness, sign_digest


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))


def train(net: nn.Module, likeness: WeightLikeness, steps: int, lr: float) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 32)).square().sum().backward()
        optimizer.step()
        likeness.took(lr)


def draw_anew(net: nn.Module) -> None:
    net.get_submodule("3").reset_parameters()  # type: ignore[operator]


def spoil(net: nn.Module) -> None:
    with torch.no_grad():
        net.get_parameter("0.weight").fill_(torch.nan)
        net.get_parameter("3.weight")[0, 0] = 1e30


@pytest.mark.parametrize(
    ("harm", "lost"), [(None, []), (draw_anew, ["3.weight"]), (spoil, [])], ids=["sound", "drawn anew", "not finite"]
)
@pytest.mark.parametrize("lr", [1e-4, 1e-3])
def test_a_matrix_drawn_anew_is_named_and_steps_are_not(
    harm: Callable[[nn.Module], None] | None, lost: list[str], lr: float
) -> None:
    net = network()
    likeness = WeightLikeness(net)
    assert likeness.look(0) == []
    train(net, likeness, 30, lr)
    norm = weight_norm(net.parameters())
    if harm is not None:
        harm(net)
    if harm is draw_anew:
        assert abs(weight_norm(net.parameters()) / norm - 1) < 0.05, "the norm does not tell"
    assert likeness.look(30) == lost
    assert likeness.last_step == 30


def test_steps_that_may_have_turned_every_sign_say_nothing() -> None:
    net = network()
    likeness = WeightLikeness(net)
    likeness.look(0)
    train(net, likeness, 30, 0.05)
    draw_anew(net)
    assert likeness.look(30) == []
    assert WeightLikeness(nn.LayerNorm(8)).look(1) == []


def test_a_copy_has_the_same_signs_and_a_network_drawn_anew_half_of_them() -> None:
    net, other = network(), network()
    other.load_state_dict(net.state_dict())
    assert sign_digest(net) == sign_digest(other) != ""
    for module in other.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    both = int(sign_digest(net), 16) ^ int(sign_digest(other), 16)
    assert 0.3 < both.bit_count() / (4 * len(sign_digest(net))) < 0.7
    assert sign_digest(nn.ReLU()) == ""

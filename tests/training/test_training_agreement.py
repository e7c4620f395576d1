"""Networks of two ranks that PyTorch would take for the same: it adds gradients and copies buffers by their place."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn
from xectool.errors import UsageError
from xectool.tasks.base import TrainingTask
from xectool.training.ranks.agreement import network_facts, require_agreement
from xectool.training.ranks.base import Ranks


class Losses(nn.Module):
    """What is compared of a task."""

    terms, num_tallies = ("total",), 3


def network(*names: str, width: int = 3, persistent: bool = True) -> nn.Module:
    """Return layers of one shape, made in an order, with a buffer."""
    made = nn.Module()
    for name in names:
        made.add_module(name, nn.Linear(2, 2))
    made.register_buffer("table", torch.zeros(width), persistent=persistent)
    return made


def compare(first: nn.Module, second: nn.Module) -> None:
    """Compare the networks as two ranks do."""
    facts = [network_facts(model, cast(TrainingTask, Losses())) for model in (first, second)]
    require_agreement(cast(Ranks, Two(facts)), facts[1])


class Two:
    """Two ranks, of which both have spoken."""

    def __init__(self, said: list[dict[str, str]]) -> None:
        self.said = said

    def gather(self, own: Any) -> list[Any]:
        return self.said


def test_the_same_networks_agree() -> None:
    compare(network("one", "two"), network("one", "two"))


def test_layers_of_one_shape_made_in_another_order_are_refused() -> None:
    """DDP adds the gradient of ``two`` to that of ``one`` and says nothing."""
    with pytest.raises(UsageError, match="rank 1 runs with another weight order than rank 0:") as caught:
        compare(network("one", "two"), network("two", "one"))
    assert caught.value.code == "XT-RANK-MISMATCH"


def test_buffers_that_are_not_saved_are_compared() -> None:
    """DDP copies them from the first rank when it is made."""
    with pytest.raises(UsageError, match=r"another model\.table than rank 0: \(4,\) torch\.float32 instead of \(3,\)"):
        compare(network("one", persistent=False), network("one", width=4, persistent=False))

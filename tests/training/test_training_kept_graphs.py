"""Graphs of earlier steps are found with the name of what holds them; steps that leave none behind have none."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from xectool.training.symptoms.kept_graphs import KEPT_STEPS, kept_graphs

LOSSES: list[Tensor] = []


class Meter:
    def __init__(self) -> None:
        self.seen: deque[dict[str, Tensor]] = deque()
        self.total: Any = 0.0


METER = Meter()


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    gc.collect()
    gc.unfreeze()  # what the collector was told to leave alone it also leaves out of its answers
    yield
    gc.freeze()
    LOSSES.clear()
    METER.seen.clear()
    METER.total = 0.0
    gc.collect()


def train(keep: Callable[[Tensor], object], steps: int = 3 * KEPT_STEPS) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    for _ in range(steps):
        loss = network(torch.ones(2, 4)).square().mean()
        loss.backward(retain_graph=True)
        keep(loss)


def add(loss: Tensor) -> None:
    METER.total = METER.total + loss


def closure() -> Callable[[Tensor], object]:
    history: list[Tensor] = []

    def keep(loss: Tensor) -> None:
        history.append(loss)

    return keep


@pytest.mark.parametrize(
    ("keep", "holder"),
    [
        (LOSSES.append, "LOSSES ("),
        (lambda loss: METER.seen.append({"loss": loss}), "Meter.seen ("),
        (add, "Meter.total ("),
        (None, "history of closure.<locals>.keep ("),
    ],
)
def test_what_keeps_graphs_is_named_with_its_file(keep: Callable[[Tensor], object] | None, holder: str) -> None:
    keep = keep or closure()
    train(keep)
    found = kept_graphs()
    assert found.holder.startswith(holder)
    assert "test_training_kept_graphs.py" in found.holder
    assert found.steps == pytest.approx(3 * KEPT_STEPS, rel=0.2)


def test_graphs_of_many_other_weights_hide_none() -> None:
    others = [nn.Linear(2, 2)(torch.ones(1, 2)) for _ in range(1000)]
    train(LOSSES.append)
    assert kept_graphs().holder.startswith("LOSSES (")
    assert len(others) == 1000


@pytest.mark.parametrize(
    "keep", [lambda loss: LOSSES.append(loss.detach()), lambda loss: METER.seen.append({"loss": loss.item()}), id]
)
def test_numbers_and_detached_tensors_are_no_graphs(keep: Callable[[Tensor], object]) -> None:
    train(keep)
    assert kept_graphs().holder == ""
    assert kept_graphs().steps == 0


def test_the_graphs_of_a_few_steps_are_those_of_a_window() -> None:
    train(LOSSES.append, steps=KEPT_STEPS // 2)
    assert kept_graphs().steps == 0

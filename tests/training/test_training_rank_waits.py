"""How long a rank waits for the gradients of the others, told apart from what its own backward pass takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from xectool.training.ranks import group as rank_group
from xectool.training.ranks.base import Ranks
from xectool.training.ranks.group import RankGroup, add_gradients


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[torch.futures.Future[list[torch.Tensor]]]:
    """Return the sums that were asked for; each is there once it is told so."""
    futures: list[torch.futures.Future[list[torch.Tensor]]] = []

    def all_reduce(values: torch.Tensor, async_op: bool) -> SimpleNamespace:
        futures.append(torch.futures.Future())
        return SimpleNamespace(get_future=lambda future=futures[-1]: future)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    return futures


def bucket(value: float) -> SimpleNamespace:
    return SimpleNamespace(buffer=lambda: torch.tensor([value]))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_wait_begins_with_the_last_bucket_whichever_is_summed_last(
    begun: list[torch.futures.Future[list[torch.Tensor]]], order: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((5.0, 8.0, 9.5, 9.5))  # both buckets, and what is summed
    monkeypatch.setattr(rank_group, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    group = RankGroup(0, 2)
    first = add_gradients(group, bucket(1.0))
    second = add_gradients(group, bucket(2.0))
    assert group.gradient_wait_s == 0.0
    for number in order:
        begun[number].set_result([torch.tensor([10.0 + number])])
    assert [first.wait().tolist(), second.wait().tolist()] == [[10.0], [11.0]]
    assert group.gradient_wait_s == 1.5
    assert group.notes.entered == 2


def test_a_single_process_waits_for_nobody() -> None:
    assert Ranks().gradient_wait_s == 0.0

"""Random numbers of an event: published values, uniform, and the same in every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from xectool.models.event_random import EventRandom, event_keys
from xectool.models.masking import MaskPolicy, count_masked, draw_mask

POLICIES = {
    "share": MaskPolicy(0.6),
    "by face": MaskPolicy({"inner": 0.05, "outer": 0.2, "top": 0.1, "bot": 0.9}),
    "bright": MaskPolicy(0.3, bright_scale=3.0, bright_threshold=0.3),
    "flat": MaskPolicy(0.05, npho_flat=True),
    "flat by face": MaskPolicy({"inner": 0.05, "top": 0.4}, npho_flat=True),
    "older flat": MaskPolicy(0.3, npho_flat=True, older=True),
    "patterns": MaskPolicy(0.05, patterns=((1, 2, 3), (7, 4000), tuple(range(50, 90)))),
}


def keys(count: int, epoch: int = 0, seed: int = 42) -> Tensor:
    return event_keys((seed, epoch, torch.zeros(count, dtype=torch.int64), torch.arange(count)))


def readings(count: int) -> tuple[Tensor, Tensor]:
    """npho with many equal values, and events that differ in how many sensors may be hidden."""
    generator = torch.Generator().manual_seed(3)
    npho = (torch.rand(count, 4760, generator=generator).pow(6) * 50).round() / 50
    share = torch.linspace(0, 1, count).unsqueeze(1)
    return npho, torch.rand(count, 4760, generator=generator) < share


def test_the_numbers_are_those_published_for_splitmix64() -> None:
    # First outputs for seed 0 of the authors' reference program.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    found = EventRandom(torch.zeros(1, dtype=torch.int64)).uniform(3, 0)[0]
    assert found.tolist() == [(value >> 11) * 2.0**-53 for value in published]


def test_numbers_are_uniform_and_independent_between_sensors_events_epochs_and_streams() -> None:
    first = EventRandom(keys(200)).uniform(4760, 0)
    assert stats.kstest(first.flatten().numpy(), "uniform").pvalue > 1e-3
    others = [EventRandom(keys(200, epoch=1)).uniform(4760, 0), EventRandom(keys(200)).uniform(4760, 1)]
    others += [EventRandom(keys(200, seed=43)).uniform(4760, 0), first.roll(1, 0), first.roll(1, 1)]
    for other in others:
        correlation = np.corrcoef(first.flatten().numpy(), other.flatten().numpy())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(first.numel())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 2**40))
def test_every_part_of_the_identity_changes_the_key(seed: int, epoch: int, file: int, entry: int) -> None:
    def key(*numbers: int) -> int:
        return int(event_keys([torch.tensor([number]) for number in numbers])[0])

    identity = (seed, epoch, file, entry)
    neighbours = {key(*(n + (i == place) for i, n in enumerate(identity[1:], 1))) for place in range(1, 4)}
    assert len(neighbours | {key(*identity[1:])}) == 4
    shared = event_keys((seed, epoch, torch.tensor([file]), torch.tensor([entry])))
    assert int(shared[0]) != int(event_keys((seed ^ 1, epoch, torch.tensor([file]), torch.tensor([entry])))[0])


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_batch_hides_what_its_parts_would_in_any_order(name: str, data: Any) -> None:
    count = data.draw(st.integers(1, 12))
    order = data.draw(st.permutations(range(count)))
    cut = data.draw(st.integers(0, count))
    npho, maskable = readings(12)
    event = torch.tensor(order)
    whole = draw_mask(npho, maskable, POLICIES[name], EventRandom(keys(12)))
    parts = [
        draw_mask(npho[rows], maskable[rows], POLICIES[name], EventRandom(keys(12)[rows]))
        for rows in (event[:cut], event[cut:])
    ]
    assert torch.equal(torch.cat(parts), whole[event])


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "patterns"])
def test_the_count_is_exact_in_every_event_of_a_batch(name: str) -> None:
    npho, maskable = readings(12)
    mask = draw_mask(npho, maskable, POLICIES[name], EventRandom(keys(12)))
    assert not (mask & ~maskable).any()
    assert torch.equal(mask.sum(1), count_masked(maskable, POLICIES[name].ratio))


def test_with_a_generator_that_the_batch_shares_the_mask_of_an_event_depends_on_its_batch() -> None:
    npho, maskable = readings(4)
    whole = draw_mask(npho, maskable, POLICIES["share"], torch.Generator().manual_seed(1))
    alone = draw_mask(npho[3:], maskable[3:], POLICIES["share"], torch.Generator().manual_seed(1))
    assert not torch.equal(whole[3:], alone)


def test_every_pattern_is_repeated_about_equally_often() -> None:
    maskable = torch.ones(900, 4760, dtype=torch.bool)
    counts = draw_mask(torch.ones(900, 4760), maskable, POLICIES["patterns"], EventRandom(keys(900))).sum(1)
    shares = [(counts == size).sum().item() / 900 for size in (3, 2, 40)]
    assert sum(shares) == 1
    assert min(shares) > 0.27

"""The parts the checks stand on: maps, hashes, choices of events, orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from xectool.checks import identity, reading
from xectool.checks.cells import Place
from xectool.checks.identity import IdentityBlock, find_repeated, find_shared, hash_numbers, lonely_numbers
from xectool.checks.normalizing import NphoMap
from xectool.checks.reading import BLOCK_EVENTS, block_edges, spread_out
from xectool.checks.similarity import _compare
from xectool.checks.targets import RowReservoir, TargetScan
from xectool.config.normalization import NormalizationConfig
from xectool.errors import DataFileError
from xectool.models.normalize import SCHEMES, Normalizer

KNOWN = [{"npho_scale": 1000.0, "npho_scale2": 4.08}, {"npho_scale": 0.58, "npho_scale2": 1.0}, {"npho_scale": 20000.0}]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("constants", KNOWN)
def test_values_are_judged_as_the_model_sees_them(scheme: str, constants: dict[str, float]) -> None:
    settings = NormalizationConfig(npho_scheme=scheme, **constants)
    ours, model = NphoMap(settings), Normalizer(settings)
    assert ours.lowest == pytest.approx(model.scheme.lowest)
    photons = np.linspace(max(ours.lowest, -50.0), 1e5, 101)
    theirs = model.scheme(torch.tensor(photons, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(ours.npho(photons), theirs, rtol=1e-12)
    back = [ours.photons(float(value)) for value in theirs]
    np.testing.assert_allclose(back, photons, rtol=1e-9, atol=1e-6)
    times = np.linspace(-1e-7, 1e-7, 11)
    network = model.normalize(torch.full((11,), 500.0), torch.tensor(times))[0][..., 1]
    np.testing.assert_allclose(ours.time(times), network.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_raw_sentinel_normalises_to_the_sentinel(scheme: str) -> None:
    settings = NormalizationConfig(npho_scheme=scheme, sentinel_npho=0.5)
    (photons, seconds), _ = NphoMap(settings).raw_sentinels()
    assert photons is not None
    assert seconds is not None
    assert NphoMap(settings).npho(np.array(photons)) == pytest.approx(0.5)
    assert NphoMap(settings).time(np.array(seconds)) == pytest.approx(settings.sentinel_time)


def stream_of(numbers: list[tuple[int, int]], size: int = 3) -> Any:
    def stream() -> Iterator[IdentityBlock]:
        for start in range(0, len(numbers), size):
            part = np.array(numbers[start : start + size], np.int64)
            entries = np.arange(start, start + len(part))
            yield IdentityBlock("a.root", entries, part[:, 0], part[:, 1], hash_numbers(part[:, 0], part[:, 1]))

    return stream


PAIRS = st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 6)), min_size=1, max_size=40)


@given(numbers=PAIRS, most=st.sampled_from([2, 5, 10_000]))
def test_every_repetition_is_counted_whatever_fits_into_memory(numbers: list[tuple[int, int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "MAX_HASHES", most)
        found = find_repeated(stream_of(numbers), len(numbers))
    assert found.count == len(numbers) - len(set(numbers))
    for pair in found.pairs:
        assert numbers[pair.first_entry] == numbers[pair.entry] == (pair.run, pair.event)
        assert pair.first_entry < pair.entry


@given(first=PAIRS, second=PAIRS, most=st.sampled_from([2, 10_000]))
def test_every_shared_event_is_counted(first: list[Any], second: list[Any], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "MAX_HASHES", most)
        found = find_shared(stream_of(first), stream_of(second), len(first))
    assert found.count == sum(pair in set(first) for pair in second)
    assert all(first[pair.first_entry] == second[pair.entry] for pair in found.pairs)


def test_few_places_are_kept_where_every_event_is_the_same() -> None:
    asked = 0

    def stream() -> Iterator[IdentityBlock]:
        nonlocal asked
        for start in range(0, 50_000, 100):
            asked += 1
            same = np.zeros(100, np.int64)
            yield IdentityBlock("a.root", np.arange(start, start + 100), same, same, hash_numbers(same, same))

    found = find_repeated(stream, 50_000)
    assert (found.count, len(found.pairs)) == (49_999, identity.KEPT_PAIRS)
    assert asked == 501  # all of them for the count, one more for the places


def test_a_damaged_piece_of_one_branch_does_not_shift_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 entries in pieces of 20 the first piece of one branch is damaged; pieces of both go on together."""

    class HalfDamaged:
        num_entries = 50

        def read_into(self, branch: str, start: int, stop: int, out: np.ndarray) -> None:
            if branch == "run" and start == 0:
                raise DataFileError("damaged", where="run")
            out[:, 0] = np.arange(start, stop)

    monkeypatch.setattr(reading, "SCALAR_ENTRIES", 20)
    troubles: list[Any] = []
    file: Any = HalfDamaged()
    pieces = list(reading.read_together(file, (("run", 1), ("event", 1)), np.int64, troubles.append))
    assert [start for start, _ in pieces] == [20, 40]
    assert all((runs == events).all() and runs[0, 0] == start for start, (runs, events) in pieces)
    assert len(troubles) == 1
    alone = [reading.read_small(file, name, 1, np.int64, troubles.append) for name in ("run", "event")]
    assert [pair[0] for pair in next(zip(*alone, strict=False))] == [20, 0]  # read one by one they part (control)


def test_hashes_of_different_numbers_differ() -> None:
    runs, events = (axis.ravel() for axis in np.meshgrid(np.arange(300), np.arange(300)))
    assert len(np.unique(hash_numbers(runs, events))) == 90_000


def test_a_run_number_that_stands_alone_is_seen() -> None:
    assert lonely_numbers(np.array([5, 5, 9, 5, 5, 6, 6])).tolist() == [2]
    assert lonely_numbers(np.array([5, 6])).tolist() == []


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20), st.integers(1, 8000))
def test_blocks_cover_a_file_once_and_a_choice_of_them_keeps_to_its_size(clusters: list[int], most: int) -> None:
    ends = np.cumsum(clusters)
    edges = block_edges([0, *ends[:-1].tolist()], int(ends[-1]))
    assert edges[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))
    assert edges[-1][1] == ends[-1]
    assert max(high - low for low, high in edges) <= BLOCK_EVENTS
    chosen = spread_out(edges, most)
    assert 0 < sum(high - low for low, high in chosen) <= max(most, 0)
    assert spread_out(edges, None) == edges


def test_a_choice_of_events_reaches_the_end_of_the_file() -> None:
    edges = block_edges(range(0, 100_000, 500), 100_000)
    chosen = spread_out(edges, 10_000)
    assert chosen[-1][0] > 95_000


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_kept_rows_are_evenly_spaced(sizes: list[int]) -> None:
    kept, start = RowReservoir(1, size=32), 0
    for size in sizes:
        kept.add(np.arange(start, start + size, dtype=float)[:, None])
        start += size
    rows = kept.rows[:, 0]
    assert 0 < len(rows) <= 32
    assert set(np.diff(rows)) <= {float(kept.stride)}


def test_correlation_of_neighbours_is_that_of_the_whole_stream() -> None:
    values = np.cumsum(np.random.default_rng(1).normal(size=400))[:, None] + 1e6
    scan = TargetScan("energyTruth", 1)
    for start in range(0, 400, 70):
        part = values[start : start + 70]
        numbers = np.arange(start, start + len(part))
        scan.add(part, Place("a.root", numbers, numbers, numbers))
    expected = np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]
    assert scan.order.correlation[0] == pytest.approx(expected, abs=1e-6)


def test_p_values_are_those_of_independent_events() -> None:
    rng = np.random.default_rng(2)
    found = [_compare("x", rng.normal(size=(200, 1)), rng.normal(size=(200, 1))) for _ in range(200)]
    assert np.mean([item.p_value < 0.1 for item in found if item is not None]) == pytest.approx(0.1, abs=0.06)
    shifted = _compare("x", rng.normal(size=(500, 1)), rng.normal(1, 1, (500, 1)))
    assert shifted is not None
    assert shifted.differs
    assert shifted.effect == pytest.approx(1.0, abs=0.2)

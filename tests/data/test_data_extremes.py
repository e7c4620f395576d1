"""The extremes of events are those of their readings, however they come into a batch."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.data.cache.building import build_missing
from xectool.data.cache.cached_events import CachedEvents
from xectool.data.cache.codec import Lossless
from xectool.data.cache.store import CacheStore
from xectool.data.events import EventSource
from xectool.data.extremes import NPHO_HIGH, NPHO_LOW, PHOTONS, TIME_HIGH, TIME_LOW, TRUTH_HIGH, Usual, measure
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.data.window import WindowArrays

SHAPE = (11, 4760)


def poisoned() -> WindowArrays:
    """Events 0 to 4 sound; then one reading each that no event can have, or none at all."""
    chance = np.random.default_rng(5)
    window = WindowArrays.empty(SHAPE[0], {"energy": 1, "uvwFI": 3})
    window.npho[:] = chance.poisson(3, SHAPE) - 0.5
    window.time[:] = np.where(chance.random(SHAPE) < 0.8, 1e10, chance.normal(0, 1e-8, SHAPE))
    window.npho[:, ::50] = 1e10
    window.targets["energy"][:], window.targets["uvwFI"][:] = 0.05, np.nan
    window.npho[5, 7], window.npho[6, 7], window.npho[7] = np.nan, -np.inf, 1e10
    window.time[8, 7], window.time[9, 7] = 9.5e9, np.nan
    window.targets["uvwFI"][10] = 1.0, -np.inf, np.nan
    return window


def test_extremes_are_those_of_each_event():
    window = poisoned()
    measure(window)
    for event, found in enumerate(window.extremes):
        npho, time = window.npho[event], window.time[event]
        truth = np.concatenate([target[event] for target in window.targets.values()])
        with np.errstate(invalid="ignore"):
            expected = {
                PHOTONS: npho[np.abs(npho) <= 9e9].sum(dtype=np.float64),
                NPHO_LOW: npho.min(),
                NPHO_HIGH: np.maximum(0.0, npho[npho != 1e10].max(initial=0.0)),
                TIME_LOW: time.min(),
                TIME_HIGH: np.maximum(0.0, time[time != 1e10].max()),
                TRUTH_HIGH: np.nanmax(np.abs(truth)),
            }
        np.testing.assert_allclose(found, [expected[column] for column in sorted(expected)], rtol=1e-12)
    usual = Usual({NPHO_LOW: (-1.0, 9e9), TIME_HIGH: (0.0, 1e-6), TIME_LOW: (-1e-6, np.inf), TRUTH_HIGH: (0.0, 1.0)})
    assert [usual.holds(window.extremes[event : event + 1]) for event in range(SHAPE[0])] == [True] * 5 + [False] * 6
    assert usual.holds(window.extremes[:5])
    assert not usual.holds(window.extremes)
    many = np.tile(window.extremes[:5], (8, 1))
    assert usual.holds(many)
    for event in range(5, SHAPE[0]):
        assert not usual.holds(np.concatenate([many, window.extremes[event : event + 1]]))
    assert not usual.holds(None)


@pytest.mark.parametrize("kind", ["threads", "processes", "cache"])
def test_batches_of_the_measured_epoch_have_the_extremes_of_their_events(dataset, tmp_path, kind):
    source = open_source(dataset.config(), "train", ("energy", "uvwFI"))
    if kind == "cache":
        store = CacheStore(tmp_path / "cache")
        store.prepare()
        cache = CachedEvents(source, Lossless(), store)
        source = EventSource(source.files, source.branches, (), cache)
        build_missing(cache)
    plan = DataPlan(source.files, 32, 3, num_shards=4, chunksize=64)
    options = LoaderOptions(num_workers=int(kind == "processes"))
    with EventLoader(source, plan, options=options) as loader:
        loader.measured_epoch = 2
        assert {batch.extremes is None for batch in loader.epoch(1)} == {True}
        loader.exclude(np.array([0]), np.array([0]))
        batches = list(loader.epoch(2))
    assert sum(batch.num_events for batch in batches) == sum(dataset.sizes) - 1
    for batch in batches:
        targets = {task: target.numpy() for task, target in batch.targets.items()}
        again = WindowArrays(
            batch.npho.numpy(), batch.time.numpy(), targets, batch.entry, np.empty((batch.num_events, 6))
        )
        measure(again)
        np.testing.assert_array_equal(batch.extremes, again.extremes)

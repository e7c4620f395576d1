"""The account of the host's memory, against what the loader itself says it holds at most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from xectool.config.host_memory import NumEvents, fitting_sizes, host_memory_bytes, loader_terms
from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.data.blocks import SourceFile
from xectool.data.loader import LoaderOptions, loader_memory_bytes
from xectool.data.plan import DataPlan

TASK = {"energy": 1}


def run(**data: Any) -> RunConfig:
    return config_from_dict({"kind": "regressor", "tasks": {"energy": {"enabled": True}}, "data": data}, "test")


def held(config: RunConfig, events: int, shuffle: bool, builds: bool) -> int:
    """What the loader of one file of so many events holds at most."""
    data = config.data
    plan = DataPlan(
        (SourceFile("events.root", "tree", events),),
        data.batch_size,
        1,
        shuffle=shuffle,
        num_shards=data.num_shards,
        chunksize=data.chunksize,
    )
    options = replace(LoaderOptions.from_config(data, "cpu"), builds_cache=builds)
    return loader_memory_bytes(plan, options, TASK)


@pytest.mark.parametrize("events", [(10**6, 10**6), (10**6, 100), (5000, 300), (100, 10**5), (20, 20)])
@pytest.mark.parametrize(
    "data",
    [
        {},
        {"chunksize": 262_144, "num_workers": 4, "num_threads": 4},
        {"num_shards": 1, "num_workers": 2, "prefetch_factor": 5},
        {"shuffle": False, "cache": "./cache"},
        {"batch_size": 4096, "chunksize": 4096},
    ],
)
def test_the_loaders_hold_what_is_counted(data: dict[str, Any], events: tuple[int, int]) -> None:
    """For one configuration 21 GB were told by one command and 50 GB by another: validation was not counted."""
    config = run(**data)
    told = sum(loader_terms(config, NumEvents(*events)).values())
    builds = "cache" in data
    known = held(config, events[0], config.data.shuffle, builds) + held(config, events[1], False, False)
    assert told == pytest.approx(known, rel=0.004)  # truth and identity of an event are not counted


def test_unknown_events_fill_the_windows_and_validation_has_as_many_as_training() -> None:
    config = run()
    unknown, many = loader_terms(config, NumEvents()), loader_terms(config, NumEvents(10**12, 10**12))
    assert unknown == many
    assert loader_terms(config, NumEvents(700)) == loader_terms(config, NumEvents(700, 700)) != unknown
    assert loader_terms(config, NumEvents(700))["shuffling window"] == 700 * 38_080


@pytest.mark.parametrize("data", [{"chunksize": 200_000}, {"batch_size": 60_000, "chunksize": 60_000}])
@pytest.mark.parametrize("events", [NumEvents(), NumEvents(150_000, 3000)])
@pytest.mark.parametrize("budget", [0.6e9, 2e9, 5e9])
def test_what_is_proposed_passes(data: dict[str, Any], events: NumEvents, budget: float) -> None:
    config = run(**data)

    def taken(changed: RunConfig) -> float:
        return sum(host_memory_bytes(changed, events).values())

    assert taken(config) > budget
    sizes = {key.removeprefix("data."): size for key, size in fitting_sizes(config, taken, budget).items()}
    proposed = run(**data | sizes)
    assert 0.5 * budget < taken(proposed) <= budget
    assert proposed.data.chunksize % proposed.data.batch_size == 0


def test_nothing_is_proposed_where_the_libraries_alone_do_not_fit() -> None:
    assert fitting_sizes(run(), lambda config: sum(host_memory_bytes(config).values()), 4e8) == {}

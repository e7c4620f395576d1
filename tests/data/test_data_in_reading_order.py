"""Events in the order of reading are those of the batches, with the steps that serve them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from xectool.data.batch import measured
from xectool.data.excluded import event_keys
from xectool.data.in_reading_order import in_reading_order
from xectool.data.loader import EventLoader, LoaderOptions, window_reader
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.errors import XecError
from xectool.probes.nonfinite.singles import place_of, single

TASKS = ("energy", "uvwFI")
HEAVIER = SimpleNamespace(weights=lambda truth, npho: np.where(truth["energy"][:, 0] > 0.03, 2.0, 0.5))


@pytest.mark.parametrize(
    ("changes", "ranks", "options"),
    [
        ({}, 1, {}),
        ({"shuffle": False}, 1, {"num_threads": 3}),
        ({"drop_last": True}, 3, {"num_workers": 1}),
        ({"fiducial": {"enabled": True, "u_max": 20.0}}, 2, {}),
    ],
)
def test_each_event_of_the_batches_comes_once_with_its_numbers_and_its_step(dataset, changes, ranks, options):
    order = {name: changes[name] for name in ("shuffle", "drop_last") if name in changes}
    settings = {name: value for name, value in changes.items() if name not in order}
    source = open_source(dataset.config(**settings), "train", TASKS)
    plan = DataPlan(source.files, 7, 3, num_shards=4, chunksize=64, world_size=ranks, **order)
    for rank in range(ranks):
        with EventLoader(source, plan, rank=rank, options=LoaderOptions(**options), weights=HEAVIER) as loader:
            served = {}
            for batch in loader.epoch(2):
                for row in range(batch.num_events):
                    served[int(batch.file_index[row]), int(batch.entry[row])] = batch.take(np.array([row]))
            assert len({float(event.weight) for event in served.values()}) == 2
            for window, steps in in_reading_order(loader, 2):
                np.testing.assert_array_equal(measured(replace(window, extremes=None)).extremes, window.extremes)
                for row in range(window.num_events):
                    found = single(window, row, steps)
                    one = served.pop(place_of(found))
                    assert (found.epoch, found.step) == (one.epoch, one.step)
                    assert (found.run, found.event) == (one.run, one.event)
                    for name in ("npho", "time", "weight"):
                        assert torch.equal(getattr(found, name), getattr(one, name))
                    assert all(torch.equal(found.targets[task], one.targets[task]) for task in TASKS)
            assert not served


def test_a_pass_that_lost_events_is_reported(dataset, monkeypatch):
    source = open_source(dataset.config(), "train", TASKS)
    with EventLoader(source, DataPlan(source.files, 7, 3, num_shards=4, chunksize=64)) as loader:
        windows = DataPlan.windows
        monkeypatch.setattr(DataPlan, "windows", lambda *arguments: windows(*arguments)[1:])
        with pytest.raises(XecError, match="served"):
            list(in_reading_order(loader, 0))


def test_events_that_are_left_out_do_not_come(dataset):
    source = open_source(dataset.config(), "train", TASKS)
    with EventLoader(source, DataPlan(source.files, 7, 3)) as loader:
        out = np.full(3, 2), np.array([1, 4, 5])
        loader.exclude(*out)
        keys = np.concatenate([event_keys(part.file_index, part.entry) for part, _ in in_reading_order(loader, 0)])
    assert len(keys) == source.num_events - 3
    assert not np.isin(event_keys(*out), keys).any()


def test_a_pass_may_be_left_early(dataset, monkeypatch):
    readers, closed = [], []

    def made(*arguments):
        reader = window_reader(*arguments)
        readers.append(reader)
        close = reader.close
        reader.close = lambda: (closed.append(reader), close())
        return reader

    monkeypatch.setattr("xectool.data.in_reading_order.window_reader", made)
    source = open_source(dataset.config(), "train", TASKS)
    with EventLoader(source, DataPlan(source.files, 7, 3, num_shards=4, chunksize=64)) as loader:
        for _ in range(2):
            windows = in_reading_order(loader, 0)
            assert next(windows)[0].num_events
            windows.close()
            assert closed == readers
        assert sum(batch.num_events for batch in loader.epoch(0)) == source.num_events

"""The data plan is a partition of the events, and the same one whatever reads it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.data.blocks import SourceFile
from xectool.data.plan import DataPlan
from xectool.errors import DataUnusable


def make_files(sizes, cluster=64, seed=0, keep=None):
    rng = np.random.default_rng(seed)
    files = []
    for index, size in enumerate(sizes):
        selected = None if keep is None else np.flatnonzero(rng.random(size) < keep).astype(np.int64)
        files.append(SourceFile(f"{index}.root", "tree", size, tuple(range(0, size, cluster)), selected))
    return files


def identities(plan, epoch, rank, start=0):
    out = []
    for step in range(start, plan.num_steps):
        file_index, entry = plan.batch_events(epoch, step, rank)
        out.append(list(zip(file_index.tolist(), entry.tolist(), strict=True)))
    return out


def expected_events(files):
    return sorted(
        (index, int(entry))
        for index, file in enumerate(files)
        for entry in (range(file.num_entries) if file.selected is None else file.selected)
    )


plans = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(0, 300), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0),
        "cluster": st.integers(1, 150),
        "batch_size": st.integers(1, 70),
        "num_shards": st.integers(1, 9),
        "chunksize": st.integers(1, 500),
        "world_size": st.integers(1, 5),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 5),
        "epoch": st.integers(0, 3),
    }
)


def build(case, **changes):
    case = case | changes
    files = make_files(case["sizes"], case["cluster"], keep=case.get("keep"))
    keys = ("batch_size", "seed", "shuffle", "num_shards", "chunksize", "world_size")
    return DataPlan(files, **{key: case[key] for key in keys}, drop_last=case.get("drop_last", False))


@settings(max_examples=150, deadline=None)
@given(plans)
def test_every_event_is_served_exactly_once_over_all_ranks(case):
    plan = build(case)
    served = [
        event
        for rank in range(case["world_size"])
        for batch in identities(plan, case["epoch"], rank)
        for event in batch
    ]
    assert sorted(served) == expected_events(plan.files)
    for rank in range(case["world_size"]):
        batches = identities(plan, case["epoch"], rank)
        assert len(batches) == plan.num_steps
        assert sum(map(len, batches)) == plan.events_of_rank(rank)
        assert all(len(batch) == case["batch_size"] for batch in batches[:-1])


@settings(max_examples=100, deadline=None)
@given(plans)
def test_ranks_together_see_what_one_rank_sees_at_the_global_batch_size(case):
    plan, world = build(case), case["world_size"]
    alone = build(case, world_size=1, batch_size=case["batch_size"] * world)
    assert plan.num_steps == alone.num_steps
    for step in range(plan.num_steps):
        whole = list(zip(*alone.batch_events(case["epoch"], step, 0), strict=True))
        parts = [list(zip(*plan.batch_events(case["epoch"], step, rank), strict=True)) for rank in range(world)]
        assert all(parts[rank] == whole[rank::world] for rank in range(world))


@settings(max_examples=100, deadline=None)
@given(plans)
def test_windows_hold_the_events_of_the_batches_and_nothing_else_is_read(case):
    plan, epoch = build(case), case["epoch"]
    for rank in range(case["world_size"]):
        wanted = {key for step in range(plan.num_steps) for key, _, _ in plan.batch_layout(epoch, step, rank)}
        windows = plan.windows(epoch, rank)
        assert len(windows) == len(set(windows))
        assert set(windows) == wanted
        assert {key.shard for key in windows} <= set(plan.shards_of_rank(rank))
        for step in range(plan.num_steps):
            file_index, entry = plan.batch_events(epoch, step, rank)
            for key, places, rows in plan.batch_layout(epoch, step, rank):
                pieces = plan.pieces(epoch, key)
                events = [(p.file_index, e) for p in pieces for e in range(p.entry_start, p.entry_stop)]
                assert len(events) <= plan.max_window_events
                assert [events[row] for row in rows] == list(zip(file_index[places], entry[places], strict=True))


@settings(max_examples=60, deadline=None)
@given(plans, st.data())
def test_a_resumed_epoch_serves_the_remaining_batches_from_the_remaining_windows(case, data):
    plan, epoch = build(case), case["epoch"]
    start = data.draw(st.integers(0, plan.num_steps))
    rank = data.draw(st.integers(0, case["world_size"] - 1))
    again = pickle.loads(pickle.dumps(plan))
    assert identities(again, epoch, rank, start) == identities(plan, epoch, rank)[start:]
    wanted = {key for step in range(start, plan.num_steps) for key, _, _ in plan.batch_layout(epoch, step, rank)}
    assert set(plan.windows(epoch, rank, start)) == wanted


@pytest.mark.parametrize("sizes", [(1, 7, 5000), (5000,), (3, 3, 3)])
def test_three_ranks_make_the_same_number_of_steps_whatever_the_file_sizes(sizes):
    plan = DataPlan(make_files(sizes), 32, seed=1, world_size=3, chunksize=512)
    counts = [len(identities(plan, 0, rank)) for rank in range(3)]
    assert counts == [plan.num_steps] * 3
    sizes_of_ranks = [plan.events_of_rank(rank) for rank in range(3)]
    assert max(sizes_of_ranks) - min(sizes_of_ranks) <= 1


def test_a_rank_may_be_served_an_empty_last_batch():
    plan = DataPlan(make_files([9]), 4, seed=0, world_size=2)
    assert [len(batch) for batch in identities(plan, 0, 1)] == [4, 0]
    assert [len(batch) for batch in identities(plan, 0, 0)] == [4, 1]


def test_epochs_and_seeds_differ_and_the_same_seed_repeats():
    files = make_files([2000, 900])
    first = DataPlan(files, 64, seed=3, chunksize=512)
    again = DataPlan(files, 64, seed=3, chunksize=512)
    other = DataPlan(files, 64, seed=4, chunksize=512)
    assert identities(first, 0, 0) == identities(again, 0, 0)
    assert identities(first, 0, 0) != identities(first, 1, 0)
    assert identities(first, 0, 0) != identities(other, 0, 0)


def test_a_batch_mixes_files():
    plan = DataPlan(make_files([4000] * 8), 256, seed=0, chunksize=4096)
    mixed = [len(np.unique(plan.batch_events(0, step, 0)[0])) for step in range(plan.num_steps - 1)]
    assert np.median(mixed) >= 5


def test_a_data_set_that_fits_is_shuffled_as_a_whole():
    plan = DataPlan(make_files([400], cluster=400), 40, seed=0)
    entries = np.concatenate([plan.batch_events(0, step, 0)[1] for step in range(plan.num_steps)])
    assert abs(np.corrcoef(entries[:-1], entries[1:])[0, 1]) < 0.2
    assert not np.array_equal(np.sort(plan.batch_events(0, 0, 0)[1]), np.sort(plan.batch_events(1, 0, 0)[1]))


def test_without_shuffling_events_come_in_file_order():
    plan = DataPlan(make_files([50, 0, 30]), 16, seed=0, shuffle=False, chunksize=24)
    assert [event for batch in identities(plan, 5, 0) for event in batch] == expected_events(plan.files)


def test_drop_last_leaves_out_the_short_step_only():
    plan = DataPlan(make_files([105]), 10, seed=0, drop_last=True)
    batches = identities(plan, 0, 0)
    assert [len(batch) for batch in batches] == [10] * 10
    assert len({event for batch in batches for event in batch}) == 100


@settings(max_examples=40, deadline=None)
@given(plans, st.floats(0.1, 0.9))
def test_only_selected_events_are_served_and_batches_stay_full(case, keep):
    files = make_files(case["sizes"], case["cluster"], keep=keep)
    if not sum(file.num_selected for file in files):
        return
    plan = DataPlan(files, case["batch_size"], case["seed"], chunksize=case["chunksize"])
    batches = identities(plan, case["epoch"], 0)
    assert sorted(event for batch in batches for event in batch) == expected_events(files)
    assert all(len(batch) == case["batch_size"] for batch in batches[:-1])
    pieces = plan.blocks(case["epoch"], 0)
    assert sum(piece.num_events for piece in pieces) == plan.num_events


def test_whole_clusters_are_kept_together_unless_larger_than_two_windows():
    plan = DataPlan(make_files([8800], cluster=880), 64, seed=0)
    assert plan.num_blocks == 10
    inner_edges = {piece.entry_start for piece in plan.blocks(0, 0)} - set(range(0, 8800, 880))
    assert len(inner_edges) <= plan.num_shards  # only the cuts between shards fall inside a cluster
    assert DataPlan(make_files([8800], cluster=880), 64, seed=0, chunksize=2048, num_shards=8).num_shards == 4
    small = DataPlan(make_files([20_000], cluster=10_000), 64, seed=0, chunksize=1024)
    assert (small.num_shards, small.num_blocks) == (1, 20)  # no window can hold the cluster: it is split


def test_memory_of_the_plan_grows_with_blocks_not_with_events():
    files = [SourceFile("a.root", "tree", 10_000_000, tuple(range(0, 10_000_000, 1000)))]
    assert len(pickle.dumps(DataPlan(files, 256, 0))) < 1_000_000


def test_no_event_left_says_what_to_check():
    with pytest.raises(DataUnusable, match="no event is left"):
        DataPlan(make_files([0, 0]), 8, 0)
    with pytest.raises(DataUnusable, match=r"data\.drop_last=false"):
        DataPlan(make_files([7]), 8, 0, drop_last=True)


@settings(max_examples=100, deadline=None)
@given(plans, st.booleans(), st.sampled_from([None, 0.4]))
def test_the_rows_of_windows_are_served_in_the_steps_they_say(case, drop_last, keep):
    try:
        plan = build(case, drop_last=drop_last, keep=keep)
    except DataUnusable:
        return
    epoch = case["epoch"]
    for rank in range(case["world_size"]):
        batches = identities(plan, epoch, rank)
        by_step = {step: sorted(batch) for step, batch in enumerate(batches) if batch}
        found = {}
        for key in plan.windows(epoch, rank):
            events = [
                (piece.file_index, int(entry))
                for piece in plan.pieces(epoch, key)
                for entry in (range(piece.entry_start, piece.entry_stop) if piece.selected is None else piece.selected)
            ]
            rows, steps = plan.served_rows(epoch, key, rank)
            assert (np.diff(rows) > 0).all()
            for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
                found.setdefault(step, []).append(events[row])
        assert {step: sorted(events) for step, events in found.items()} == by_step

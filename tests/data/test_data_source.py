"""Opening a data set checks every file before the first event is read."""

from __future__ import annotations

import os
import shlex

import numpy as np
import pytest
import torch
import uproot
from xectool.config.data import DataConfig
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.prepared import source_identity
from xectool.data.selection import find_overlap, inside_fiducial
from xectool.data.source import open_source
from xectool.errors import ConfigError, DataFileError, DataUnusable

TASKS = ("energy", "uvwFI")


def only_batch(source, size=1000):
    with EventLoader(source, DataPlan(source.files, size, seed=0, shuffle=False)) as loader:
        return next(iter(list(loader.epoch(0))))


def test_an_empty_file_among_good_ones_is_noted_and_left_out(dataset):
    source = open_source(dataset.config(), "train", TASKS)
    assert source.num_events == sum(dataset.sizes)
    assert [finding.code for finding in source.findings] == ["XT-DATA-EMPTY-TREE"]
    assert "part3.root" in source.findings[0].problem
    assert [file.num_entries for file in source.files] == list(dataset.sizes)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_was_replaced_by_a_smaller_one_is_named(tmp_path, make_events, write_events, workers):
    """A worker that opened it later ended in a traceback, and was said to be gone."""
    write_events(tmp_path / "a.root", make_events(20, 0, 1))
    source = open_source(DataConfig(train_path=str(tmp_path)), "train", TASKS)
    write_events(tmp_path / "b", make_events(8, 1, 1))
    os.replace(tmp_path / "b", tmp_path / "a.root")
    plan, options = DataPlan(source.files, 10, seed=0, shuffle=False), LoaderOptions(num_workers=workers)
    told = "it has 8 entries, and had 20 when it was first opened"
    with EventLoader(source, plan, options=options) as loader, pytest.raises(DataFileError, match=told) as caught:
        list(loader.epoch(0))
    assert caught.value.code == "XT-DATA-CHANGED"


def test_only_empty_files_are_unusable(tmp_path, make_events, write_events):
    write_events(tmp_path / "a.root", make_events(0, 0, 1))
    with pytest.raises(DataUnusable, match=r"none of the 1 files holds an event[\s\S]*make the files again") as caught:
        open_source(DataConfig(train_path=str(tmp_path)), "train", TASKS)
    assert caught.value.exit_code == 1


def test_one_bad_file_among_good_ones_is_named(tmp_path, make_events, write_events):
    write_events(tmp_path / "a.root", make_events(3, 0, 1))
    events = make_events(3, 1, 2)
    events["energyTrue"] = events.pop("energyTruth")
    from xectool.rootio.writer import TreeWriter

    with TreeWriter(tmp_path / "b.root", {n: (v.dtype, v.shape[1:]) for n, v in events.items()}) as writer:
        writer.extend(events)
    with pytest.raises(
        DataFileError, match=r"b\.root' has no branch 'energyTruth'[\s\S]*truth of task energy"
    ) as caught:
        open_source(DataConfig(train_path=str(tmp_path)), "train", TASKS)
    assert "--set data.truth_branches.energy=energyTrue" in caught.value.fix


def test_an_empty_path_names_the_key():
    with pytest.raises(ConfigError, match=r"--set data\.val_path="):
        open_source(DataConfig(train_path="x"), "val", TASKS)


def test_data_without_truth_is_read_where_none_is_required(tmp_path, make_events, write_events):
    events = make_events(4, 0, 1)
    write_events(tmp_path / "a.root", {n: v for n, v in events.items() if "Truth" not in n})
    write_events(tmp_path / "b.root", {n: v for n, v in events.items() if n != "uvwTruth"})
    source = open_source(DataConfig(), [str(tmp_path)], TASKS, require_truth=False)
    batch = only_batch(source)
    assert set(batch.targets) == {"energy"}
    assert (batch.targets["energy"][:4] == 1e10).all()
    np.testing.assert_array_equal(batch.targets["energy"][4:, 0].numpy(), events["energyTruth"])


def test_files_without_run_and_event_are_identified_by_entry(tmp_path, make_events, write_events):
    events = make_events(5, 0, 1)
    write_events(tmp_path / "a.root", {n: v for n, v in events.items() if n not in ("run", "event")})
    batch = only_batch(open_source(DataConfig(train_path=str(tmp_path)), "train", TASKS))
    assert batch.run.tolist() == [-1] * 5
    assert batch.event.tolist() == [0, 1, 2, 3, 4]


def test_excluded_events_are_not_served(dataset):
    gone = {(2, 17), (2, 18), (4, 0)}
    source = open_source(dataset.config(), "train", TASKS, exclude=gone)
    batch = only_batch(source)
    assert batch.num_events == sum(dataset.sizes) - 3
    assert not gone & set(zip(batch.file_index.tolist(), batch.entry.tolist(), strict=True))


def test_events_that_the_configuration_leaves_out_are_not_served(dataset):
    """No key left a single damaged event out of a training."""
    names = [file.path for file in open_source(dataset.config(), "train", TASKS).files]
    config = dataset.config(exclude=[f"{names[2]}:17", f"{os.path.basename(names[4])}:0"])
    for which in ("train", "val"):  # of the same files here
        served = only_batch(open_source(config, which, TASKS))
        assert served.num_events == sum(dataset.sizes) - 2
        assert not {(2, 17), (4, 0)} & set(zip(served.file_index.tolist(), served.entry.tolist(), strict=True))
    given = open_source(config, [str(dataset.directory)], TASKS)
    assert given.num_events == sum(dataset.sizes)
    assert source_identity(open_source(config, "train", TASKS)) != source_identity(given)


def test_an_event_beyond_its_file_is_refused_with_the_others(dataset):
    last = open_source(dataset.config(), "train", TASKS).files[2]
    beyond = f"{last.path}:{last.num_entries}"
    config = dataset.config(exclude=[f"{last.path}:0", beyond])
    with pytest.raises(ConfigError, match=f"is not there: .* has entries 0 to {last.num_entries - 1}") as caught:
        open_source(config, "train", TASKS)
    assert beyond in caught.value.problem
    assert caught.value.fix == f"--set 'data.exclude=[{last.path}:0]'"


def test_where_all_events_are_left_out_the_key_is_named(dataset):
    first = open_source(dataset.config(), "train", TASKS).files[2]
    every = [f"{first.path}:{entry}" for entry in range(first.num_entries)]
    config = DataConfig(train_path=first.path, val_path=first.path, exclude=every)
    with pytest.raises(DataUnusable) as caught:
        open_source(config, "train", TASKS)
    assert (caught.value.where, caught.value.fix) == ("data.exclude", "--set 'data.exclude=[]'")


def test_the_first_events_come_in_file_order(dataset):
    source = open_source(dataset.config(), "train", TASKS).first(50)
    batch = only_batch(source)
    assert batch.num_events == source.num_events == 50
    assert batch.file_index.tolist() == [0] + [1] * 7 + [2] * 42
    assert batch.entry.tolist() == [0, *range(7), *range(42)]


def test_the_fiducial_rule_is_that_of_the_older_system():
    config = DataConfig(fiducial={"enabled": True, "w_max": 30.0}).fiducial
    uvw = np.array([[0, 0, 0], [23.9, 0, 1], [0, -67.9, 1], [0, 0, -0.1], [0, 0, 30], [0, 0, 30.1], [np.nan, 0, 1]])
    assert inside_fiducial(uvw, config).tolist() == [True, False, False, False, True, False, False]


def test_the_cut_is_not_applied_to_given_files(dataset):
    config = dataset.config(fiducial={"enabled": True, "u_max": 1.0})
    assert open_source(config, [str(dataset.directory)], TASKS).num_events == sum(dataset.sizes)
    assert open_source(config, "val", TASKS).num_events < sum(dataset.sizes)


def test_a_cut_that_leaves_nothing_says_so(dataset):
    with pytest.raises(DataUnusable, match=r"none of the 278 events passes[\s\S]*data\.fiducial\.enabled=false"):
        open_source(dataset.config(fiducial={"enabled": True, "u_max": 1e-6}), "train", TASKS)


def test_the_same_file_behind_a_link_is_an_overlap(tmp_path, make_events, write_events):
    path = write_events(tmp_path / "a.root", make_events(6, 0, 1))
    os.symlink(path, tmp_path / "b.root")
    train, val = (open_source(DataConfig(train_path=str(tmp_path / n)), "train", TASKS) for n in ("a.root", "b.root"))
    overlap = find_overlap(train, val)
    assert overlap.num_events == 6
    assert "b.root" in overlap.where


def test_two_trees_of_one_file_share_what_their_numbers_say(tmp_path, make_events):
    """A file alone is no identity: its trees were one sample, also for what is kept between runs."""
    path = tmp_path / "both.root"
    with uproot.recreate(path) as file:
        for tree, events in (("a", make_events(6, 0, 1)), ("b", make_events(6, 1, 2))):
            file[tree] = events
    a, b = (open_source(DataConfig(train_path=f"{path}:{tree}"), "train", TASKS) for tree in "ab")
    assert find_overlap(a, b).num_events == 0
    assert find_overlap(a, a).num_events == 6
    assert find_overlap(a, a).where.endswith("both.root:a")
    assert source_identity(a) == source_identity(a)
    assert source_identity(a) != source_identity(b)


def test_one_shared_event_is_found_with_its_numbers(tmp_path, make_events, write_events):
    one, other = make_events(40, 0, 5), make_events(40, 1, 6)
    other["run"][33], other["event"][33] = 5, 11
    for name, events in (("a.root", one), ("b.root", other)):
        write_events(tmp_path / name, events)
    train, val = (open_source(DataConfig(train_path=str(tmp_path / n)), "train", TASKS) for n in ("a.root", "b.root"))
    overlap = find_overlap(train, val)
    assert overlap.num_events == 1
    assert overlap.where.endswith("b.root:tree run 5 event 11")
    both = open_source(DataConfig(train_path=[str(tmp_path / n) for n in ("a.root", "b.root")]), "train", TASKS)
    assert (find_overlap(both, val).num_repeated, overlap.num_repeated) == (0, 0), "other readings under its number"
    other["npho"][33] = one["npho"][11]
    write_events(tmp_path / "b.root", other)
    both = open_source(DataConfig(train_path=[str(tmp_path / n) for n in ("a.root", "b.root")]), "train", TASKS)
    assert find_overlap(both, val).num_repeated == 1
    other["run"][33] = 6
    write_events(tmp_path / "b.root", other)
    assert (
        find_overlap(train, open_source(DataConfig(train_path=str(tmp_path / "b.root")), "train", TASKS)).num_events
        == 0
    )


def test_files_without_run_numbers_do_not_overlap_by_chance(tmp_path, make_events, write_events):
    for name in ("a.root", "b.root"):
        events = make_events(5, 0, 1)
        write_events(tmp_path / name, {n: v for n, v in events.items() if n not in ("run", "event")})
    train, val = (open_source(DataConfig(train_path=str(tmp_path / n)), "train", TASKS) for n in ("a.root", "b.root"))
    assert find_overlap(train, val).num_events == 0


@pytest.mark.parametrize("format", ["ttree", "rntuple"])
def test_both_kinds_of_tree_give_the_same_batch(tmp_path, make_events, write_events, format):
    events = make_events(20, 0, 1)
    path = write_events(tmp_path / "a.root", events, format=format)
    batch = only_batch(open_source(DataConfig(train_path=str(path)), "train", TASKS))
    assert torch.equal(batch.npho, torch.from_numpy(events["npho"]))
    assert torch.equal(batch.targets["uvwFI"], torch.from_numpy(events["uvwTruth"]))


def test_more_files_than_are_kept_open_are_read(dataset, monkeypatch):
    monkeypatch.setattr("xectool.data.events.KEPT_FILES", 1)
    source = open_source(dataset.config(), "train", TASKS)
    with EventLoader(source, DataPlan(source.files, 16, seed=0, chunksize=64)) as loader:
        assert sum(batch.num_events for batch in loader.epoch(0)) == sum(dataset.sizes)
    assert len(source._open) == 1


@pytest.mark.parametrize("name", ["mae.yaml", "mae2.yaml"])
def test_files_without_any_truth_lead_to_the_kind_that_needs_none(tmp_path, write_rows, monkeypatch, name):
    """The line disabled all tasks, and what that was answered with enabled one again."""
    monkeypatch.chdir(tmp_path)
    if name != "mae.yaml":
        (tmp_path / "mae.yaml").touch()
    write_rows(["light", "relative_time"])
    data = DataConfig(train_path="a b.root", val_path="v.root", npho_branch="light", exclude=("a b.root:1",))
    with pytest.raises(DataFileError, match="truth of task energy") as caught:
        open_source(data, "train", TASKS)
    line, _, remark = caught.value.fix.partition("   # ")
    assert shlex.split(line) == [
        "xectool", "config", "init", "--kind", "mae", "--set", "data.train_path=a b.root", "--set",
        "data.val_path=v.root", "--set", "data.npho_branch=light", "--set", "data.exclude=['a b.root:1']", ">", name,
        "&&", "xectool", "train", name, "--dry-run",
    ]  # fmt: skip
    assert "a regressor needs truth" in remark
    assert remark.endswith("--set data.truth_branches.energy=NAME --set data.truth_branches.uvwFI=NAME")
    readings = data.model_copy(update={"npho_branch": "lights"})
    with pytest.raises(DataFileError, match="'lights'") as caught:
        open_source(readings, "train", TASKS)
    assert caught.value.fix.endswith("--set data.npho_branch=light"), "what any kind needs goes first"


def test_files_with_the_truth_of_another_task_lead_to_that_task(tmp_path, write_rows, monkeypatch):
    """A time was proposed for the energy, by its name."""
    monkeypatch.chdir(tmp_path)
    write_rows(["npho", "relative_time", "timeTruth"])
    with pytest.raises(DataFileError, match="truth of task energy") as caught:
        open_source(DataConfig(train_path="a b.root"), "train", TASKS)
    assert caught.value.fix.startswith(
        "--set tasks.timing.enabled=true --set tasks.energy.enabled=false --set tasks.uvwFI.enabled=false   # or name"
    )


@pytest.fixture
def write_rows(tmp_path):
    """Write a few events of the named branches to a file with a blank in its name."""

    def write(names):
        with uproot.recreate(tmp_path / "a b.root") as file:
            file["tree"] = {name: np.ones(3 if name.endswith("Truth") else (3, 4760), np.float32) for name in names}

    return write

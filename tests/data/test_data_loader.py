"""The loader serves what the plan says, however it reads."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import uproot
from xectool.config.data import DataConfig
from xectool.data.batch import EventBatch
from xectool.data.loader import EventLoader, LoaderOptions, loader_memory_bytes
from xectool.data.plan import DataPlan
from xectool.data.processes import ProcessReader
from xectool.data.readers import ThreadReader
from xectool.data.source import open_source
from xectool.data.window import event_bytes
from xectool.errors import DataFileError, OutOfMemory, WorldError, XecError

TASKS = ("energy", "timing", "uvwFI")


def open_plan(dataset, batch_size=32, world_size=1, seed=3, **changes):
    source = open_source(dataset.config(**changes), "train", TASKS)
    return source, DataPlan(source.files, batch_size, seed, num_shards=4, chunksize=64, world_size=world_size)


def serve(source, plan, epoch=0, start_step=0, rank=0, **options):
    with EventLoader(source, plan, rank=rank, options=LoaderOptions(**options)) as loader:
        return list(loader.epoch(epoch, start_step))


def assert_same(one: EventBatch, other: EventBatch):
    assert (one.epoch, one.step) == (other.epoch, other.step)
    for name in ("npho", "time", "weight"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    for name in ("file_index", "entry", "run", "event"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.targets.keys() == other.targets.keys()
    assert all(torch.equal(one.targets[task], other.targets[task]) for task in one.targets)


def test_batches_hold_the_events_of_the_plan(dataset, make_events):
    source, plan = open_plan(dataset)
    truth = [make_events(size, index, 1000 + index) for index, size in enumerate(dataset.sizes)]
    batches = serve(source, plan)
    assert sum(batch.num_events for batch in batches) == sum(dataset.sizes)
    for batch in batches:
        file_index, entry = plan.batch_events(0, batch.step, 0)
        np.testing.assert_array_equal(batch.file_index, file_index)
        np.testing.assert_array_equal(batch.entry, entry)
        np.testing.assert_array_equal(batch.run, 1000 + file_index)
        np.testing.assert_array_equal(batch.event, entry)
        for row, (index, at) in enumerate(zip(file_index, entry, strict=True)):
            np.testing.assert_array_equal(batch.npho[row].numpy(), truth[index]["npho"][at])
            np.testing.assert_array_equal(batch.time[row].numpy(), truth[index]["relative_time"][at])
            np.testing.assert_array_equal(batch.targets["uvwFI"][row].numpy(), truth[index]["uvwTruth"][at])
            assert batch.targets["timing"][row, 0] == np.float32(truth[index]["timeTruth"][at])
    assert {task: target.shape[1] for task, target in batches[0].targets.items()} == {
        "energy": 1,
        "timing": 1,
        "uvwFI": 3,
    }
    assert all(tensor.dtype == torch.float32 for tensor in (batches[0].npho, *batches[0].targets.values()))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_count_of_threads_does_not_change_the_batches(dataset, num_threads):
    source, plan = open_plan(dataset)
    for one, other in zip(serve(source, plan), serve(source, plan, num_threads=num_threads), strict=True):
        assert_same(one, other)


def test_worker_processes_give_the_same_batches_epoch_after_epoch(dataset):
    source, plan = open_plan(dataset)
    options = LoaderOptions(num_workers=2, num_threads=1, timeout_s=120)
    with EventLoader(source, plan, options=options) as loader:
        for epoch in (0, 1):
            for one, other in zip(serve(source, plan, epoch), loader.epoch(epoch), strict=True):
                assert_same(one, other)
        for one, other in zip(serve(source, plan, 1, 5), loader.epoch(1, 5), strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("start_step", [0, 1, 4, 9])
def test_a_resumed_epoch_gives_the_remaining_batches_and_reads_only_for_them(dataset, monkeypatch, start_step):
    source, plan = open_plan(dataset)
    whole = serve(source, plan, 2)
    read = []
    monkeypatch.setattr(source, "read_piece", _recording(source.read_piece, read))
    for one, other in zip(whole[start_step:], serve(source, plan, 2, start_step), strict=True):
        assert_same(one, other)
    wanted = [piece for key in plan.windows(2, 0, start_step) for piece in plan.pieces(2, key)]
    assert sorted(map(repr, read)) == sorted(map(repr, wanted))
    if start_step == 9:
        assert len(read) < len(plan.blocks(2, 0))


def _recording(function, calls):
    def call(piece, window, row):
        calls.append(piece)
        return function(piece, window, row)

    return call


def test_three_ranks_serve_each_event_once_in_equally_many_batches(dataset):
    source, plan = open_plan(dataset, batch_size=16, world_size=3)
    ranks = [serve(source, plan, rank=rank) for rank in range(3)]
    assert [len(batches) for batches in ranks] == [plan.num_steps] * 3
    served = [(i, e) for batches in ranks for b in batches for i, e in zip(b.file_index, b.entry, strict=True)]
    assert len(served) == len(set(served)) == sum(dataset.sizes)


def test_an_empty_last_batch_has_the_right_shapes(dataset):
    source = open_source(dataset.config(), "train", TASKS)
    plan = DataPlan(source.files[:1], 4, seed=0, world_size=2)
    batch = serve(source, plan, rank=1)[0]
    assert batch.npho.shape == (0, 4760)
    assert batch.targets["uvwFI"].shape == (0, 3)
    assert batch.run.shape == batch.weight.shape == (0,)


def test_the_fiducial_cut_keeps_batches_full(dataset):
    source, plan = open_plan(dataset, fiducial={"enabled": True, "u_max": 15.0})
    batches = serve(source, plan)
    uvw = torch.cat([batch.targets["uvwFI"] for batch in batches])
    assert (uvw[:, 0].abs() < 15).all()
    assert (uvw[:, 1].abs() < 67.9).all()
    assert 50 < len(uvw) < sum(dataset.sizes)
    assert all(batch.num_events == 32 for batch in batches[:-1])
    for batch in batches:
        np.testing.assert_array_equal(batch.npho[:, 1].numpy(), batch.event)


def test_waiting_and_served_events_are_counted(dataset):
    source, plan = open_plan(dataset)
    with EventLoader(source, plan) as loader:
        assert sum(batch.num_events for batch in loader.epoch(0)) == loader.events_served == sum(dataset.sizes)
        assert loader.data_wait_s > 0
        assert loader.num_steps == plan.num_steps


def test_an_epoch_that_lost_events_is_reported(dataset, monkeypatch):
    source, plan = open_plan(dataset)
    monkeypatch.setattr(plan, "events_of_rank", lambda rank, start_step: 8)
    with pytest.raises(XecError, match="served 278 events of an epoch, expected 8"):
        serve(source, plan)


def test_an_epoch_left_early_can_be_followed_by_another(dataset):
    source, plan = open_plan(dataset)
    with EventLoader(source, plan) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        epoch.close()
        assert sum(batch.num_events for batch in loader.epoch(1)) == sum(dataset.sizes)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xectool-read")]


def test_windows_in_memory_stay_within_the_stated_count(dataset, monkeypatch):
    source, plan = open_plan(dataset)
    held = []
    submit = ThreadReader._submit

    def counting(reader, key):
        submit(reader, key)
        held.append(len(reader._held))

    monkeypatch.setattr(ThreadReader, "_submit", counting)
    serve(source, plan, num_threads=2)
    assert max(held) <= plan.num_shards + 2


def test_one_window_of_all_events_is_held_once(dataset):
    source = open_source(dataset.config(), "train", TASKS)
    plan, options = DataPlan(source.files, 4, seed=0, chunksize=8192), LoaderOptions(num_threads=1)
    event = event_bytes(source.widths)
    block = max(file.num_entries for file in source.files) * event
    assert loader_memory_bytes(plan, options, source.widths) == (plan.num_events + 3 * 4) * event + block


def test_memory_grows_with_the_window_not_with_the_file(dataset):
    source = open_source(dataset.config(), "train", TASKS)
    small = DataPlan(source.files, 16, seed=0, num_shards=4, chunksize=64)
    options = LoaderOptions()
    bound = loader_memory_bytes(small, options, source.widths)
    one = replace(source.files[2], selected=np.array([0]))  # whose block is whole all the same
    block = 4 * 4760 * one.num_entries
    assert loader_memory_bytes(DataPlan([one], 16, seed=0), options, source.widths) > options.num_threads * block
    large, huge = (DataPlan([source.files[2]] * n, 16, seed=0, num_shards=4, chunksize=64) for n in (40, 4000))
    assert loader_memory_bytes(huge, options, source.widths) <= 1.5 * loader_memory_bytes(large, options, source.widths)
    tracemalloc.start()
    serve_all = EventLoader(source, small, options=options)
    for _ in serve_all.epoch(0):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    serve_all.close()
    assert peak < bound


def test_weights_come_with_the_batch(dataset):
    class ByEnergy:
        def weights(self, targets, npho):
            return targets["energy"][:, 0] * 2

    source, plan = open_plan(dataset)
    with EventLoader(source, plan, weights=ByEnergy()) as loader:
        for batch in loader.epoch(0):
            assert torch.equal(batch.weight, batch.targets["energy"][:, 0] * 2)


def test_a_batch_moves_with_its_identity(dataset):
    source, plan = open_plan(dataset)
    batch = serve(source, plan)[0]
    moved = batch.to("meta")
    assert moved.npho.device.type == moved.targets["energy"].device.type == "meta"
    assert moved.entry is batch.entry


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_damaged_file_is_named_with_branch_and_entries(tmp_path, make_events, write_events, num_workers):
    write_events(tmp_path / "good.root", make_events(60, 0, 1))
    path = write_events(tmp_path / "bad.root", make_events(60, 1, 2))
    source = open_source(DataConfig(train_path=str(tmp_path)), "train", TASKS)
    basket = int(uproot.open({str(path): "tree"})["relative_time"].member("fBasketSeek")[0])
    with open(path, "r+b") as stream:
        stream.seek(basket + 400)
        stream.write(b"\xff" * 64)
    plan = DataPlan(source.files, 16, seed=0)
    with EventLoader(source, plan, options=LoaderOptions(num_workers=num_workers, num_threads=1)) as loader:
        for _ in range(2):  # the second time with new workers
            with pytest.raises(DataFileError, match=r"bad\.root' is damaged: branch 'relative_time', entries 0 to 60"):
                list(loader.epoch(0))


class _Killer:
    """Stands in for a source whose third piece stops or kills its process."""

    def __init__(self, source, signal_number):
        self._source, self._signal, self._calls = source, signal_number, 0
        self.files, self.widths, self.cache = source.files, source.widths, None

    def read_piece(self, piece, window, row):
        self._calls += 1
        if self._calls == 3:
            os.kill(os.getpid(), self._signal)
        self._source.read_piece(piece, window, row)


@pytest.mark.parametrize(
    ("signal_number", "kind", "code"),
    [
        (signal.SIGKILL, OutOfMemory, "XT-LOADER-KILLED"),
        (signal.SIGKILL, WorldError, "XT-LOADER-KILLED"),
        (signal.SIGALRM, WorldError, "XT-LOADER-DIED"),
    ],
)
def test_a_killed_worker_is_reported_with_what_it_was_reading(dataset, monkeypatch, signal_number, kind, code):
    source, plan = open_plan(dataset)
    counts = itertools.count(7) if kind is OutOfMemory else itertools.repeat(7)  # what the kernel kills meanwhile
    monkeypatch.setattr("xectool.runlog.process.oom_kills", lambda: next(counts))
    monkeypatch.setattr("xectool.data.processes.oom_kills", lambda: next(counts))
    with pytest.raises(kind, match=r"data\.num_workers=0") as caught:
        serve(_Killer(source, signal_number), plan, num_workers=1, num_threads=1, mp_context="fork", timeout_s=60)
    assert (type(caught.value), caught.value.code) == (kind, code)
    assert "part" in caught.value.where
    assert "entries [" in caught.value.where


def test_a_worker_killed_with_all_read_ahead_ends_the_epoch_at_the_next_batch(dataset):
    source, plan = open_plan(dataset)
    resident = 1 + len(plan.windows(0, 0, 0))
    reader = ProcessReader(source, plan, 1, resident, num_workers=1, start=("fork", 60.0))
    (worker,) = multiprocessing.active_children()
    with EventLoader(source, plan, reader=reader) as loader:
        batches = loader.epoch(0)
        next(batches)
        while any(number >= 0 for number, _ in reader._held.values()):  # until all windows are there
            reader._receive(0)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        with pytest.raises(WorldError, match=rf"loader process {worker.pid} was killed.*\nwhere: it was idle"):
            next(batches)


def test_an_epoch_may_outlive_its_closed_loader(dataset):
    source, plan = open_plan(dataset)
    loader = EventLoader(source, plan, options=LoaderOptions(num_workers=1, mp_context="fork"))
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    batches.close()


STARTS = """
import signal, sys
from xectool.config.data import DataConfig
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
import psutil
if __name__ == "__main__":
    source = open_source(DataConfig(train_path=sys.argv[1], val_path=sys.argv[1]), "train", ())
    plan = DataPlan(source.files, 4, 1, num_shards=1, chunksize=8)
    loader = EventLoader(source, plan, options=LoaderOptions(num_workers=2))
    batches = loader.epoch(0)
    served = len(next(batches).event)
    below = psutil.Process().children(recursive=True)
    assert len(below) >= 4, below  # fork server, resource tracker, two readers
    for process in below:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            process.send_signal(number)
    served += sum(len(batch.event) for batch in batches)
    assert served == sum(file.num_entries for file in source.files), served
    print("ends with its readers open")
"""


def test_readers_serve_on_where_a_batch_system_signals_every_process(dataset, tmp_path):
    program = tmp_path / "starts.py"  # a fork server begins with a program
    program.write_text(STARTS)
    command = [sys.executable, str(program), str(dataset.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "ends with its readers open\n"), done.stderr


READS = """
import sys
if __name__ == "__main__":
    from pathlib import Path
    import psutil
    from xectool.config.data import DataConfig
    from xectool.data.loader import EventLoader, LoaderOptions
    from xectool.data.plan import DataPlan
    from xectool.data.source import open_source
    source = open_source(DataConfig(train_path=sys.argv[1], val_path=sys.argv[1]), "train", ())
    plan = DataPlan(source.files, 4, 1, num_shards=1, chunksize=8)
    with EventLoader(source, plan, options=LoaderOptions(num_workers=2)) as loader:
        assert next(loader.epoch(0)).num_events
        for process in psutil.Process().children(recursive=True):
            print(process.name(), "libtorch" in Path(f"/proc/{process.pid}/maps").read_text())
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc is of Linux")
def test_readers_load_no_torch(dataset, tmp_path):
    program = tmp_path / "reads.py"
    program.write_text(READS)
    command = [sys.executable, str(program), str(dataset.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("xectool-read")] == 2 * ["xectool-read False"]


def test_a_silent_worker_ends_in_a_message_after_the_timeout(dataset):
    source, plan = open_plan(dataset)
    with pytest.raises(WorldError, match=r"data\.timeout_s=1800"):
        serve(_Killer(source, signal.SIGSTOP), plan, num_workers=1, num_threads=1, mp_context="fork", timeout_s=2)


def test_options_that_need_workers_are_not_given_without(dataset):
    options = LoaderOptions.from_config(dataset.config(), "cpu")
    assert options == LoaderOptions()
    assert not options.pin_memory
    assert LoaderOptions.from_config(dataset.config(), "cuda:0").pin_memory

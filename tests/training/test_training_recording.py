import dataclasses
import errno
import math
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from xectool import engine
from xectool.data.loader import EventLoader, LoaderOptions
from xectool.data.plan import DataPlan
from xectool.data.source import open_source
from xectool.data.watched import WatchedReads
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.runlog.process import boot_id, oom_kills, tree_memory
from xectool.runlog.reader import RunReader
from xectool.runlog.status_page import PHASES, StatusPage, Word, read_page
from xectool.runlog.worker_slots import SlotRange, create_slots, read_slots
from xectool.training.optimization.parameter_blocks import MAX_BLOCKS, ParameterBlocks, cut_blocks, weight_norm
from xectool.training.ranks.base import Ranks
from xectool.training.record.event_audit import EventAudit
from xectool.training.record.heartbeat import Heartbeat
from xectool.training.record.recorder import FlightRecorder
from xectool.training.stepping.epoch_stats import EpochStats
from xectool.training.stepping.step import StepResult, stream_seed
from xectool.training.tracking import NullTracker
from xectool.training.trainer import Trainer


@pytest.fixture(scope="module")
def recorded(tiny_data, tmp_path_factory):
    """A run of two epochs of five steps, stopped after three and resumed, with a checkpoint at every step."""
    root = tmp_path_factory.mktemp("recorded")
    config = {
        "kind": "regressor",
        "data": {
            "train_path": str(tiny_data / "train_*.root"),
            "val_path": str(tiny_data / "val.root"),
            "batch_size": 8,
            "chunksize": 16,
            "num_shards": 2,
        },
        "model": {"encoder_dim": 32, "hidden_dim": 8, "outer_fine_pool": [5, 3], "num_fusion_layers": 1},
        "tasks": {"energy": {"enabled": True}, "uvwFI": {"enabled": True}},
        "training": {"epochs": 2, "warmup_epochs": 0, "lr": 1e-3, "profile": True},
        "checkpoint": {"save_dir": str(root), "save_steps": 1, "save_artifacts": False},
        "mlflow": {"enabled": False, "run_name": "r"},
    }
    path = root / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    engine.train(str(path), max_steps=3)
    engine.train(str(path), resume="auto")
    return RunReader(root / "r")


def test_each_step_has_block_norms_that_make_up_its_gradient_norm(recorded):
    steps = list(recorded.steps())
    assert [record.step for record in steps] == list(range(1, 11))
    for record in steps:
        assert {"heads.energy", "heads.uvwFI"} <= record.block_norms.keys()
        together = math.sqrt(sum(norm**2 for norm in record.block_norms.values()))
        assert together == pytest.approx(record.grad_norm, rel=1e-5)


def test_each_step_says_which_random_numbers_memory_and_time_it_took(recorded):
    steps = list(recorded.steps())
    for record in steps:
        assert record.rng == stream_seed(record.seed, record.epoch, record.batch_start, 0)
        assert record.rss_bytes >= record.own_rss_bytes > 50_000_000
        assert (record.device_bytes, record.dropped) == (-1, 0)
        assert record.queue_depth >= 0
        parts = (record.transfer_s, record.forward_s, record.backward_s, record.optimizer_s)
        assert all(0 < part < record.step_s for part in parts)
        assert 0 < record.log_s < record.step_s
    later = [record for record in steps if record.batch_start]
    assert sum(record.checkpoint_s > 0 for record in later) == len(later) - 1  # the first step after a resume has none


def test_events_of_an_epoch_are_audited_also_when_it_was_resumed_in_the_middle(recorded):
    for epoch in recorded.epochs():
        assert (epoch.events_seen, epoch.events_expected, epoch.duplicates) == (40, 40, 0)
        norms = [record.grad_norm for record in recorded.steps() if record.epoch == epoch.epoch]
        assert epoch.grad_norm_max == max(norms)
        assert min(norms) * 0.97 < epoch.grad_norm_median < max(norms) * 1.03
        assert epoch.grad_norm_median <= epoch.grad_norm_p95 < max(norms) * 1.03
        assert epoch.clipped_fraction == pytest.approx(np.mean([norm > 1.0 for norm in norms]), abs=1.0)
    audits = [event.data for event in recorded.events() if event.kind == "audit"]
    assert audits == [{"expected": 40, "seen": 40, "duplicates": 0, "quarantined": 0}] * 2


def test_page_of_a_finished_run_says_so_and_names_its_last_batch(recorded):
    (page,) = recorded.live()
    assert (page.phase, page.step, page.epoch) == ("done", 10, 2)
    assert page.batch[1:] == (2, 4, 5)
    assert page.file_index in (0, 1)
    assert 0 <= page.entries[0] <= page.entries[1] < 20
    assert page.num_events == 8
    assert 0 < page.heartbeat_age_s < 600
    assert 0 < page.own_share < 0.2
    assert {slot.loader for slot in recorded.workers()} == {"training", "validation"}


def test_trainer_goes_through_the_phases_of_a_step_in_order(tiny_config, monkeypatch):
    seen = []
    original = StatusPage.phase
    monkeypatch.setattr(StatusPage, "phase", lambda page, name: (seen.append(name), original(page, name))[1])
    engine.train(str(tiny_config(training={"epochs": 1})))
    first = seen.index("data_wait")
    assert "build" in seen[:first]
    step = ["data_wait", "transfer", "forward", "backward", "forward", "optimizer", "collective", "log"]
    assert seen[first : first + 2 * len(step)] == step * 2
    assert first < seen.index("validation") < seen.index("checkpoint")
    assert seen[-1] == "done"
    assert set(seen) <= set(PHASES)


def loader_of(tiny_data, config_from_dict, **options):
    config = config_from_dict({"kind": "regressor", "tasks": {"energy": {"enabled": True}}}, "test")
    source = open_source(config.data, [str(tiny_data / "train_*.root")], tasks=("energy",))
    plan = DataPlan(source.files, batch_size=8, seed=3, chunksize=16, num_shards=2)
    return EventLoader(source, plan, options=LoaderOptions(**options))


@pytest.fixture
def loader(tiny_data):
    from xectool.config.load import config_from_dict

    return lambda **options: loader_of(tiny_data, config_from_dict, **options)


def test_audit_counts_events_served_twice_and_forgets_them_with_the_epoch(loader):
    with loader() as events:
        audit = EventAudit(events)
        batches = list(events.epoch(1))
        for batch in batches:
            audit.add([batch])
        assert audit.duplicates == 0
        audit.add([batches[2]])
        assert audit.duplicates == 8
        doubled = dataclasses.replace(
            batches[0], epoch=2, file_index=np.repeat(batches[0].file_index, 2), entry=np.repeat(batches[0].entry, 2)
        )
        audit.add([doubled])
        assert audit.duplicates == 8


def test_audit_that_begins_in_the_middle_knows_what_was_served_before(loader):
    with loader() as events:
        batches = list(events.epoch(1))
        audit = EventAudit(events)
        audit.add([batches[3]])
        assert audit.duplicates == 0
        audit.add([batches[0]])
        assert audit.duplicates == 8


@pytest.mark.parametrize("start", [0, 3, 5])
def test_audit_tells_events_in_quarantine_from_lost_ones(loader, start):
    with loader() as events:
        whole = list(events.epoch(1))
        for step, row in ((1, 2), (3, 0), (3, 7)):
            events.exclude(whole[step].file_index[[row]], whole[step].entry[[row]])
        batches, audit = [events.excluded.left_out_of(batch) for batch in whole], EventAudit(events)
        batches[4] = batches[4].take(np.arange(5))  # nobody said that three of these are left out
        left_out = []
        for batch in batches[start:]:
            audit.add([batch])
            left_out.append(audit.left_out)
        assert left_out == [0, 1, 0, 2, 0][start:]
        assert audit.left_out_of(1, Ranks()) == 3


@pytest.mark.parametrize("lost", [0, 2])
def test_events_lost_between_the_loader_and_the_loop_are_missing(tiny_config, monkeypatch, lost):
    windows = FlightRecorder.windows

    def leaking(self, batches, size):
        for number, (window, wait_s) in enumerate(windows(self, batches, size)):
            yield [batch.take(np.arange(batch.num_events - lost * (number == 1))) for batch in window], wait_s

    monkeypatch.setattr(FlightRecorder, "windows", leaking)
    result = engine.train(str(tiny_config(training={"epochs": 1})))
    (audit,) = [event.data for event in RunReader(Path(result.run_dir)).events() if event.kind == "audit"]
    assert (audit["expected"] - audit["seen"], audit["quarantined"]) == (lost, 0)
    codes = [cause.code for cause in diagnose(gather(result.run_dir)).causes]
    assert ("XT-EVENTS-MISSING" in codes) == bool(lost)


def test_a_step_that_is_not_finite_records_the_norm_of_the_weights(tiny_config, monkeypatch):
    fit = Trainer.fit

    def poisoned(self, progress):
        parameter = next(p for p in self.parts.stepper.parameters() if p.ndim > 1)
        parameter.register_hook(lambda grad: grad * math.nan if self.parts.model.training else grad)
        return fit(self, progress)

    monkeypatch.setattr(Trainer, "fit", poisoned)
    result = engine.train(str(tiny_config(training={"epochs": 1})), max_steps=2)
    steps = gather(result.run_dir).steps
    assert not np.isfinite(steps["grad_norm"]).any()
    assert (steps["weight_norm"] > 0).all()


def hooked(monkeypatch, attach):
    """Give the optimizer of the next training to a function before its first step."""
    fit = Trainer.fit

    def patched(self, progress):
        attach(self.parts.stepper.optimizer)
        return fit(self, progress)

    monkeypatch.setattr(Trainer, "fit", patched)


@pytest.mark.parametrize("factor", [1.0, 50.0])
def test_the_rate_of_the_optimizer_is_recorded_whoever_set_it(tiny_config, monkeypatch, factor):
    def raise_rate(optimizer, *_):
        for group in optimizer.param_groups:
            group["lr"] *= factor

    hooked(monkeypatch, lambda optimizer: optimizer.register_step_pre_hook(raise_rate))
    training = {"epochs": 1, "lr": 1e-4, "lr_scheduler": "constant", "warmup_epochs": 0}
    result = engine.train(str(tiny_config(training=training)), max_steps=2)
    assert gather(result.run_dir).steps["lr"] == pytest.approx(1e-4 * factor, rel=1e-5)


@pytest.mark.parametrize("times", [1, 2])
def test_an_optimizer_that_steps_twice_is_named(tiny_config, monkeypatch, times):
    def again(optimizer):
        step = optimizer.step
        monkeypatch.setattr(optimizer, "step", lambda: [step() for _ in range(times)])

    hooked(monkeypatch, again)
    result = engine.train(str(tiny_config(training={"epochs": 1})))
    codes = [cause.code for cause in diagnose(gather(result.run_dir)).causes]
    assert codes[:1] == ["XT-DUPLICATE-STEPS"] * (times - 1)


@settings(deadline=None)  # 200 steps take what a loaded machine leaves them
@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_gradient_quantile_is_right_to_three_percent(norms, share):
    stats = EpochStats()
    for norm in norms:
        zero = torch.zeros(1, dtype=torch.float64)
        stats.add(StepResult(True, 0.0, zero, zero, norm, 1.0, 1), 0.0, 0.0)
    exact = sorted(norms)[max(0, math.ceil(share * len(norms)) - 1)]
    assert stats.grad_norm_quantile(share) == pytest.approx(exact, rel=0.03)


def test_gradient_quantile_without_a_step_is_not_a_number_and_zero_stays_zero():
    stats = EpochStats()
    assert math.isnan(stats.grad_norm_quantile(0.5))
    zero = torch.zeros(1, dtype=torch.float64)
    stats.add(StepResult(True, 0.0, zero, zero, 0.0, 1.0, 1), 0.0, 0.0)
    assert stats.grad_norm_quantile(0.5) == 0.0


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4).map(".".join), st.integers(1, 10**6)),
        min_size=1,
        max_size=60,
    ),
    st.integers(2, 16),
)
def test_blocks_part_the_parameters_whatever_they_are_called(sizes, most):
    blocks = cut_blocks(sizes, most)
    assert len(blocks) == len(sizes)
    assert len(set(blocks)) <= most
    for (name, _), block in zip(sizes, blocks, strict=True):
        assert block == "other" or name.startswith(block)


def test_norms_of_blocks_and_total_agree_with_torch():
    torch.manual_seed(1)
    model = nn.ModuleDict({f"part{index}": nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)) for index in range(20)})
    blocks = ParameterBlocks({"": model, "loss": nn.Linear(1, 1)})
    assert len(blocks.names) == MAX_BLOCKS
    model["part0"][0].weight.grad = torch.randn(3, 5)
    with_gradient = [model["part0"][0].weight]
    for index in (1, 4):
        model[f"part{index}"][1].bias.grad = torch.full((2,), 1e19 * index)
        with_gradient.append(model[f"part{index}"][1].bias)
    total, each = blocks.gradient_norms(with_gradient)
    assert total == nn.utils.get_total_norm([parameter.grad for parameter in with_gradient])
    assert math.sqrt(sum(norm**2 for norm in each.values())) == pytest.approx(float(total), rel=1e-6)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert weight_norm(model.parameters()) == pytest.approx(float(flat.norm()), rel=1e-5)


def test_non_finite_gradient_shows_in_its_block_only():
    model = nn.ModuleDict({"good": nn.Linear(2, 2), "bad": nn.Linear(2, 2)})
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model["bad"].bias.grad[0] = math.nan
    total, each = ParameterBlocks({"": model}).gradient_norms(list(model.parameters()))
    assert math.isnan(total)
    assert math.isnan(each["bad"])
    assert math.isfinite(each["good"])


def test_page_is_read_while_it_is_written_and_heartbeats_go_on_beside_a_blocked_thread(tmp_path):
    path = tmp_path / "page"
    assert read_page(path, boot_id()) is None
    page = StatusPage(path)
    assert read_page(path, boot_id()).heartbeat_age_s == 0.0
    with Heartbeat(page, torch.device("cpu"), interval_s=0.02):
        page.phase("forward")
        page[Word.STEP] = 7
        time.sleep(0.3)
        until = time.monotonic() + 60
        while page[Word.HEARTBEAT_NS] < page[Word.PHASE_SINCE_NS] + 200_000_000:
            assert time.monotonic() < until
            time.sleep(0.01)
        view = read_page(path, boot_id())
    assert (view.phase, view.step, view.same_boot) == ("forward", 7, True)
    assert view.phase_age_s >= 0.3
    assert view.heartbeat_age_s <= view.phase_age_s - 0.2
    assert view.rss_bytes > 10_000_000
    assert view.oom_kills <= view.oom_kills_seen <= oom_kills()
    page.close()
    page.phase("done")
    assert read_page(path, boot_id()).phase == "forward"
    assert read_page(path, "another boot").same_boot is False


def test_predictions_at_the_end_are_a_phase_of_their_own_that_moves(tiny_config, monkeypatch):
    said, phase = [], StatusPage.phase
    monkeypatch.setattr(StatusPage, "phase", lambda page, name: (said.append(name), phase(page, name)))
    engine.train(tiny_config(training={"epochs": 1}), max_steps=1)
    assert said.index("outputs") > said.index("checkpoint")
    began = said.index("outputs")
    assert said[began : began + 4] == ["outputs"] * 3 + ["done"]  # the start, and two batches of 16 events


def test_heartbeat_goes_on_where_no_descriptor_is_free(tmp_path, monkeypatch):
    def refuse(pid, aside):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("xectool.training.record.heartbeat.tree_memory", refuse)
    page = StatusPage(tmp_path / "page")
    with Heartbeat(page, torch.device("cpu"), interval_s=0.02):
        first = page[Word.HEARTBEAT_NS]
        until = time.monotonic() + 60
        while page[Word.HEARTBEAT_NS] == first:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert (page[Word.RSS_BYTES], page[Word.OWN_RSS_BYTES], page[Word.CHILDREN]) == (-1, -1, -1)
    page.close()


def test_memory_of_children_counts(tmp_path):
    before = tree_memory(os.getpid())
    code = "x = bytearray(200_000_000); x[::4096] = b'1' * len(x[::4096]); print('ready', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    after, without = tree_memory(os.getpid()), tree_memory(os.getpid(), {child.pid})
    child.communicate("\n")
    assert after.children == before.children + 1
    assert 180e6 < after.rss_bytes - before.rss_bytes < 300e6
    assert abs(after.own_bytes - before.own_bytes) < 50e6
    assert abs(without.rss_bytes - before.rss_bytes) < 50e6, "a mirror's is not the training's"


@pytest.mark.parametrize("of_a_file", [True, False])
def test_pages_of_a_file_are_no_memory_of_a_run(tmp_path, of_a_file):
    size, path = 100_000_000, tmp_path / "cache"
    path.write_bytes(bytes(size))
    before = tree_memory(os.getpid()).rss_bytes
    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) if of_a_file else mmap.mmap(-1, size)
    for start in range(0, size, mmap.PAGESIZE):  # the heap may hold free pages of an earlier test
        mapped[start] if of_a_file else mapped.__setitem__(start, 1)
    more = tree_memory(os.getpid()).rss_bytes - before
    mapped.close()
    assert (more > 0.9 * size) == (not of_a_file)
    assert (more < 0.1 * size) == of_a_file


def test_slot_of_a_reader_that_hangs_names_file_and_entries(tmp_path, loader):
    create_slots(tmp_path / "slots", 2)
    with loader() as events:
        pieces = events.plan.pieces(1, events.plan.windows(1, 0)[0])
    begun, go_on = threading.Event(), threading.Event()

    class Hanging:
        def read_piece(self, piece, window, row):
            begun.set()
            go_on.wait(120)

    reads = WatchedReads(Hanging(), SlotRange(tmp_path / "slots", 0, 2, 0))
    thread = threading.Thread(target=reads, args=(pieces[0], None, 0))
    thread.start()
    assert begun.wait(120)
    time.sleep(0.05)
    slot = read_slots(tmp_path / "slots")[0]
    go_on.set()
    thread.join()
    assert (slot.state, slot.file_index) == ("read", pieces[0].file_index)
    assert (slot.entry_start, slot.entry_stop) == (pieces[0].entry_start, pieces[0].entry_stop)
    assert slot.age_s >= 0.05
    assert read_slots(tmp_path / "slots")[0].state == "idle"


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_leave_notes_in_their_slots_in_threads_and_in_processes(tmp_path, loader, workers):
    create_slots(tmp_path / "slots", 6)
    with loader(num_workers=workers, num_threads=2) as events:
        events.slots = SlotRange(tmp_path / "slots", 2, 2 * max(1, workers), 1)
        assert sum(batch.num_events for batch in events.epoch(1)) == 40
    slots = read_slots(tmp_path / "slots")
    assert len(slots) == 2 * max(1, workers)
    assert {slot.loader for slot in slots} == {"validation"}
    assert len({slot.pid for slot in slots}) == max(1, workers)
    assert sum(slot.reads for slot in slots) > len(slots)
    assert {slot.state for slot in slots} == ({"exit"} if workers else {"idle"})


@pytest.mark.parametrize("workers", [0, 2])
def test_queue_is_as_deep_as_windows_wait_and_empty_where_reading_is_slower(loader, workers, monkeypatch):
    with loader(num_workers=workers, num_threads=2) as events:
        assert events.queue_depth == -1
        depths = []
        for _ in events.epoch(1):
            until = time.monotonic() + 120.0 * (not depths)  # processes on a busy machine take their time to begin
            time.sleep(0.2)  # time enough to read all that may be read ahead
            while events.queue_depth < 1 and time.monotonic() < until:
                time.sleep(0.05)
            depths.append(events.queue_depth)
        assert max(depths) >= 1
        assert depths[-1] == 0  # nothing is left to read
    if workers:
        return
    monkeypatch.setattr(WatchedReads, "__call__", _late(WatchedReads.__call__))
    with loader(num_threads=1) as events:
        assert {events.queue_depth for _ in events.epoch(1)} == {0}


def _late(read):
    def late(*arguments):
        time.sleep(0.3)
        return read(*arguments)

    return late


def test_loader_goes_on_without_notes_where_the_run_directory_is_gone(tmp_path, loader):
    with loader(num_workers=1) as events:
        events.slots = SlotRange(tmp_path / "gone" / "slots", 0, 2, 0)
        assert sum(batch.num_events for batch in events.epoch(1)) == 40


def test_memory_of_the_mirror_is_not_that_of_the_run(tiny_config, monkeypatch):
    """It imports MLflow in the first seconds of a run: 120 MB, which would look like memory that grows."""

    class Mirror(NullTracker):
        pid = 4321

    put_aside = []
    monkeypatch.setattr("xectool.engine.training_run.attempt.start_tracker", lambda *_, **__: Mirror())
    monkeypatch.setattr(
        "xectool.training.record.heartbeat.tree_memory",
        lambda pid, aside: (put_aside.append(set(aside)), tree_memory(pid, aside))[1],
    )
    monkeypatch.setattr(Heartbeat.__init__, "__defaults__", (0.01,))
    engine.train(tiny_config(training={"epochs": 1}), max_steps=2)
    assert put_aside[-1] == {4321}

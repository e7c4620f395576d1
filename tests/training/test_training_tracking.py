import math
import shlex
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.errors import ConfigError, TrackerError, UsageError
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter
from xectool.training.tracking import NullTracker, TrackerSettings, resolve_uri, run_params, start_tracker
from xectool.training.tracking import mirror as mirror_module
from xectool.training.tracking.mirror import Mirror
from xectool.training.tracking.points import Progress, point_groups
from xectool.training.tracking.settings import default_uri, load_settings, load_state, save_settings


class MemoryStore:
    """A database in memory that fails when told, before or after it has taken the points."""

    def __init__(self, failures: list[str] | None = None) -> None:
        self.run_id = "run"
        self.points = []
        self.tags = {}
        self.statuses = []
        self.failures = failures or []

    def _fail(self, moment: str) -> None:
        if self.failures and self.failures[0] == moment:
            self.failures.pop(0)
            raise TrackerError("the MLflow database refuses: database is locked", fix="wait")

    def connect(self) -> Progress:
        self._fail("connect")
        steps = [point.step for point in self.points if point.name == "step/loss"]
        epochs = [point.step for point in self.points if point.name == "perf/epoch_time_sec"]
        return Progress(max(steps, default=0), max(epochs, default=0))

    def log(self, points) -> None:
        self._fail("before")
        self.points += points
        self._fail("after")

    def tag(self, tags) -> None:
        self.tags |= tags

    def upload(self) -> None:
        pass

    def finish(self, status: str, ended: float) -> None:
        self._fail("finish")
        self.statuses.append(status)

    def named(self, name: str) -> list[int]:
        return [point.step for point in self.points if point.name == name]


class Clock:
    """Time that passes only where the mirror waits."""

    def __init__(self) -> None:
        self.now = 1e-9

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def settings_of(**changes) -> TrackerSettings:
    return TrackerSettings("sqlite:////nowhere/mlflow.db", "exp", "run", **changes)


def record(run_dir: Path, first: int, last: int, *, resume: bool = False, end: str = "") -> None:
    with RunWriter(run_dir) as writer:
        if resume:
            writer.resume(first - 1, 0)
        for step in range(first, last + 1):
            writer.step(StepRecord(1, step, time.time(), time.monotonic(), 1.0, {"energy": 0.5}, 1e-3, 2.0))
            if step % 100 == 0:
                writer.epoch(EpochRecord(step // 100, step, time.time(), time.monotonic(), {"val/loss": 1.0}))
        if end:
            writer.event(end)


def mirror(run_dir: Path, store: MemoryStore, *, replay: bool = True, **changes):
    return Mirror(run_dir, settings_of(**changes), store, replay=replay).run(lambda seconds: True)


@settings(max_examples=25, deadline=None)
@given(failures=st.lists(st.sampled_from(["connect", "before", "after", "finish"]), max_size=6))
def test_no_pattern_of_failures_loses_or_doubles_a_point(failures, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run")
    record(run_dir, 1, 450, end="finished")
    store = MemoryStore(failures)
    for _ in range(len(failures) + 1):
        state = mirror(run_dir, store, drain_s=0.0)
    assert state.status == "done"
    assert store.named("step/loss") == list(range(1, 451))
    assert store.named("step/loss_energy") == list(range(1, 451))
    assert store.named("val/loss") == [1, 2, 3, 4]
    assert set(store.statuses) == {"FINISHED"}


def test_resumed_run_is_mirrored_once_and_tagged(tmp_path):
    store = MemoryStore()
    record(tmp_path, 1, 250)
    mirror(tmp_path, store)
    record(tmp_path, 201, 300, resume=True, end="finished")
    mirror(tmp_path, store)
    assert store.named("step/loss") == list(range(1, 301))
    assert store.named("val/loss") == [1, 2, 3]
    assert store.tags == {"resume_1/after_step": "200"}
    assert store.statuses == ["FINISHED"]


def test_run_that_goes_on_keeps_its_status_in_a_replay(tmp_path):
    store = MemoryStore()
    with RunWriter(tmp_path) as writer:
        writer.step(StepRecord(1, 1, time.time(), time.monotonic(), 1.0))
        assert mirror(tmp_path, store).status == "done"
    assert store.statuses == []


def test_trainer_that_lets_go_without_a_last_word_has_failed(tmp_path):
    store = MemoryStore()
    with RunWriter(tmp_path):
        mirror(tmp_path, store, replay=False)
    assert store.statuses == ["FAILED"]


@pytest.mark.parametrize(("failing_s", "waited_s"), [(5.0, 55.0), (300.0, 5.0)])
def test_a_database_gone_for_long_is_hardly_waited_for_at_the_end(tmp_path, monkeypatch, failing_s, waited_s):
    record(tmp_path, 1, 2, end="finished")
    clock = Clock()
    monkeypatch.setattr(mirror_module, "time", clock)

    def wait(seconds: float) -> bool:
        clock.now = min(clock.now + seconds, failing_s) if clock.now < failing_s else clock.now + seconds
        return clock.now >= failing_s

    state = Mirror(tmp_path, settings_of(drain_s=60.0), MemoryStore(["connect"] * 100)).run(wait)
    assert state.status == "behind"
    assert clock.now - failing_s <= waited_s


def test_mirror_that_cannot_reach_the_database_ends_behind_and_says_why(tmp_path):
    record(tmp_path, 1, 5, end="finished")
    state = mirror(tmp_path, MemoryStore(["connect"]), drain_s=0.0)
    assert (state.status, state.error) == ("behind", "the MLflow database refuses: database is locked")
    assert load_state(tmp_path) == state


def test_step_every_thins_steps_but_not_epochs():
    records = [StepRecord(1, step, 0.0, 0.0, 1.0) for step in range(1, 11)] + [EpochRecord(1, 10, 0.0, 0.0)]
    groups = list(point_groups(records, Progress(), 4))
    assert [group[0].step for group in groups] == [4, 8, 1]


def test_unmeasured_value_is_left_out_and_a_nonfinite_one_is_logged():
    quiet, bad = point_groups(
        [StepRecord(1, 1, 0.0, 0.0, 1.0), StepRecord(1, 2, 0.0, 0.0, math.nan, nonfinite=True)], Progress(), 1
    )
    assert "step/grad_norm" not in {point.name for point in quiet}
    assert math.isnan({point.name: point.value for point in bad}["step/grad_norm"])


def test_odd_metric_name_is_made_acceptable():
    (group,) = point_groups([EpochRecord(1, 1, 0.0, 0.0, {"val/σ[cm]": 1.0})], Progress(), 1)
    assert "val/__cm_" in {point.name for point in group}


def test_uri_is_absolute_and_prefers_the_configured_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_uri(None, "artifacts") == f"sqlite:///{tmp_path}/artifacts/mlflow.db"
    assert resolve_uri("sqlite:///my.db?timeout=3", "artifacts") == f"sqlite:///{tmp_path}/my.db?timeout=3"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert resolve_uri(None, "artifacts") == "http://server:5000"
    assert resolve_uri("sqlite:////abs/my.db", "artifacts") == "sqlite:////abs/my.db"


@pytest.mark.parametrize("uri", ["file:///data/mlruns", "/data/mlruns"])
def test_file_store_is_refused_with_the_database_to_use(uri):
    with pytest.raises(ConfigError, match=r"tracking_uri=sqlite:////data/mlflow\.db"):
        resolve_uri(uri, "artifacts")


@pytest.mark.parametrize("place", ["/of June", "/of June: all", "/new #5"])
def test_the_database_to_use_is_named_whatever_its_directory_is_called(place):
    with pytest.raises(ConfigError) as caught:
        resolve_uri(f"{place}/mlruns", "artifacts")
    option, setting = shlex.split(caught.value.fix)
    assert (option, yaml.safe_load(setting.removeprefix("mlflow.tracking_uri="))) == ("--set", default_uri(place))


def test_settings_of_a_resumed_attempt_keep_identity_and_first_params(tmp_path):
    first = save_settings(tmp_path, settings_of(params={"lr": "1"}), new_run=False)
    save_settings(tmp_path, settings_of(params={"lr": "2"}, attempt=2), new_run=False)
    loaded = load_settings(tmp_path)
    assert (loaded.run_uid, loaded.params, loaded.resumed_params) == (first.run_uid, {"lr": "1"}, {"2": {"lr": "2"}})
    other = save_settings(tmp_path, settings_of(params={"lr": "3"}, attempt=3), new_run=True)
    assert other.run_uid != first.run_uid
    assert other.params == {"lr": "3"}


def test_run_without_tracking_cannot_be_replayed(tmp_path):
    with pytest.raises(UsageError, match=r"--set mlflow\.enabled=true"):
        load_settings(tmp_path)


def test_tracking_that_is_off_starts_no_process(tmp_path):
    tracker = start_tracker(tmp_path, None)
    assert isinstance(tracker, NullTracker)
    assert (tracker.poll(), tracker.finish().status) == ("", "done")
    assert list(tmp_path.iterdir()) == []


def test_params_have_the_names_of_the_older_system():
    config = {
        "kind": "regressor",
        "data": {"batch_size": 256, "fiducial": {"enabled": True, "u_max": 23.9}},
        "training": {"lr": 1e-4},
        "tasks": {"energy": {"enabled": True, "loss_fn": "l1", "weight": 2.0}, "angle": {"enabled": False}},
    }
    params = run_params(config, {"total_params": 12})
    expected = {"batch_size": "256", "lr": "0.0001", "task/energy_loss_fn": "l1", "total_params": "12"}
    assert expected.items() <= params.items()
    assert (params["active_tasks"], params["fiducial_u_max"]) == ("energy", "23.9")

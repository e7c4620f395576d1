"""Runs side by side: differing keys, metrics with errors, from run directories and from MLflow."""

import contextlib
import json
import math
import shutil
import sqlite3
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
import yaml
from xectool import engine
from xectool.detector.dead_channel_database import sqlite_dead_channels
from xectool.engine import runs
from xectool.errors import TrackerError, UsageError, XecError
from xectool.rootio.weights_state import KEY, WeightsState
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord, StepRecord
from xectool.runlog.writer import RunWriter

EVENTS = 400


def make_run(run_dir: Path, losses: list[float], *, lr: float = 1e-3) -> Path:
    with RunWriter(run_dir) as writer:
        config = {"kind": "regressor", "training": {"lr": lr, "seed": 42}, "data": {"train_path": "a.root"}}
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
        for epoch, loss in enumerate(losses, 1):
            now = time.time(), time.monotonic()
            writer.step(StepRecord(epoch, epoch, *now, loss))
            writer.epoch(EpochRecord(epoch, epoch, *now, {"val/loss": loss, "energy_res_68pct": loss / 100}))
        writer.event("finished")
    return run_dir


def with_predictions(run_dir: Path, width: float, *, shared: float = 0.002, seed: int = 1, first: int = 0) -> Path:
    """Write predictions whose residuals are a part that all runs share and a part of the run's own."""
    common, own = np.random.default_rng(0), np.random.default_rng(seed)
    truth = common.uniform(0.02, 0.06, EVENTS)
    residual = shared * common.standard_normal(EVENTS) + width * own.standard_normal(EVENTS)
    columns = {name: np.arange(first, first + EVENTS) for name in ("file_index", "entry", "run", "event")}
    best = min(RunReader(run_dir).epochs(), key=lambda record: record.metrics["val/loss"])
    with uproot.recreate(run_dir / "predictions.root") as file:
        file[KEY] = WeightsState(best.step, best.epoch, best.metrics["val/loss"]).text()
        file["tree"] = {
            **columns,
            "pred_energy": (truth + residual).astype(np.float32),
            "truth_energy": truth.astype(np.float32),
        }
    return run_dir


def test_comparison_shows_differing_keys_and_metrics_of_the_best_epochs(tmp_path):
    first = make_run(tmp_path / "a", [3.0, 1.0])
    second = make_run(tmp_path / "b", [2.0, 4.0], lr=1e-4)
    compared = runs.compare(first, second)
    assert [(item.key, item.first, item.second) for item in compared.config] == [("training.lr", 1e-3, 1e-4)]
    metrics = {item.key: (item.first, item.second) for item in compared.metrics}
    assert metrics["val/loss"] == (1.0, 2.0)
    assert metrics["epoch"] == (2, 1)


def test_comparison_with_a_directory_that_is_no_run_is_refused(tmp_path):
    make_run(tmp_path / "a", [1.0])
    with pytest.raises(UsageError, match="this directory holds no run record") as refused:
        runs.compare(tmp_path / "a", tmp_path)
    assert refused.value.fix == f"name {tmp_path / 'a'}"


def test_more_than_two_runs_have_a_value_each(tmp_path):
    made = [make_run(tmp_path / str(lr), [1.0], lr=lr) for lr in (1e-3, 1e-3, 1e-4)]
    compared = runs.compare(*made)
    assert compared.runs == tuple(map(str, made))
    assert [item.values for item in compared.config] == [(1e-3, 1e-3, 1e-4)]


def test_metrics_have_the_errors_of_their_events(tmp_path):
    first = with_predictions(make_run(tmp_path / "a", [1.0]), 0.001, seed=1)
    second = with_predictions(make_run(tmp_path / "b", [1.0], lr=1e-4), 0.001, seed=2)
    compared = runs.compare(first, second)
    (metric,) = (item for item in compared.metrics if item.key == "energy_res_68pct")
    expected = math.hypot(0.002, 0.001) * 0.994  # 68 % of a normal distribution lie within 0.994 sigma
    assert compared.events == EVENTS
    assert metric.values == (pytest.approx(expected, rel=0.2), pytest.approx(expected, rel=0.2))
    # the 68 % quantile of N normal residuals has an error of 0.97 sigma / sqrt(N), to 30 % with one sample
    assert metric.errors[0] == pytest.approx(0.97 * expected / math.sqrt(EVENTS), rel=0.3)
    # what both runs share cancels in the difference
    assert metric.difference_errors[0] < 0.8 * math.hypot(*metric.errors)
    assert abs(metric.differences[0]) < 4 * metric.difference_errors[0]


def test_a_better_run_is_better_by_many_errors(tmp_path):
    first = with_predictions(make_run(tmp_path / "a", [1.0]), 0.004, seed=1)
    second = with_predictions(make_run(tmp_path / "b", [1.0]), 0.001, seed=2)
    (metric,) = (item for item in runs.compare(first, second).metrics if item.key == "energy_res_68pct")
    assert metric.differences[0] < -5 * metric.difference_errors[0]


def test_other_events_give_no_errors(tmp_path):
    first = with_predictions(make_run(tmp_path / "a", [1.0]), 0.001)
    second = with_predictions(make_run(tmp_path / "b", [2.0]), 0.001, first=7)
    compared = runs.compare(first, second)
    assert compared.events == 0
    assert all(item.errors == () for item in compared.metrics)
    assert {item.key: item.values for item in compared.metrics}["val/loss"] == (1.0, 2.0)


def configured(run_dir: Path, **sections: Any) -> Path:
    (run_dir / "config.yaml").write_text(json.dumps({"kind": "regressor", "training": {"lr": 1e-3}, **sections}))
    return run_dir


LEARNT = {"enabled": True, "loss_fn": "l1", "scale": 0.01, "shift": 0.05}
IDLE = {"enabled": False, "loss_fn": "mse"}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"tasks": {"energy": LEARNT | {"loss_fn": "mse"}}}, "tasks.energy.loss_fn"),
        ({"tasks": {"energy": LEARNT | {"scale": 0.02}}}, "tasks.energy.scale"),
        ({"tasks": {"energy": LEARNT, "timing": LEARNT}}, "tasks.timing.enabled"),
        ({"tasks": {"energy": LEARNT | {"shift": 0.04}, "timing": IDLE | {"loss_fn": "l1"}}}, ""),
        ({"tasks": {"energy": LEARNT}, "model": {"encoder_dim": 64}}, ""),
        ({"kind": "mae", "training": {"loss_fn": "l1"}}, "kind"),
    ],
)
def test_losses_that_mean_something_else_are_told(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    first = configured(make_run(tmp_path / "a", [1.0]), tasks={"energy": LEARNT, "timing": IDLE})
    other = {**other, "tasks": {"timing": IDLE} | other["tasks"]} if "tasks" in other else other
    second = configured(make_run(tmp_path / "b", [2.0]), **other)
    told = [note for note in runs.compare(first, second).notes if note.startswith("losses are not comparable")]
    assert len(told) == bool(named)
    assert all(note.endswith(f"the runs differ in {named}") for note in told)


def test_losses_of_sensors_depend_on_what_is_hidden_and_on_the_units(tmp_path: Path) -> None:
    changes = {"model": {"mask_ratio": 0.6}, "normalization": {"npho_scale": 1000.0}, "training": {"loss_fn": "l1"}}
    first = configured(make_run(tmp_path / "a", [1.0]), kind="mae", **changes)
    for number, (section, value) in enumerate((("mask_ratio", 0.5), ("npho_scale", 50.0))):
        own = {name: {**keys, section: value} if section in keys else keys for name, keys in changes.items()}
        second = configured(make_run(tmp_path / f"b{number}", [1.0]), kind="mae", **own)
        (told, _) = runs.compare(first, second).notes
        assert section in told
    same = configured(make_run(tmp_path / "c", [1.0]), kind="mae", **changes)
    older = json.loads((same / "config.yaml").read_text())
    older["normalization"]["a key that only this version has"] = 1.0
    (same / "config.yaml").write_text(json.dumps(older))
    assert [note.partition(":")[0] for note in runs.compare(first, same).notes] == ["no metric has an error"]


def test_metrics_without_an_error_say_why(tmp_path: Path) -> None:
    first = with_predictions(make_run(tmp_path / "a", [1.0]), 0.001, seed=1)
    second = with_predictions(make_run(tmp_path / "b", [1.0]), 0.001, seed=2)
    assert runs.compare(first, second).notes == (
        "1 metric without an error: recorded as one number an epoch, not of single events",
    )
    third = with_predictions(make_run(tmp_path / "c", [1.0]), 0.001, first=7)
    assert runs.compare(first, third).notes == ("no metric has an error: the runs predicted other validation events",)
    bare = make_run(tmp_path / "d", [1.0])
    (told,) = runs.compare(first, bare).notes
    assert told.startswith(f"no metric has an error: no predictions.root of {bare}, ")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database that MLflow itself wrote, with a run of ours and one as the older system logged them."""
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own use of sqlalchemy
        client = MlflowClient(uri)
        experiment = client.create_experiment("xec")
        for name, loss, lr in (("ours", "val/loss", "0.001"), ("older", "val/total_loss", "0.003")):
            run = client.create_run(experiment, run_name=name).info.run_id
            values = [Metric(loss, value, 1, epoch) for epoch, value in ((1, 3.0), (2, 1.0), (3, math.nan))]
            params = [Param("lr", lr), Param("kind", "regressor"), Param("batch_size", "64")]
            client.log_batch(run, metrics=[*values, Metric("energy_bias", 0.1, 1, 2)], params=params)
            client.set_terminated(run)
    return uri


@pytest.mark.slow
def test_runs_of_a_database_are_listed_and_compared(tmp_path, database, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours").mkdir()  # some other directory of the name of a run
    table = {row.name: row for row in runs.list_runs(tracking_uri=database).runs}
    assert table.keys() == {"ours", "older"}
    assert all((row.status, row.best, row.best_epoch, row.epochs) == ("finished", 1.0, 2, 3) for row in table.values())
    compared = runs.compare("ours", "older", tracking_uri=database)
    assert [(item.key, item.values) for item in compared.config] == [("lr", ("0.001", "0.003"))]
    metrics = {item.key: item.values for item in compared.metrics}
    assert metrics["energy_bias"] == (0.1, 0.1)
    assert metrics["val/total_loss"] == (None, 1.0)
    mixed = runs.compare(make_run(tmp_path / "a", [2.0], lr=0.003), "older", tracking_uri=database)
    assert "lr" not in [item.key for item in mixed.config]
    with pytest.raises(UsageError, match="--tracking-uri") as caught:
        runs.compare("ours", "oldre", tracking_uri=database)
    assert "did you mean 'older'" in caught.value.problem


@pytest.mark.slow
def test_a_database_is_read_while_somebody_writes_and_stays_as_it_is(database):
    path = Path(database.removeprefix("sqlite:///"))
    before = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert len(runs.list_runs(tracking_uri=database).runs) == 2
        writer.rollback()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"no database at all, only text", b"SQLite format 3\x00" + bytes(200)])
def test_what_is_no_database_is_named(tmp_path, content):
    (tmp_path / "mlflow.db").write_bytes(content)
    with pytest.raises(TrackerError, match="xectool diagnose mlflow"):
        runs.list_runs(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_the_look_at_a_database_agrees_with_the_list_of_its_runs(tmp_path, monkeypatch):
    """`runs` led to `diagnose mlflow`, which said "sound, nothing to do" of another program's and of an absent one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.db").touch()
    for name, tables in (("other.db", ("runs",)), ("there.db", ("experiments", "runs", "metrics", "params"))):
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as writer:
            for table in tables:
                writer.execute(f"CREATE TABLE {table} (x)")
    with pytest.raises(TrackerError, match="xectool diagnose mlflow"):
        runs.list_runs(tracking_uri="sqlite:///other.db")
    assert runs.list_runs(tracking_uri="sqlite:///empty.db").runs == ()
    for name, problem in (
        ("other.db", "no database of MLflow: its tables are runs"),
        ("absent.db", "no such database"),
    ):
        seen = engine.diagnose.mlflow(f"sqlite:///{name}")
        assert (seen.ok, problem in seen.verdict) == (False, True)
        assert seen.next == f"xectool diagnose mlflow {tmp_path}/there.db"
    assert engine.diagnose.mlflow("sqlite:///there.db").ok
    assert engine.diagnose.mlflow(root=tmp_path).ok  # before the first run there is none yet


_TABLES = """
    CREATE TABLE experiments (experiment_id, name);
    CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time BIGINT, end_time BIGINT, lifecycle_stage TEXT);
    CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT, step BIGINT, is_nan BOOLEAN);
    CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
    CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
    INSERT INTO runs VALUES ('a', 'first', 'FINISHED', 1000, 2000, 'active');
    INSERT INTO metrics VALUES ('val/loss', 0.5, 1, 'a', 3, 0), ('step/loss', 0.5, 1, 'a', 30, 0);
"""


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE metrics SET step = '<script>' WHERE key = 'val/loss'",
        "UPDATE metrics SET step = 1e400",
        "UPDATE metrics SET value = 'x'",
        "UPDATE runs SET end_time = 'x'",
        "ALTER TABLE runs RENAME COLUMN start_time TO zz",
        "UPDATE params SET value = CAST(x'ff' AS TEXT)",
    ],
)
def test_a_database_with_something_else_in_a_column_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.executescript(f"{_TABLES} INSERT INTO params VALUES ('kind', 'mae', 'a');")
        (run,) = runs.list_runs(tracking_uri=f"sqlite:///{path}").runs
        assert (run.name, run.best, run.epochs, run.steps) == ("first", 0.5, 3, 30), "the control"
        writer.execute(damage)
        writer.commit()
    with pytest.raises(TrackerError, match=r"cannot be read[\s\S]*xectool diagnose mlflow"):
        runs.list_runs(tracking_uri=f"sqlite:///{path}")


def test_a_schema_that_is_no_text_is_damage_wherever_a_database_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.executescript(_TABLES)
    stored = path.read_bytes()
    name, text = b"tabletagstags", b"CREATE TABLE tags (key TEXT"
    assert [stored.count(part) for part in (name, text)] == [1, 1]
    damaged = stored.replace(name, b"tablet\x94gstags").replace(text, b"CREATE TABLE tags )key TEXT")
    path.write_bytes(damaged)
    with pytest.raises(TrackerError, match="cannot be read"):
        runs.list_runs(tracking_uri="sqlite:///mlflow.db")
    assert not engine.diagnose.mlflow("sqlite:///mlflow.db").ok
    assert engine.diagnose.mlflow("sqlite:///absent.db").next, "and one beside it"
    with pytest.raises(XecError, match=r"mlflow\.db"):
        list(sqlite_dead_channels(path).dead_channels(1))


@pytest.mark.parametrize("uri", ["http://localhost:5000", "sqlite:////nowhere/mlflow.db"])
def test_a_store_that_cannot_be_read_is_refused(uri):
    with pytest.raises(UsageError, match=r"\.db"):
        runs.list_runs(tracking_uri=uri)


def test_a_directory_of_files_leads_to_the_migration(tmp_path: Path) -> None:
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    for uri in (str(tmp_path / "mlruns"), f"file://{tmp_path}/mlruns"):
        with pytest.raises(UsageError, match="mlflow migrate-filestore --source") as refused:
            runs.list_runs(tracking_uri=uri)
        assert f"--source {tmp_path} --target sqlite:///{tmp_path}/mlflow.db" in refused.value.fix


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (WeightsState(2, 2, 1.0), ""),
        (WeightsState(1, 1, 3.0), "is of step 1, epoch 2 is step 2"),
        (WeightsState(2, 2, 1.5), "is of step 2 of another course of the run"),
        (WeightsState(2, 2, 1.0, validated=False), "is of step 2 and of weights that it does not validate"),
        (None, "does not say of which step it is"),
    ],
)
def test_predictions_of_another_state_than_the_best_epoch_give_no_errors(
    tmp_path: Path, state: WeightsState | None, named: str
) -> None:
    first, second = (with_predictions(make_run(tmp_path / name, [3.0, 1.0]), 0.001) for name in "ab")
    (second / "config.yaml").write_text("kind: regressor\ndata: {val_path: my val.root}\nvalidation: {max_events: 9}\n")
    with uproot.open(second / "predictions.root") as file:
        tree = file["tree"].arrays(library="np")
    with uproot.recreate(second / "predictions.root") as file:
        file["tree"] = tree
        if state is not None:
            file[KEY] = state.text()
    compared = runs.compare(first, second)
    assert compared.events == (0 if named else EVENTS)
    told = [note for note in compared.notes if named and named in note]
    assert len(told) == bool(named)
    if told:
        values = {item.key: item.values for item in compared.metrics}
        assert values == {"epoch": (2, 2), "val/loss": (1.0, 1.0), "energy_res_68pct": (0.01, 0.01)}
        line = f"xectool predict {second}/checkpoint_best.pt 'my val.root' --output {second}/predictions.root"
        assert told[0].endswith(f": {line} --max-events 9")


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (WeightsState(4, 0), ""),
        (WeightsState(3, 0), "is of step 3, the end of the run is step 4"),
        (WeightsState(4, 1, 1.5), "is of step 4 of another course of the run"),
    ],
)
def test_predictions_of_the_end_of_a_run_inside_its_first_epoch_are_of_what_it_measured(
    tmp_path: Path, state: WeightsState, named: str
) -> None:
    first, second = (with_predictions(make_run(tmp_path / name, [3.0]), 0.001) for name in "ab")
    for place, own in ((first, WeightsState(4, 0)), (second, state)):
        with uproot.open(place / "predictions.root") as file:
            tree = file["tree"].arrays(library="np")
        with uproot.recreate(place / "predictions.root") as file:
            file["tree"], file[KEY] = tree, own.text()
        shutil.rmtree(place / "rec")
        with RunWriter(place) as writer:
            writer.event("finished", "max_steps", step=4, epoch=1, status="max_steps", metrics={"val/loss": 0.88})
    compared = runs.compare(first, second)
    assert compared.events == (0 if named else EVENTS)
    assert [named in note for note in compared.notes if "no metric has an error" in note] == ([True] if named else [])

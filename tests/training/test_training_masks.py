"""What sensor-level training hides, counts and keeps on the way: patterns, ratios, losses, prediction files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool import engine
from xectool.checkpoint import store
from xectool.errors import DataUnusable
from xectool.rootio.writer import TreeWriter
from xectool.training.trainer import StoppedInValidation, Trainer

pytestmark = pytest.mark.usefixtures("shallow")
Write = Callable[..., Path]


def history_of(run_dir: str) -> list[dict[str, float]]:
    return list(store.load(Path(run_dir) / store.LAST_NAME).meta["progress"]["history"])


@pytest.mark.parametrize("cut", [False, True])
def test_training_logs_the_three_ratios_too_across_a_resume(sensor_config: Write, tiny_data: Path, cut: bool) -> None:
    config = sensor_config("mae", mask_ratio=0.6)
    if cut:
        engine.train(config, run_name="ratios", max_steps=2)
    run = engine.train(config, run_name="ratios", resume="auto" if cut else None, max_steps=5)
    valid = np.concatenate(
        [
            (uproot.open(path)["tree"]["npho"].array(library="np") < 9e9).sum(axis=1)
            for path in sorted(tiny_data.glob("train_*.root"))
        ]
    )
    masked, all_sensors = np.floor(0.6 * valid).sum(), 4760 * len(valid)
    epoch = history_of(run.run_dir)[0]
    assert epoch["train/masked_of_valid"] == pytest.approx(masked / valid.sum())
    assert epoch["train/masked_of_all"] == pytest.approx(masked / all_sensors)
    assert epoch["train/hidden_of_all"] == pytest.approx((masked + all_sensors - valid.sum()) / all_sensors)


@pytest.mark.parametrize("track", [False, True])
def test_losses_of_faces_and_channels_are_logged_in_training_where_asked_for(sensor_config: Write, track: bool) -> None:
    config = sensor_config("mae", predict_channels=["npho", "time"])
    settings = [f"training.track_metrics={str(track).lower()}", "training.ema_decay=null"]
    run = engine.train(config, run_name=f"track{track}", overrides=settings, max_steps=5)
    epoch = history_of(run.run_dir)[0]
    wanted = {"train/loss_inner", "train/loss_outer_npho", "train/loss_inner_time", "train/loss_npho"}
    assert (wanted <= epoch.keys()) is track
    assert any(name.startswith("train/loss_") for name in epoch) is track
    assert {"val/loss_inner", "val/loss_outer_npho"} <= epoch.keys()
    if track:
        faces = [epoch[f"train/loss_{face}"] for face in ("inner", "us", "ds", "outer", "top", "bot")]
        assert epoch["train/loss"] == pytest.approx(sum(faces), rel=1e-5)


def test_predictions_of_an_epoch_are_those_of_its_validation(sensor_config: Write) -> None:
    config = sensor_config("inpainter", mask_ratio=0.05, use_local_context=False)
    settings = ["training.epochs=4", "checkpoint.root_save_interval=3", "validation.interval=2"]
    run = Path(engine.train(config, run_name="epochs", overrides=settings).run_dir)
    written = sorted(path.name for path in run.glob("predictions*.root*"))
    assert written == ["predictions.root", "predictions_epoch_4.root"], "epoch 3 is not validated, 4 is the next"
    rows = uproot.open(run / "predictions_epoch_4.root")["tree"].arrays(library="np")
    hidden = rows["mask_type"] == 0
    error = np.abs(rows["pred_npho"][hidden] - rows["truth_npho"][hidden]).mean()
    assert history_of(str(run))[-1]["mae_photons"] == pytest.approx(error, rel=1e-4)
    unsaved = ["training.epochs=1", "checkpoint.root_save_interval=1", "checkpoint.save_predictions=false"]
    off = engine.train(config, run_name="off", overrides=unsaved)
    assert list(Path(off.run_dir).glob("predictions*")) == []


def test_predictions_of_an_epoch_hold_so_many_events_at_most(
    sensor_config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xectool.training.predicting.epochs.MAX_EVENTS", 11)
    settings = ["checkpoint.root_save_interval=1", "training.epochs=1"]
    run = Path(engine.train(sensor_config("mae"), run_name="few", overrides=settings).run_dir)
    assert np.unique(uproot.open(run / "predictions_epoch_1.root")["tree"]["entry"].array()).tolist() == [*range(11)]


def test_a_signal_in_validation_leaves_no_half_file_of_predictions(
    sensor_config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(trainer: Trainer) -> None:
        raise StoppedInValidation

    monkeypatch.setattr(Trainer, "_validated_batch", stop)
    settings = ["checkpoint.root_save_interval=1"]
    config = sensor_config("inpainter", use_local_context=False)
    run = engine.train(config, run_name="stopped", overrides=settings)
    assert run.status == "interrupted"
    assert list(Path(run.run_dir).glob("predictions_epoch*")) == []


PATTERN = [6, 100, 2000, 4200, 4300, 4500, 4600, 4700]
CHEAP: dict[str, dict[str, Any]] = {"mae": {}, "inpainter": {"use_local_context": False}}


@pytest.mark.parametrize(
    ("origin", "kind"),
    [("text", "mae"), ("branch:dead", "mae"), ("data", "mae"), ("database", "mae"), ("branch:dead", "inpainter")],
)
def test_patterns_of_dead_channels_are_hidden_from_any_origin(
    sensor_config: Write, tmp_path: Path, origin: str, kind: str
) -> None:
    patterns: dict[str, object] = {"origins": [origin]}
    if origin == "text":
        (tmp_path / "dead.txt").write_text(" ".join(map(str, PATTERN)))
        patterns = {"origins": [str(tmp_path / "dead.txt")]}
    elif origin == "database":
        patterns = {"origins": [f"sqlite:///{status_database(tmp_path)}"], "runs": [430000]}
    else:
        patterns["files"] = str(flagged_file(tmp_path))
    config = sensor_config(kind, mask_patterns=patterns, **CHEAP[kind])
    run = engine.train(config, run_name="patterns", max_steps=2)
    rows = uproot.open(Path(run.run_dir) / "predictions.root")["tree"].arrays(library="np")
    assert np.array_equal(rows["sensor"].reshape(16, -1), np.tile(PATTERN, (16, 1)))
    (tmp_path / "dead.txt").unlink(missing_ok=True)
    again = engine.train(config, run_name="patterns", resume="auto", max_steps=3)
    assert again.steps == 3, "the checkpoint holds the sensors; the origin is not asked again"
    saved = store.load(Path(run.run_dir) / store.LAST_NAME).config["model"]["mask_patterns"]
    assert saved["sensors"] == [PATTERN]


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
@pytest.mark.parametrize("dead", ["train", "val", "ratio"])
def test_events_that_hide_nothing_are_refused(sensor_config: Write, tmp_path: Path, kind: str, dead: str) -> None:
    npho = np.full((40, 4760), 1e10, np.float32)
    npho[:, 5] = 100.0  # a share of one sensor is none
    rows = {"npho": npho, "relative_time": npho, "run": np.ones(40, np.int32), "event": np.arange(40, dtype=np.int32)}
    with TreeWriter(tmp_path / "dim.root", {name: (v.dtype, v.shape[1:]) for name, v in rows.items()}) as writer:
        writer.extend(rows)
    changes = {"model.mask_ratio": 1e-5} if dead == "ratio" else {f"data.{dead}_path": str(tmp_path / "dim.root")}
    overrides = [f"{key}={value}" for key, value in changes.items()]
    with pytest.raises(DataUnusable, match="there is nothing to learn") as refused:
        engine.train(sensor_config(kind), run_name="nothing", overrides=overrides)
    assert refused.value.where == ("data.val_path" if dead == "val" else "data.train_path")


def test_an_empty_pattern_is_refused_with_its_name(sensor_config: Write, tmp_path: Path) -> None:
    (tmp_path / "full.txt").write_text("7 8")
    (tmp_path / "none.txt").write_text("# all alive\n")
    origins = [str(tmp_path / name) for name in ("full.txt", "none.txt")]
    with pytest.raises(DataUnusable, match=r"is empty(.|\n)*none\.txt"):
        engine.train(sensor_config("mae", mask_patterns={"origins": origins}), run_name="empty")


def test_every_pattern_is_hidden_and_an_event_hides_the_same_one_again(sensor_config: Write) -> None:
    patterns = {"sensors": [PATTERN[:3], PATTERN[3:]]}
    config = sensor_config("inpainter", mask_patterns=patterns)
    runs = [engine.train(config, run_name=f"two{i}", max_steps=1) for i in range(2)]
    found = [uproot.open(Path(r.run_dir) / "predictions.root")["tree"].arrays(library="np") for r in runs]
    assert np.array_equal(found[0]["sensor"], found[1]["sensor"])
    assert set(np.bincount(found[0]["entry"])) == {3, 5}


def test_patterns_that_the_training_events_have_no_reading_of_are_refused(
    sensor_config: Write, tiny_data: Path
) -> None:
    npho = uproot.open(tiny_data / "train_000.root")["tree"]["npho"].array(library="np")
    dead = np.flatnonzero((npho > 9e9).all(axis=0)).tolist()
    with pytest.raises(DataUnusable, match="hide random sensors"):
        engine.train(sensor_config("mae", mask_patterns={"sensors": [dead]}), run_name="nothing")
    engine.train(sensor_config("mae", mask_patterns={"sensors": [[*dead, 7]]}), run_name="some", max_steps=1)


@pytest.mark.parametrize("kind", ["mae", "inpainter"])
def test_masks_flat_in_light_can_be_asked_for(sensor_config: Write, kind: str) -> None:
    means = []
    for flat in (False, True):
        config = sensor_config(kind, mask_ratio=0.1, mask_npho_flat=flat)
        run = engine.train(config, run_name=f"flat{flat}", max_steps=1)
        means.append(
            uproot.open(Path(run.run_dir) / "predictions.root")["tree"]["truth_npho"].array().to_numpy().mean()
        )
    assert means[1] > 2 * means[0]


def flagged_file(directory: Path) -> Path:
    """Write three events of another run whose sensors of `PATTERN` are dead and flagged."""
    npho = np.full((3, 4760), 10.0, np.float32)
    npho[:, PATTERN] = 1e10
    with TreeWriter(directory / "real.root", {"npho": ("f4", (4760,)), "dead": ("i1", (4760,))}) as writer:
        writer.extend({"npho": npho, "dead": (npho > 9e9).astype(np.int8)})
    return directory / "real.root"


def status_database(directory: Path) -> Path:
    """Write the experiment's tables for run 430000, with `PATTERN` dead."""
    path = directory / "conditions.db"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            "CREATE TABLE RunCatalog (id, XECConf_id); INSERT INTO RunCatalog VALUES (430000, 1);"
            "CREATE TABLE XECConf (id, XECPMStatusDB_id); INSERT INTO XECConf VALUES (1, 2);"
            "CREATE TABLE XECPMStatusDB (id, XECPMStatus_id); INSERT INTO XECPMStatusDB VALUES (2, 3);"
            "CREATE TABLE XECPMStatus (id, idx, IsBad);"
        )
        rows = [(3, sensor, int(sensor in PATTERN)) for sensor in range(4760)]
        connection.executemany("INSERT INTO XECPMStatus VALUES (?, ?, ?)", rows)
    return path

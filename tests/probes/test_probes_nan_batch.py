"""Numbers that are not finite are put into files, weights, moments and modules; the search names each exactly."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from xectool import engine
from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.cli import app
from xectool.cli.boundary import run as run_cli
from xectool.config.load import load_config
from xectool.engine.diagnose import nonfinite
from xectool.engine.diagnose.nonfinite import NanBatchResult
from xectool.errors import CheckpointError
from xectool.models.build import build_model
from xectool.models.regressor import Regressor
from xectool.probes.instruments.minimal import load_batch, save_batch
from xectool.probes.nonfinite import raw, sound_state
from xectool.probes.nonfinite.scan import MAX_ANOMALIES, MOST_SUSPECTS, at_their_step, scan
from xectool.probes.nonfinite.subject import of_config
from xectool.probes.nonfinite.verdicts import Training
from xectool.rootio.reader import EventFile

NUM_FILES, EVENTS_PER_FILE = 2, 8  # of the fixtures
CURED = "   # then take out what it names"

Write = Callable[..., Path]
once_each = settings(
    deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=False
)
PLACES = st.tuples(st.integers(0, NUM_FILES - 1), st.integers(0, EVENTS_PER_FILE - 1), st.integers(0, 4759))


def search(config: Path, tmp_path: Path, **options: object) -> NanBatchResult:
    return engine.diagnose.nan_batch(config, output=tmp_path / "min.npz", **options)


def require_event(result: NanBatchResult, directory: Path, file: int, entry: int) -> None:
    assert result.event is not None
    with EventFile(str(directory / f"train_{file:03d}.root")) as events:
        number = int(events.read_column("event")[entry])
    assert (Path(result.event["file"]).name, result.event["entry"]) == (f"train_{file:03d}.root:tree", entry)
    assert result.event["event"] == number


@pytest.mark.parametrize("kind", ["regressor", "mae", "inpainter"])
def test_clean_data_show_nothing_in_any_kind(write_config: Write, tmp_path: Path, kind: str) -> None:
    result = search(write_config(kind), tmp_path, full=kind == "regressor")
    assert not result.found
    assert result.events_scanned == NUM_FILES * EVENTS_PER_FILE
    assert result.event is None
    assert result.first_nonfinite is None
    assert result.minimal is None
    assert not (tmp_path / "min.npz").exists()


@once_each
@given(
    place=PLACES,
    branch=st.sampled_from(["npho", "relative_time"]),
    value=st.sampled_from([math.nan, math.inf, -math.inf, 1e38, -1e38]),
)
def test_illegal_number_in_a_file_is_named(
    write_config: Write,
    poisoned: Callable[..., Path],
    tmp_path: Path,
    place: tuple[int, int, int],
    branch: str,
    value: float,
) -> None:
    file, entry, sensor = place
    directory = poisoned({(file, entry, branch, sensor): value})
    result = search(write_config(train=directory), tmp_path)
    assert result.found
    assert result.cause == "input"
    require_event(result, directory, file, entry)
    assert result.sensors == (sensor,)
    np.testing.assert_equal(np.float32(float(result.value)), np.float32(value))
    assert result.first_nonfinite["stage"] == "input"
    assert not result.breaks_training  # the network takes it for a dead channel
    assert any(low <= entry < high for block in result.batch["blocks"] for low, high in block["entries"])


def test_events_of_an_earlier_search_are_not_written_over(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(train=poisoned({(0, 3, "npho", 17): math.nan}))
    names = [engine.diagnose.nan_batch(config).minimal for _ in range(2)]
    assert names == ["nan_batch.npz", "nan_batch2.npz"]
    assert all(Path(name).is_file() for name in names if name)


@pytest.mark.parametrize(
    ("branch", "value", "overrides"),
    [("energyTruth", -1.0, ["tasks.energy.log_transform=true"]), ("energyTruth", 3e38, []), ("npho", 3e38, [])],
)
def test_of_several_bad_events_the_one_that_is_served_first_is_named(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, branch: str, value: float, overrides: list[str]
) -> None:
    """Wherever they lie in the files, and whether they break a step (a logarithm) or not."""
    bad = [(file, entry) for file in range(NUM_FILES) for entry in range(1, EVENTS_PER_FILE, 5)]
    config = write_config(train=poisoned({(*place, branch, 0): value for place in bad}))
    subject = of_config(load_config(config).config, None, "cpu")
    assert subject.plan is not None
    steps = {
        event: step
        for step in range(subject.plan.num_steps)
        for event in zip(*(ids.tolist() for ids in subject.plan.batch_events(1, step, 0)), strict=True)
    }
    subject.close()
    result = search(config, tmp_path, overrides=overrides)
    assert result.breaks_training == bool(overrides)
    named = (int(Path(result.event["file"]).name[6:9]), result.event["entry"])
    assert named in bad
    assert steps[named] == min(steps[place] for place in bad) == result.batch["index"]
    assert result.minimal is not None
    again = engine.diagnose.nan_batch(config, overrides=overrides, batch=result.minimal)
    assert again.batch["index"] == result.batch["index"]
    assert result.facts.get("every_event_fails") is (False if overrides else None)  # those compared with are sound


def test_marks_of_dead_channels_and_unknown_truth_are_legal(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path
) -> None:
    legal = {
        (0, 1, "npho", 5): 1e10,
        (0, 2, "relative_time", 7): -1e10,
        (1, 3, "energyTruth", 0): 1e10,
        (1, 4, "npho", 9): -5000.0,
    }
    assert not search(write_config(train=poisoned(legal)), tmp_path).found


@once_each
@given(place=PLACES, size=st.floats(35, 38))
def test_finite_number_that_overflows_in_a_module_is_named_with_its_module(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, place: tuple[int, int, int], size: float
) -> None:
    file, entry, sensor = place
    directory = poisoned({(file, entry, "npho", sensor): -(10.0**size)})
    config = write_config(train=directory, normalization={"npho_scheme": "linear", "npho_scale": 1.0})
    result = search(config, tmp_path)
    assert result.found
    assert result.breaks_training
    require_event(result, directory, file, entry)
    assert result.sensors == (sensor,)
    inside = [
        (Path(block["file"]).name, low <= entry < high)
        for block in result.batch["blocks"]
        for low, high in block["entries"]
    ]
    assert (f"train_{file:03d}.root:tree", True) in inside
    assert sum(high - low for block in result.batch["blocks"] for low, high in block["entries"]) == 4
    first = result.first_nonfinite
    assert first["stage"] == "module"
    assert first["module"].startswith("backbone.")
    assert first["input_absmax"] > 1e18
    assert result.facts["finite_in_float64"]
    # the saved batch alone shows the same, and no data file is needed for it
    for path in directory.glob("train_*.root"):
        path.unlink()
    again = engine.diagnose.nan_batch(config, batch=result.minimal)
    assert again.found
    assert again.sensors == result.sensors
    assert again.event == result.event
    assert {k: again.first_nonfinite[k] for k in ("stage", "module", "op")} == {
        k: first[k] for k in ("stage", "module", "op")
    }


@once_each
@given(place=PLACES, value=st.sampled_from([0.0, -0.05, -3.0]))
def test_truth_without_a_logarithm_is_named(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, place: tuple[int, int, int], value: float
) -> None:
    file, entry, _ = place
    directory = poisoned({(file, entry, "energyTruth", 0): value})
    tasks = {"energy": {"enabled": True, "scale": "auto", "shift": "auto", "log_transform": True}}
    result = search(write_config(train=directory, tasks=tasks), tmp_path)
    assert result.found
    assert result.breaks_training
    assert result.cause == "input"
    require_event(result, directory, file, entry)
    assert result.first_nonfinite["stage"] == "loss"
    assert result.readings[0]["branch"] == "energy"
    assert result.value == pytest.approx(value)
    assert result.findings[0].code == "XT-NAN-LOSS"
    assert "log_transform: false" in result.next


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_truth_that_is_not_finite_is_named(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, value: float
) -> None:
    directory = poisoned({(1, 6, "uvwTruth", 1): value})
    result = search(write_config(train=directory), tmp_path)
    require_event(result, directory, 1, 6)
    assert result.readings[0]["branch"] == "uvwFI"
    assert result.sensors == ()


@once_each
@given(data=st.data(), value=st.sampled_from([math.nan, math.inf]))
def test_broken_weight_is_named_with_its_module(
    trained: tuple[Path, Path], tmp_path: Path, data: st.DataObject, value: float
) -> None:
    config, path = trained
    checkpoint = store.load(path)
    names = [name for name, weight in checkpoint.model.items() if weight.is_floating_point()]
    name = data.draw(st.sampled_from(names))
    flat = checkpoint.model[name].view(-1)
    flat[data.draw(st.integers(0, len(flat) - 1))] = value
    broken = tmp_path / "broken.pt"
    store.save(broken, checkpoint)
    result = search(config, tmp_path, ckpt=broken)
    assert result.found
    assert result.cause == "weight"
    assert result.event is None
    module, _, own = name.rpartition(".")
    first = result.first_nonfinite
    assert (first["stage"], first["module"], first["op"], first["parameter"]) == ("parameter", module, own, name)


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
def test_broken_moment_of_the_optimizer_is_named(trained: tuple[Path, Path], tmp_path: Path, moment: str) -> None:
    config, path = trained
    checkpoint = store.load(path)
    checkpoint.training["optimizer"]["state"][3][moment].view(-1)[0] = math.inf
    broken = tmp_path / "broken.pt"
    store.save(broken, checkpoint)
    result = search(config, tmp_path, ckpt=broken)
    assert result.found
    assert result.cause == "weight"
    assert result.first_nonfinite["op"] == f"optimizer {moment}"
    assert result.next.startswith(f"xectool train {config} --resume auto")
    assert result.first_nonfinite["parameter"]


def test_weight_that_is_finite_but_too_large_is_told_from_the_events(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    config, path = trained
    checkpoint = store.load(path)
    checkpoint.model["heads.uvwFI.4.weight"][:] = 3e37
    checkpoint.model["heads.uvwFI.6.weight"][:] = 3e37
    broken = tmp_path / "broken.pt"
    store.save(broken, checkpoint)
    result = search(config, tmp_path, ckpt=broken)
    assert result.found
    assert result.cause == "weight"
    assert result.event is None
    assert result.first_nonfinite["module"].startswith("heads.uvwFI.")
    assert result.facts["every_event_fails"]
    assert result.facts["finite_with_fresh_weights"]
    again = engine.diagnose.nan_batch(config, batch=result.minimal)
    assert again.cause == "weight"
    assert again.facts == {name: said for name, said in result.facts.items() if name != "every_event_fails"}


@pytest.mark.parametrize("saved", [True, False])
def test_ordinary_readings_that_meet_wild_weights_lead_to_other_weights(
    trained: tuple[Path, Path], tmp_path: Path, saved: bool
) -> None:
    config, path = trained
    low, high, broken, runs = 1.3e19, 3.2e19, tmp_path / "broken.pt", tmp_path / "runs"
    shutil.copytree(path.parent, runs / "r") if saved else runs.mkdir()
    for _ in range(12):  # until one event fails and others do not
        scale, checkpoint = math.sqrt(low * high), store.load(path)
        checkpoint.model["backbone.backbone.stem.0.weight"].mul_(scale)
        checkpoint.model["backbone.backbone.stem.0.bias"].zero_()
        store.save(broken, checkpoint)
        result = search(config, tmp_path, ckpt=broken, overrides=[f"checkpoint.save_dir={runs}"])
        if result.found and not result.facts["every_event_fails"]:
            break
        low, high = (low, scale) if result.found else (scale, high)
    assert (result.cause, result.facts["fails_with_any_readings"]) == ("combination", False)
    words = shlex.split(result.next, comments=True)
    if saved:  # the last one is whole, and what a resume takes by itself
        assert words[-2:] == ["--resume", str(runs / "r" / "checkpoint_last.pt")]
        assert not search(config, tmp_path, ckpt=words[-1]).found
    else:
        assert words[-2:] == ["--run-name", "r-fresh"]
        assert result.next.endswith(f", no state in {tmp_path} does")
        overrides = [f"checkpoint.save_dir={runs}", f"checkpoint.init_from={broken}"]
        words = shlex.split(search(config, tmp_path, ckpt=broken, overrides=overrides).next, comments=True)
        given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        assert load_config(config, given).config.checkpoint.init_from is None


def test_weights_that_a_rate_beyond_reason_made_lead_to_a_lower_rate(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    """The line started the same training anew, with the same rate, and ended as before."""
    config, path = trained
    checkpoint = store.load(path)
    checkpoint.model["backbone.backbone.stem.0.weight"].mul_(1e25)
    store.save(tmp_path / "broken.pt", checkpoint)
    broken = tmp_path / "broken.pt"
    for rate, name in (("5", "r-lower-lr"), ("0.005", "r-fresh")):
        overrides = [f"checkpoint.save_dir={tmp_path}", f"training.lr={rate}", f"checkpoint.init_from={broken}"]
        words = shlex.split(search(config, tmp_path, ckpt=broken, overrides=overrides).next, comments=True)
        given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        assert words[words.index("--run-name") + 1] == name
        assert load_config(config, given).config.training.lr == {"5": 3e-4, "0.005": 0.005}[rate]
        assert load_config(config, given).config.checkpoint.init_from is None
    checkpoint.model["backbone.backbone.stem.0.weight"].fill_(math.nan)
    store.save(broken, checkpoint)
    found = search(config, tmp_path, ckpt=broken, overrides=["training.lr=5"])
    assert "--run-name r-lower-lr --set training.lr=0.0003" in found.next


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def test_newest_state_that_overflows_is_passed_over(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = trained
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    checkpoint = store.load(path)
    store.save(run / "checkpoint_epoch_0001.pt", checkpoint)
    sound = store.load(path)  # none of these is a state to resume from
    sound.meta["step"] += 20
    store.save(run / "nan_batch.weights.pt", sound)
    store.save(run / "checkpoint_a.pt", replace(sound, meta=without(sound.meta, "progress")))
    other = {"config": {**sound.config, "mlflow": {**sound.config["mlflow"], "run_name": "another"}}}
    store.save(run / "checkpoint_b.pt", replace(sound, meta={**sound.meta, **other}))
    checkpoint.model["heads.uvwFI.4.weight"][:] = 3e37
    checkpoint.model["heads.uvwFI.6.weight"][:] = 3e37
    checkpoint.meta["step"] += 10
    store.save(run / "checkpoint_last.pt", checkpoint)
    overrides = [f"checkpoint.save_dir={run.parent}"]
    alive: list[weakref.ref[Checkpoint]] = []

    def followed(path: Path) -> Checkpoint:
        assert sum(item() is not None for item in alive) <= 1  # and not as many as there are files
        alive.append(weakref.ref(found := load(path)))
        return found

    load = store.load
    monkeypatch.setattr(sound_state.store, "load", followed)
    result = search(config, tmp_path, ckpt=run / "checkpoint_last.pt", overrides=overrides)
    assert result.cause == "weight"
    assert len(alive) > 4
    assert shlex.split(result.next, comments=True)[-2:] == ["--resume", str(run / "checkpoint_epoch_0001.pt")]
    with pytest.raises(CheckpointError, match=r"holds no place in a run[\s\S]*checkpoint.init_from="):
        engine.train(config, overrides=overrides, resume=str(run / "checkpoint_a.pt"))


def test_module_that_fails_with_every_event_is_not_cured_by_leaving_events_out(
    write_config: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def infinite(model: nn.Module, *args: Any) -> Any:
        outputs = forward(model, *args)
        return {task: value / torch.zeros(()) for task, value in outputs.items()}

    forward = Regressor.forward
    monkeypatch.setattr(Regressor, "forward", infinite)
    result = search(write_config(), tmp_path)
    assert result.found
    assert result.event is None
    assert result.next.startswith("xectool explain ")
    assert "quarantine" not in result.next


def test_command_line_answers_with_one_document_and_exit_1(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sensor = 1234
    config = write_config(train=poisoned({(1, 2, "npho", sensor): math.nan}))
    output = tmp_path / "m.npz"
    assert run_cli(app.app, ["diagnose", "nan-batch", str(config), "--output", str(output), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "diagnose nan-batch"
    assert document["status"] == "bad"
    result = document["result"]
    assert result["sensors"] == [sensor]
    assert result["value"] == "NaN"
    assert {"found", "event", "sensors", "value", "first_nonfinite", "batch", "events_scanned"} <= result.keys()
    assert result["written"] == [str(output)]
    assert run_cli(app.app, ["diagnose", "nan-batch", str(config), "--output", str(output)]) == 1
    assert f"written: {output}" in " ".join(capsys.readouterr().err.split())
    assert {"file", "entry", "run", "event"} == result["event"].keys()
    words = result["reproduce"].split()
    assert run_cli(app.app, words[1:]) == 1
    assert f"sensor {sensor}" in capsys.readouterr().err
    with np.load(output, allow_pickle=False) as content:
        assert len(content["npho"]) == 1
        assert math.isnan(content["npho"][0, sensor])


def test_weights_that_are_in_no_file_are_named_with_the_events_that_need_them(tmp_path: Path) -> None:
    for trained_on, names in ((True, ["m.npz", "m.weights.pt"]), (False, ["m.npz"])):
        subject: Any = SimpleNamespace(trained_on=trained_on)
        assert [Path(name).name for name in nonfinite.written(tmp_path / "m.npz", subject)] == names
    assert nonfinite.written(None, subject) == ()


def test_file_that_marks_dead_sensors_with_nan_is_counted_not_listed(
    write_config: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = of_config(load_config(write_config()).config, None, "cpu")
    marked = [replace(batch, npho=batch.npho.clone(), time=batch.time.clone()) for batch in subject.batches()] * 4
    for batch in marked:
        batch.npho[:, ::10] = math.nan
        batch.time[1, 7] = math.inf
    named, honest = [0], raw.anomaly

    def count(*arguments: Any) -> raw.Anomaly:
        named[0] += 1
        return honest(*arguments)

    monkeypatch.setattr(raw, "anomaly", count)
    bench = subject.bench
    report = scan(at_their_step(marked), bench.config, bench.model, bench.task)
    assert report.num_anomalies == sum(476 * batch.num_events + 1 for batch in marked)
    assert len(report.anomalies) == MAX_ANOMALIES < named[0] < MAX_ANOMALIES + 2 * 476 < report.num_anomalies
    assert report.dead == {("npho", sensor) for sensor in range(0, 4760, 10)}
    first = [(a.branch, a.sensor) for a in report.anomalies]
    beside = first.count(("time", 7))
    assert first[: beside + 476] == [("time", 7)] * beside + [("npho", s) for s in range(0, 4760, 10)]
    assert [event.step for event in report.suspects] == [0] * len(report.suspects)  # the first of each branch
    assert MOST_SUSPECTS <= len(report.suspects) <= 2 * MOST_SUSPECTS


def test_the_line_for_the_batch_alone_keeps_the_settings_and_each_event_counts_once(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path
) -> None:
    everywhere = {(file, entry, "npho", 77): math.nan for file in range(NUM_FILES) for entry in range(EVENTS_PER_FILE)}
    result = search(
        write_config(train=poisoned(everywhere)), tmp_path, overrides=["model.encoder_dim=64"], max_events=4
    )
    assert result.events_tried == result.events_scanned == 4  # each is a suspect, ordinary and extreme
    assert not [note for note in result.scanned if "not tried" in note]
    words = shlex.split(result.reproduce)
    assert words[4:6] == ["--set", "model.encoder_dim=64"]
    assert run_cli(app.app, words[1:]) == 1, "it names the event again"


def test_weights_of_another_width_are_refused_with_the_setting_that_fits(trained: tuple[Path, Path]) -> None:
    config, checkpoint = trained
    with pytest.raises(CheckpointError) as caught:
        engine.diagnose.nan_batch(config, ckpt=checkpoint, overrides=["model.encoder_dim=64"])
    before, option = caught.value.fix.split()
    assert (before, option.partition("=")[0]) == ("--set", "model.encoder_dim")
    assert not engine.diagnose.nan_batch(config, ckpt=checkpoint, overrides=["model.encoder_dim=64", option]).found


def test_batch_file_that_holds_no_batch_is_a_usage_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.npz").write_bytes(b"no archive")
    assert run_cli(app.app, ["diagnose", "nan-batch", "--batch", str(tmp_path / "x.npz")]) == 2
    assert "holds no batch" in capsys.readouterr().err
    assert run_cli(app.app, ["diagnose", "nan-batch"]) == 2


@pytest.mark.parametrize(
    ("text", "overrides", "named"),
    [
        ("mlflow: {run_name: r}", (), "--run-name r-amp "),
        ("mlflow: {run_name: r}", ("mlflow.run_name=q",), "--set mlflow.run_name=q --run-name q-amp "),
        ("mlflow: {run_name: null}", (), ""),
    ],
)
def test_a_line_that_starts_anew_does_not_meet_the_run_of_the_same_name(
    tmp_path: Path, text: str, overrides: tuple[str, ...], named: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    line = Training(path, overrides).again("amp", "training.amp=off")
    assert line == f"xectool train {path} {named}--set training.amp=off"


def test_bright_reading_overflows_float16_only(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path, clean_data: Path
) -> None:
    with EventFile(str(clean_data / "train_000.root")) as events:
        light = events.read_column("npho")[3]
    sensor = int(np.argmax(np.where(light < 9e9, light, 0)))
    directory = poisoned({(0, 3, "npho", sensor): 8e9})
    config = write_config(
        train=directory, normalization={"npho_scheme": "linear", "npho_scale": 1.0}, training={"amp": "fp16"}
    )
    with torch.random.fork_rng():
        result = search(config, tmp_path)
    assert result.found
    assert result.cause == "combination"
    assert result.facts["finite_in_float32"]
    require_event(result, directory, 0, 3)
    assert sensor in result.sensors
    assert result.first_nonfinite["dtype"] == "float16"
    assert result.findings[0].code == "XT-AMP-OVERFLOW"
    *words, setting = shlex.split(result.next, comments=True)
    assert words == ["xectool", "train", str(config), "--run-name", "r-amp", "--set"]
    assert load_config(config, [setting]).config.training.amp == "off"


def test_validation_events_are_searched_after_the_training_events(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path
) -> None:
    directory = poisoned({(0, 3, "npho", 77): math.nan})
    files = {"train_path": [str(directory / "train_001.root")], "val_path": [str(directory / "train_000.root")]}
    config = write_config("regressor", data=files)
    result = search(config, tmp_path)
    assert result.verdict.startswith("validation: ")
    assert (result.events_scanned, result.sensors) == (EVENTS_PER_FILE, (77,))
    require_event(result, directory, 0, 3)
    assert not search(config, tmp_path, data="train").found
    swapped = {"train_path": files["val_path"], "val_path": files["train_path"]}
    alone = search(write_config("regressor", data=swapped), tmp_path)
    assert not alone.verdict.startswith("validation")
    assert alone.scanned[-1] == "the validation events were not looked at: --data val"


def test_validation_event_more_extreme_than_any_of_training_is_tried_on_the_network(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path
) -> None:
    directory = poisoned({(0, 3, "npho", 77): 8e9})
    files = {"train_path": [str(directory / "train_001.root")], "val_path": [str(directory / "train_000.root")]}
    linear = {"npho_scheme": "linear", "npho_scale": 1.0}
    config = write_config("regressor", data=files, normalization=linear, training={"amp": "fp16"})
    result = search(config, tmp_path)
    assert result.verdict.startswith("validation: ")
    require_event(result, directory, 0, 3)


def test_the_event_at_fault_is_left_out_by_the_line_that_is_printed(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path
) -> None:
    directory = poisoned({(0, 3, "energyTruth", 0): 8e8})
    wild, sound = [str(directory / "train_000.root")], [str(directory / "train_001.root")]
    far = {"energy": {"enabled": True, "loss_fn": "mse", "scale": 1e-12, "shift": 0.0}}
    trained_on = search(write_config(data={"train_path": wild, "val_path": sound}, tasks=far), tmp_path)
    require_event(trained_on, directory, 0, 3)
    *words, setting = shlex.split(trained_on.next, comments=True)
    assert words[-3:] == ["--run-name", "r-without", "--set"]
    assert setting == f"data.exclude=[{wild[0]}:tree:3]"
    mended = {"train_path": wild, "val_path": sound, "exclude": f"{wild[0]}:tree:3"}
    assert not search(write_config(data=mended, tasks=far), tmp_path).found
    validated = search(write_config(data={"train_path": sound, "val_path": wild}, tasks=far), tmp_path)
    require_event(validated, directory, 0, 3)
    assert validated.next.startswith(f"xectool check-data {wild[0]}")
    named = f"   # then leave out what it names, as in --set 'data.exclude=[{wild[0]}:tree:3]'"
    again = engine.diagnose.nan_batch(batch=validated.minimal)  # which knows that no step is taken on its events
    assert (again.verdict, again.next) == (validated.verdict, f"xectool check-data {wild[0]}:tree --deep" + named)
    told = engine.diagnose.nan_batch(batch=validated.minimal, data="train")
    assert not told.verdict.startswith("validation: ")
    unnamed = tmp_path / "unnamed.npz"
    save_batch(unnamed, replace(load_batch(Path(str(validated.minimal))), files=()))
    assert engine.diagnose.nan_batch(batch=unnamed).next == "xectool explain XT-NAN-DATA" + CURED


def test_what_is_no_more_extreme_than_what_was_tried_is_not_tried_again(write_config: Write) -> None:
    subject = of_config(load_config(write_config()).config, None, "cpu")
    batches, bench = list(subject.batches()), subject.bench
    first = scan(at_their_step(batches), bench.config, bench.model, bench.task)
    assert first.extremes
    assert {"npho", "light", "time", "truth energy"} <= first.highest.keys()
    assert scan(at_their_step(batches), bench.config, bench.model, bench.task, first.highest).extremes == []
    lower = first.highest | {"light": first.highest["light"] * 0.999}
    (event,) = scan(at_their_step(batches), bench.config, bench.model, bench.task, lower).extremes
    lights = torch.cat([batch.npho for batch in batches])
    brightest = int(torch.where(lights < 9e9, lights, 0).sum(dim=1).argmax())
    assert int(event.event[0]) == np.concatenate([batch.event for batch in batches])[brightest]


def test_options_that_do_not_make_the_weights_fit_are_no_cure(write_config: Write, tmp_path: Path) -> None:
    """A key of the network differed, and the weights were of another shape still."""
    checkpoint = tmp_path / "of.pt"
    config = load_config(write_config()).config
    weights = build_model(config).state_dict() | {"more": torch.ones(2)}
    store.save(checkpoint, Checkpoint({"kind": config.kind, "config": config.to_dict()}, weights))
    with pytest.raises(CheckpointError) as refused:
        engine.diagnose.nan_batch(write_config(), ckpt=checkpoint, overrides=["model.encoder_dim=64"])
    assert refused.value.fix == "use the configuration saved beside the checkpoint (config.yaml)"


def test_an_ordinary_dead_channel_does_not_lead(
    write_config: Write, poisoned: Callable[..., Path], tmp_path: Path
) -> None:
    """Of files that mark dead channels with NaN the first of them was the verdict, whatever else was wrong."""
    every = [(file, entry) for file in range(NUM_FILES) for entry in range(EVENTS_PER_FILE)]
    dead: dict[tuple[int, int, str, int], float] = {(*place, "npho", 5): math.nan for place in every}
    alone = search(write_config(train=poisoned(dead)), tmp_path)
    assert alone.verdict.startswith(
        "nothing but 1 channel without a number in most events, as dead ones: npho sensor 5"
    )
    for branch, place, shown in (("npho", 40, "npho sensor 40 is nan"), ("energyTruth", 0, "energy is nan")):
        directory = poisoned({**dead, (NUM_FILES - 1, EVENTS_PER_FILE - 1, branch, place): math.nan})
        result = search(write_config(train=directory), tmp_path)
        require_event(result, directory, NUM_FILES - 1, EVENTS_PER_FILE - 1)
        assert result.verdict.startswith(shown)
        assert result.why[0].endswith("of 1 channel without a number in most events, as dead ones, too")

"""Dead sensors: filled in a copy of the files, compared in what a regressor makes of them, hidden to be scored."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import torch
import uproot
import yaml
from xectool import engine
from xectool.detector.neighbours import within_hops
from xectool.engine import comparison
from xectool.engine.loading import load_checkpoint, ready_model
from xectool.errors import DataFileError, DataUnusable, UsageError
from xectool.report.worst import SensorFiles
from xectool.report.written import Written

Run = Callable[..., Any]
ROOT_PYTHON = os.environ.get("XECTOOL_ROOT_PYTHON", "")
LISTED = [3, 17, 900, 4100, 4300, 4400, 4500, 4600, 4700, 4750]


@pytest.fixture(scope="module")
def regressor(files: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    own = f"checkpoint.save_dir={tmp_path_factory.mktemp('regressor')}"  # made once more where tests come back here
    options = ["checkpoint.save_artifacts=false", "training.epochs=2", "model.encoder_dim=128", own]
    return str(engine.train(files / "config.yaml", run_name="repair_reg", overrides=options).checkpoint_last)


@pytest.fixture(scope="module")
def inpainter(files: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An inpainter of both channels after one epoch."""
    directory = tmp_path_factory.mktemp("inpainter")
    model = {"encoder_dim": 32, "outer_fine_pool": [5, 3], "num_fusion_layers": 1, "freeze_encoder": False}
    config = {
        "kind": "inpainter",
        "data": {"train_path": f"{files}/train.root", "val_path": f"{files}/val.root", "batch_size": 8},
        "model": model | {"predict_channels": ["npho", "time"], "head_type": "cross_attention", "prior": "none"},
        "training": {"epochs": 1, "lr": 1e-3},
        "checkpoint": {"save_dir": str(directory), "save_artifacts": False, "save_predictions": False},
        "mlflow": {"enabled": False, "run_name": "inpainter"},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    return str(engine.train(directory / "config.yaml").checkpoint_last)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files with 1 % dead sensors, flags, a branch of variable length and one in double precision."""
    directory = tmp_path_factory.mktemp("dead")
    paths = []
    for number, events in enumerate((5, 9)):
        plain = directory / f"plain{number}.root"
        engine.simulate(str(plain), events=events, seed=10 + number, dead_fraction=0.01)
        columns = dict(uproot.open(plain)["tree"].arrays(library="np"))
        dead = np.zeros((events, 4760), bool)
        dead[:, LISTED[number::2]] = True  # another pattern in each file
        rows = columns | {
            "dead": dead,
            "hits": ak.unflatten(np.arange(events * 2, dtype="f4"), [2] * events),
            "precise": np.arange(events) / 3,
        }
        types = {n: np.dtype((c.dtype, c.shape[1:])) for n, c in rows.items() if isinstance(c, np.ndarray)}
        with uproot.recreate(directory / f"data{number}.root") as file:
            file.mktree("tree", types | {"hits": "var * float32"}).extend(rows)
        paths.append(directory / f"data{number}.root")
    return paths


def branches(*paths: Path) -> Any:
    return ak.concatenate([uproot.open(path)["tree"].arrays() for path in paths])


def answers(inpainter: str, found: Any, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the network itself says of the events, no light in place of less."""
    network = ready_model(load_checkpoint(inpainter, "auto"), inpainter, "auto", "cpu").network.eval()
    npho, time = (torch.from_numpy(ak.to_numpy(found[name]).copy()) for name in ("npho", "relative_time"))
    with torch.inference_mode():
        repaired = network.inpaint(npho, time, torch.from_numpy(mask))
    repaired["npho"] = repaired["npho"].clamp_min(0.0)
    return {name: value.numpy() for name, value in repaired.items()}


@pytest.mark.parametrize("dead", [None, "branch:dead", "file", "data"])
def test_dead_sensors_are_filled_and_flagged_and_nothing_else_changes(
    inpainter: str, data: list[Path], tmp_path: Path, dead: str | None
) -> None:
    before = branches(*data)
    unread = ~(np.abs(ak.to_numpy(before["npho"])) < 9e9)
    listed = np.zeros_like(unread)
    listed[:, LISTED] = True
    # Both files are simulated with dead sensors of their own; `data` finds those that are dead in all events.
    everywhere = np.broadcast_to(unread.all(axis=0), unread.shape).copy()
    mask = {None: unread, "branch:dead": ak.to_numpy(before["dead"]), "file": listed, "data": everywhere}[dead]
    if dead == "file":
        dead = str(tmp_path / "dead.txt")
        Path(dead).write_text("\n".join(map(str, LISTED)))
    result = engine.repair(inpainter, list(map(str, data)), output=tmp_path / "r.root", dead=dead, batch_size=4)
    after = branches(tmp_path / "r.root")
    expected = answers(inpainter, before, mask)
    assert np.array_equal(ak.to_numpy(after["repaired"]), mask.astype(np.uint8))
    for name, key in (("npho", "npho"), ("relative_time", "time")):
        old, new = ak.to_numpy(before[name]), ak.to_numpy(after[name])
        assert np.array_equal(old[~mask], new[~mask], equal_nan=True)
        np.testing.assert_allclose(new[mask], expected[key][mask], rtol=2e-4, atol=1e-11)
    for name in set(before.fields) - {"npho", "relative_time"}:
        assert ak.array_equal(before[name], after[name], equal_nan=True, check_parameters=False), name
    assert result.events == 14
    assert {found.code for found in result.findings} <= {"XT-REPAIR-NEGATIVE"}
    assert result.filled_per_event == pytest.approx(mask.sum() / 14)


def test_a_repaired_file_is_read_by_train_and_predict_and_keeps_its_flags_when_repaired_again(
    inpainter: str, regressor: str, data: list[Path], files: Path, tmp_path: Path
) -> None:
    paths = list(map(str, data))
    engine.repair(inpainter, paths, output=tmp_path / "r.root")
    sources = [f"data.train_path={tmp_path}/r.root", f"data.val_path={files}/val.root", "mlflow.run_name=on_repaired"]
    run = engine.train(files / "config.yaml", overrides=[*sources, "checkpoint.save_artifacts=false"], max_steps=1)
    assert run.steps == 1
    found = engine.predict(regressor, [str(tmp_path / "r.root")], output=tmp_path / "p.root")
    assert found.events == 14
    (tmp_path / "more.txt").write_text("7\n")
    engine.repair(inpainter, [str(tmp_path / "r.root")], output=tmp_path / "rr.root", dead=str(tmp_path / "more.txt"))
    first, second = (ak.to_numpy(branches(tmp_path / n)["repaired"]) for n in ("r.root", "rr.root"))
    assert (second[:, 7] == 1).all()
    assert np.array_equal(np.delete(first, 7, axis=1), np.delete(second, 7, axis=1))


def test_files_of_other_layouts_are_repaired_together(inpainter: str, data: list[Path], tmp_path: Path) -> None:
    """One file holds npho as numbers of any length and has been repaired before, the other neither."""
    rows = uproot.open(data[0])["tree"].arrays(["npho", "relative_time"])
    flags = np.zeros((5, 4760), "u1")
    flags[:, 11] = 1
    types = {"npho": "var * float32", "relative_time": ("f4", (4760,)), "repaired": ("u1", (4760,))}
    lengths = ak.unflatten(ak.to_numpy(rows["npho"]).ravel(), [4760] * 5)
    with uproot.recreate(tmp_path / "other.root") as file:
        columns = {"npho": lengths, "relative_time": ak.to_numpy(rows["relative_time"]), "repaired": flags}
        file.mktree("tree", types).extend(columns)
    paths = [str(data[1]), str(tmp_path / "other.root")]
    result = engine.repair(inpainter, paths, output=tmp_path / "r.root", max_events=14)
    alone = engine.repair(inpainter, [str(data[0])], output=tmp_path / "alone.root")
    together, apart = branches(tmp_path / "r.root")[9:], branches(tmp_path / "alone.root")
    for name in ("npho", "relative_time"):
        assert np.array_equal(ak.to_numpy(together[name]), ak.to_numpy(apart[name]), equal_nan=True)
    assert np.array_equal(ak.to_numpy(together["repaired"]), ak.to_numpy(apart["repaired"]) | flags)
    assert alone.events == 5
    named = {finding.problem.split("'")[1] for finding in result.findings if finding.code == "XT-REPAIR-BRANCH"}
    assert not named & {"npho", "repaired"}


def test_events_of_a_file_with_any_ending_are_found_for_their_display(
    inpainter: str, data: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.rec").symlink_to(data[0])
    read = []

    def look(predictions: Path, out_dir: Path, sources: SensorFiles) -> Written:
        read.append(sources.read(0, 1)[0])
        return Written()

    monkeypatch.setattr("xectool.report.sensor_plots.write_sensor_plots", look)
    where = {"output": tmp_path / "p.root", "report": tmp_path / "plots"}
    engine.predict(inpainter, [str(tmp_path / "events.rec")], engine="eager", **where)
    assert np.array_equal(read[0], ak.to_numpy(branches(data[0])["npho"])[1], equal_nan=True)


def test_what_the_file_holds_in_double_precision_stays_exact(inpainter: str, data: list[Path], tmp_path: Path) -> None:
    columns = dict(uproot.open(data[0])["tree"].arrays(["npho", "relative_time"], library="np"))
    precise = columns["npho"].astype("f8") + 1e-9
    types = {"npho": np.dtype(("f8", (4760,))), "relative_time": np.dtype(("f4", (4760,)))}
    with uproot.recreate(tmp_path / "double.root") as file:
        file.mktree("tree", types).extend({"npho": precise, "relative_time": columns["relative_time"]})
    engine.repair(inpainter, [str(tmp_path / "double.root")], output=tmp_path / "r.root")
    after = branches(tmp_path / "r.root")
    alive = ak.to_numpy(after["repaired"]) == 0
    assert ak.to_numpy(after["npho"]).dtype == np.float64
    assert np.array_equal(ak.to_numpy(after["npho"])[alive], precise[alive])


def test_a_branch_that_cannot_be_carried_is_named(
    inpainter: str, data: list[Path], files: Path, tmp_path: Path
) -> None:
    result = engine.repair(inpainter, [str(data[0]), str(files / "val.root")], output=tmp_path / "r.root")
    named = {finding.problem.split("'")[1] for finding in result.findings if finding.code == "XT-REPAIR-BRANCH"}
    assert named == {"dead", "hits", "nhits", "precise"}


def test_a_branch_repaired_of_another_meaning_is_refused(inpainter: str, data: list[Path], tmp_path: Path) -> None:
    rows = dict(uproot.open(data[0])["tree"].arrays(["npho", "relative_time"], library="np"))
    rows["repaired"] = np.zeros(5, "i4")
    with uproot.recreate(tmp_path / "own.root") as file:
        file.mktree("tree", {n: np.dtype((c.dtype, c.shape[1:])) for n, c in rows.items()}).extend(rows)
    with pytest.raises(DataFileError, match="without that branch"):
        engine.repair(inpainter, [str(tmp_path / "own.root")], output=tmp_path / "r.root")
    assert list(tmp_path.glob("r.root*")) == []


def test_a_killed_repair_leaves_no_file_of_that_name(inpainter: str, data: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.root"
    whole = data[1].read_bytes()
    position = whole.index(b"TBasket", len(whole) // 3)
    broken.write_bytes(whole[: position + 60] + b"\xff" * 400 + whole[position + 460 :])
    with pytest.raises(DataFileError, match="broken"):
        engine.repair(inpainter, [str(data[0]), str(broken)], output=tmp_path / "r.root")
    assert list(tmp_path.glob("r.root*")) == []


@pytest.mark.skipif(not ROOT_PYTHON, reason="XECTOOL_ROOT_PYTHON names no Python with ROOT")
def test_real_root_reads_a_repaired_file(inpainter: str, data: list[Path], tmp_path: Path) -> None:
    engine.repair(inpainter, list(map(str, data)), output=tmp_path / "r.root")
    code = (
        "import sys, json, ROOT\n"
        "f = ROOT.RDataFrame('tree', sys.argv[1]).Define('n', 'Sum(npho)').Define('r', 'Sum(repaired)')\n"
        "f = f.Define('h', 'Sum(hits)')\n"
        "print('RESULT', json.dumps([f.Count().GetValue(), *(f.Sum(k).GetValue() for k in 'nrh')]))"
    )
    call = [ROOT_PYTHON, "-W", "ignore", "-c", code, str(tmp_path / "r.root")]
    printed = subprocess.run(call, check=True, capture_output=True, text=True, timeout=300).stdout
    found = branches(tmp_path / "r.root")
    sums = [ak.sum(ak.values_astype(found[name], "f8")) for name in ("npho", "repaired", "hits")]
    np.testing.assert_allclose(json.loads(printed.split("RESULT", 1)[1]), [14, *sums], rtol=1e-5)


def test_the_comparison_agrees_with_predicting_each_variant(
    inpainter: str, regressor: str, data: list[Path], tmp_path: Path
) -> None:
    paths = list(map(str, data))
    result = engine.compare(regressor, paths, inpainter=inpainter, batch_size=4)
    engine.repair(inpainter, paths, output=tmp_path / "r.root")
    raw = engine.predict(regressor, paths, output=tmp_path / "raw.root").metrics
    inpainted = engine.predict(regressor, [str(tmp_path / "r.root")], output=tmp_path / "inp.root").metrics
    rows = {row.metric: row for row in result.rows}
    for metric in ("energy_res_68pct", "uvw_dist_68pct", "energy_bias"):
        assert rows[metric].values["raw"] == pytest.approx(raw[metric], rel=1e-4)
        assert rows[metric].values["inpainted"] == pytest.approx(inpainted[metric], rel=1e-3)
        difference = rows[metric].values["inpainted"] - rows[metric].values["raw"]
        assert rows[metric].differences["inpainted"] == pytest.approx(difference)
        assert rows[metric].errors["inpainted"] >= 0
    unread = ~(np.abs(ak.to_numpy(branches(*data)["npho"])) < 9e9)
    assert result.dead_per_event == pytest.approx(unread.sum() / 14)


@pytest.mark.parametrize(("photons", "warned"), [(-60.0, 1), (-20.0, 0), (3.0, 0)])
def test_a_comparison_tells_of_an_inpainter_that_fills_negative_light(
    inpainter: str, regressor: str, data: list[Path], monkeypatch: pytest.MonkeyPatch, photons: float, warned: int
) -> None:
    """It was "no difference beyond 3 errors": each sensor read 0, as if it had no light."""

    def fill(npho: torch.Tensor, time: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"npho": npho.masked_fill(mask, photons), "time": time}

    monkeypatch.setattr(comparison, "filler", lambda _: fill)
    found = engine.compare(regressor, [*map(str, data)], variants=["raw", "inpainted"], inpainter=inpainter)
    told = [item for item in found.findings if item.code == "XT-REPAIR-NEGATIVE"]
    assert len(told) == warned
    number = round(found.dead_per_event * found.events)
    for item in told:
        words = f"{number} of {number} filled readings were negative, {number} of them below -50 photons"
        assert item.problem.startswith(words)
        assert item.fix.startswith(f"xectool predict {inpainter} {data[0]}")


def test_listed_sensors_are_dead_in_every_variant_though_the_file_has_their_readings(
    regressor: str, files: Path, tmp_path: Path
) -> None:
    (tmp_path / "dead.txt").write_text("\n".join(map(str, range(1500, 2500))))
    rows = dict(uproot.open(files / "val.root")["tree"].arrays(library="np"))
    rows["npho"] = rows["npho"].copy()
    rows["npho"][:, 1500:2500] = 1e10
    with uproot.recreate(tmp_path / "killed.root") as file:
        file.mktree("tree", {n: np.dtype((c.dtype, c.shape[1:])) for n, c in rows.items()}).extend(rows)
    listed = engine.compare(
        regressor, [str(files / "val.root")], variants=["raw", "neighbour"], dead=str(tmp_path / "dead.txt")
    )
    killed = engine.compare(
        regressor, [str(tmp_path / "killed.root")], variants=["raw", "neighbour"], dead=str(tmp_path / "dead.txt")
    )
    untouched = engine.predict(regressor, [str(files / "val.root")], output=tmp_path / "p.root").metrics
    by_metric = {row.metric: row.values for row in listed.rows}
    assert by_metric == {row.metric: row.values for row in killed.rows}
    assert by_metric["energy_res_68pct"]["raw"] != pytest.approx(untouched["energy_res_68pct"], rel=1e-6)
    assert listed.dead_per_event == 1000


def test_files_without_truth_cannot_be_compared(regressor: str, files: Path, tmp_path: Path) -> None:
    rows = dict(uproot.open(files / "val.root")["tree"].arrays(["npho", "relative_time"], library="np"))
    with uproot.recreate(tmp_path / "real.root") as file:
        file.mktree("tree", {n: np.dtype((c.dtype, c.shape[1:])) for n, c in rows.items()}).extend(rows)
    whole = dict(uproot.open(files / "val.root")["tree"].arrays(library="np"))
    unknown = {name: np.full_like(column, 1e10) if name.endswith("Truth") else column for name, column in whole.items()}
    with uproot.recreate(tmp_path / "unknown.root") as file:
        file.mktree("tree", {n: np.dtype((c.dtype, c.shape[1:])) for n, c in unknown.items()}).extend(unknown)
    for name in ("real.root", "unknown.root"):
        with pytest.raises(DataUnusable, match="--repair"):
            engine.compare(regressor, [str(tmp_path / name)], variants=["raw", "neighbour"])


def test_a_pattern_of_dead_channels_is_hidden_and_scored(inpainter: str, files: Path, tmp_path: Path) -> None:
    (tmp_path / "dead.txt").write_text("\n".join(map(str, LISTED)))
    paths = [str(files / "val.root")]
    result = engine.predict(inpainter, paths, output=tmp_path / "p.root", dead=str(tmp_path / "dead.txt"))
    rows = uproot.open(tmp_path / "p.root")["tree"].arrays(library="np")
    npho = ak.to_numpy(branches(files / "val.root")["npho"])[:, LISTED]
    alive = np.abs(npho) < 9e9
    assert np.array_equal(rows["sensor"].reshape(8, -1), np.tile(LISTED, (8, 1)))
    assert np.array_equal(rows["mask_type"].reshape(8, -1) == 0, alive)
    error = rows["pred_npho"].reshape(8, -1) - npho
    assert result.metrics["mae_photons"] == pytest.approx(np.abs(error[alive]).mean(), rel=1e-4)
    assert {"baseline_neighbour_mae_photons", "baseline_solid_angle_mae_photons"} <= result.metrics.keys()
    assert "XT-REPAIR-NOTHING" not in [found.code for found in result.findings]
    wide = engine.predict(inpainter, paths, output=tmp_path / "p.root", dead=str(tmp_path / "dead.txt"), hops=2)
    for hops, metrics in ((1, result.metrics), (2, wide.metrics)):
        expected = mean_error_within(hops, ak.to_numpy(branches(files / "val.root")["npho"]))
        assert metrics["baseline_neighbour_mae_photons"] == pytest.approx(expected, rel=1e-5)
    assert wide.metrics["mae_photons"] == pytest.approx(result.metrics["mae_photons"])


def test_channels_that_are_really_dead_are_predicted_without_a_comparison(
    inpainter: str, files: Path, tmp_path: Path
) -> None:
    """The usual case of real data was a warning whose fix was the command just typed, and a table of nan."""
    unread = int((np.abs(ak.to_numpy(branches(files / "val.root")["npho"])) > 9e9).all(axis=0).sum())
    dead = engine.predict(inpainter, [str(files / "val.root")], output=tmp_path / "p.root", dead="data")
    assert unread
    assert dead.sensors == 8 * unread
    assert f"{8 * unread} dead sensors of 8 events predicted ({unread}.0 an event)" in dead.title()
    assert not dead.metrics
    assert "XT-REPAIR-NOTHING" not in [found.code for found in dead.findings]
    (tmp_path / "dead.txt").write_text("# none\n")
    idle = engine.predict(
        inpainter, [str(files / "val.root")], output=tmp_path / "p.root", dead=str(tmp_path / "dead.txt")
    )
    assert not idle.metrics
    (found,) = [found for found in idle.findings if found.code == "XT-REPAIR-NOTHING"]
    assert found.problem == "no event has a dead sensor: nothing is predicted"


def mean_error_within(hops: int, npho: np.ndarray) -> float:
    """Return the mean error of the mean of the neighbours of the listed sensors, one after the other."""
    errors = []
    for photons in npho.astype(float):
        lives = np.abs(photons) < 9e9
        lives[LISTED] = False
        for sensor in LISTED:
            around = within_hops(hops).of(sensor)
            around = around[lives[around]]
            if abs(photons[sensor]) < 9e9:
                errors.append(abs(max(photons[around].mean(), 0.0) - photons[sensor]))
    return float(np.mean(errors))


def nonsense(options: str, fix: str) -> Any:
    return pytest.param(options.split(), fix, id=options)


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        nonsense("REG --repair r.root", "a checkpoint of one of kind inpainter"),
        nonsense("INP --compare raw,neighbour", "--inpainter"),
        nonsense("REG --compare raw,inpainted", "--compare raw,neighbour"),
        nonsense("REG --compare raw,neighbour --inpainter INP", "--compare raw,neighbour,inpainted"),
        nonsense("REG --compare raw,inpainted --inpainter REG", "a checkpoint of one of kind inpainter"),
        nonsense("REG --compare raw,neihbour", "--compare raw,neighbour"),
        nonsense("REG --compare raw,neihgbour,raw,inpaintd", "--compare raw,neighbour   # or with a checkpoint"),
        nonsense("REG --compare raw,neihgbour,inpaintd --inpainter INP", "--compare raw,neighbour,inpainted"),
        nonsense("REG --compare raw,other", "--compare raw,neighbour"),
        nonsense("REG --compare raw,other --inpainter INP", "--compare raw,inpainted"),
        nonsense("REG --compare raw --inpainter INP --hops 2", "--compare raw,neighbour,inpainted"),
        nonsense("REG --compare raw,neighbor", "did you mean 'neighbour'"),
        nonsense("REG --compare raw", "--compare raw,neighbour"),
        nonsense("REG --compare raw,raw", "--compare raw,neighbour"),
        nonsense("REG --inpainter INP", "--compare raw,neighbour,inpainted"),
        nonsense("REG --dead dead.txt", "--compare raw,neighbour --dead dead.txt"),
        nonsense("INP --run 5", "--dead mysql://"),
        nonsense("INP --repair r.root --run 5 --dead dead.txt", "leave out --run"),
        nonsense("INP --repair r.root --output p.root", "leave out --output"),
        nonsense("REG --compare raw,neighbour --report plots", "leave out --report"),
        nonsense("INP --repair r.root --compare raw,neighbour", "REGRESSOR DATA --compare"),
        nonsense("INP --repair VAL", "--repair "),
        nonsense("INP --repair r.root --hops 2", "leave out --hops"),
        nonsense("REG --compare raw,inpainted --inpainter INP --hops 2", "--compare raw,inpainted,neighbour"),
        nonsense("REG --compare raw,inpainted --hops 2", "--compare raw,neighbour   # or with a checkpoint"),
        nonsense("REG --hops 2", "--compare raw,neighbour --hops 2"),
        nonsense("INP --hops 5", "--hops 1"),
    ],
)
def test_combinations_without_sense_are_refused_with_what_to_write(
    xectool: Run, inpainter: str, regressor: str, files: Path, options: list[str], fix: str, tmp_path: Path
) -> None:
    val = tmp_path / "val.root"
    val.write_bytes((files / "val.root").read_bytes())
    named = {"REG": regressor, "INP": inpainter, "VAL": str(val)}
    model, *rest = [named.get(word, word) for word in options]
    outcome = xectool("predict", model, val, *rest, "--json")
    assert outcome.code == 2
    finding = outcome.document["findings"][0]
    assert fix in f"{finding['problem']} {finding['fix']}"
    assert val.read_bytes() == (files / "val.root").read_bytes()


def test_a_missing_inpainter_is_answered_with_an_inpainter(
    xectool: Run, regressor: str, inpainter: str, data: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of the runs here was proposed, a regressor, and refused; for a mistyped list nothing was."""
    for number, (kind, source) in enumerate((("inpainter", inpainter), ("regressor", regressor))):
        place = tmp_path / "artifacts" / kind
        place.mkdir(parents=True)
        for name in ("config.yaml", "checkpoint_last.pt"):
            shutil.copy(Path(source).with_name(name), place / name)
        os.utime(place / "checkpoint_last.pt", (number, number))
    monkeypatch.chdir(tmp_path)
    Path("dead.txt").write_text("4 5 6")
    line = ["predict", regressor, data[0], "--compare", "raw,inpainted", "--inpainter", "gone.pt", "--dead", "ded.txt"]
    for named in ("artifacts/inpainter/checkpoint_", "dead.txt"):
        outcome = xectool(*line, "--json")
        (found,) = outcome.document["findings"]
        line = shlex.split(found["fix"], comments=True)[1:-1]
        assert (outcome.code, any(word.startswith(named) for word in line)) == (2, True), found
        assert "regressor" not in found["fix"].partition("#")[2]
    assert xectool(*line, "--json").code == 0
    for model in ("gone.pt", "artifacts"):
        found = xectool("predict", model, data[0], "--repair", "r.root", "--json").document["findings"][0]
        assert "regressor" not in found["fix"]
    assert found["fix"].startswith("xectool runs")
    found = xectool(*line[:-3], "artifacts/regressor", "--json").document["findings"][0]
    assert found["fix"].startswith("xectool runs")


def test_json_and_text_of_both_commands(
    xectool: Run, inpainter: str, regressor: str, files: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "r.root"
    outcome = xectool("predict", inpainter, files / "val.root", "--repair", output, "--json")
    assert (outcome.code, outcome.document["status"]) == (0, "ok")
    assert {"events", "output", "dead", "filled_per_event"} <= outcome.document["result"].keys()
    argv = ("predict", regressor, output, "--compare", "raw,neighbour", "--max-events", "4")
    document = xectool(*argv, "--json").document
    assert document["result"]["events"] == 4
    row = document["result"]["rows"][0]
    assert {"task", "metric", "events", "values", "value_errors", "differences", "errors"} == row.keys()
    assert row["events"] == 4
    text = xectool(*argv).err
    assert "uvw_dist_68pct" in text
    assert "minus raw" in text
    assert "±" in text


def test_unknown_weights_are_refused_in_every_mode(inpainter: str, files: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown weights 'newest'"):
        engine.repair(inpainter, [str(files / "val.root")], output=tmp_path / "r.root", weights="newest")


def test_a_file_in_another_unit_is_warned_of(inpainter: str, regressor: str, data: list[Path], tmp_path: Path) -> None:
    columns = uproot.open(data[1])["tree"].arrays(["npho", "relative_time", "energyTruth"], library="np")
    lit, times = columns["npho"] < 9e9, columns["relative_time"]
    few = lit & (np.cumsum(lit, axis=1) % 100 == 0)
    variants = {
        "ns": columns | {"relative_time": np.where(times < 9e9, times * 1e9, times).astype("f4")},
        "scaled": columns | {"npho": np.where(lit, columns["npho"] * 1e-3, 1e10).astype("f4")},
        "dim": columns | {"npho": np.where(few, columns["npho"], 0).astype("f4")},
        "tenfold": columns | {"npho": np.where(lit, columns["npho"] * 10, 1e10).astype("f4")},
        "sparse": columns | {"npho": np.where(few, columns["npho"], 1e10).astype("f4")},
    }
    for name, rows in variants.items():
        with uproot.recreate(tmp_path / f"{name}.root") as file:
            file["tree"] = rows
    out = tmp_path / "out.root"
    commands = (
        lambda paths: engine.predict(regressor, paths, output=out),
        lambda paths: engine.compare(regressor, paths, variants=("raw", "neighbour")),
        lambda paths: engine.repair(inpainter, paths, output=tmp_path / "repaired.root"),
    )
    for command, name in zip((*commands, commands[0]), ("ns", "scaled", "ns", "tenfold"), strict=True):
        odd = tmp_path / f"{name}.root"
        (found,) = [note for note in command([str(data[0]), str(odd)]).findings if note.code == "XT-INPUT-SCALE"]
        branch = "relative_time" if name == "ns" else "npho"
        assert (found.where, "1 of 2 files" in found.problem) == (f"{odd}:tree branch {branch}", True)
        assert found.fix.startswith(f"xectool {'convert' if name == 'ns' else 'check-data'} {odd} "), found.fix
    for name in ("dim", "sparse"):  # few sensors with light are no matter of units
        sound = commands[0]([str(data[0]), str(tmp_path / f"{name}.root")])
        assert not any(note.code == "XT-INPUT-SCALE" for note in sound.findings)

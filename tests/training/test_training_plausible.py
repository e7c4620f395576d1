"""Events that no detector can give are named and left out though their loss does not stand out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uproot
from xectool import engine
from xectool.config.load import load_config
from xectool.config.normalization import NormalizationConfig
from xectool.data.batch import EventBatch
from xectool.data.extremes import PHOTONS, measure
from xectool.data.source import open_source
from xectool.data.window import WindowArrays
from xectool.detector import faces
from xectool.detector.constants import DEAD_VALUE, UNKNOWN_ABOVE
from xectool.diagnosis.evidence.evidence import gather
from xectool.diagnosis.ranking import diagnose
from xectool.engine import reporting
from xectool.engine.diagnose import run_health
from xectool.errors import DataUnusable
from xectool.findings import Finding, in_lines
from xectool.models.normalize import Normalizer
from xectool.rootio.writer import TreeWriter
from xectool.runlog.reader import RunReader
from xectool.training.events.targets import resolve_target_scaling, stretched_scales
from xectool.training.guards.inputs import opinion_of
from xectool.training.healing.file_light import LightByFile
from xectool.training.healing.implausible import NO_READING, implausible, usual_extremes
from xectool.training.healing.reach import out_of_reach
from xectool.training.process.device import plan_execution
from xectool.training.process.progress import NullObserver
from xectool.training.ranks.base import Ranks
from xectool.training.record.readings import ReadingWatch
from xectool.training.stepping.build import build_parts, open_data
from xectool.training.symptoms.light_energy import LightEnergies

Config = Callable[..., Path]
BRIGHT, DEAD, SENTINEL, LATE = 3, 8, 11, 15
ENERGY = {"energy": {"enabled": True, "scale": "auto", "shift": "auto"}, "uvwFI": {"enabled": False}}


def columns_of(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a file, to be changed."""
    with uproot.open(path) as file:
        return {name: values.copy() for name, values in file["tree"].arrays(library="np").items()}


def write(path: Path, columns: dict[str, np.ndarray]) -> None:
    with TreeWriter(path, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)


def tripled(data: Path) -> dict[str, np.ndarray]:
    """Return the columns of train_000.root, each event three times."""
    return {name: np.repeat(rows, 3, axis=0) for name, rows in columns_of(data / "train_000.root").items()}


def against_the_light(data: Path) -> dict[str, np.ndarray]:
    """Return the columns of `tripled`, the larger the light the smaller the energy."""
    columns = tripled(data)
    ranks = np.argsort(np.argsort(np.where(columns["npho"] < 9e9, columns["npho"], 0).sum(axis=1)))
    columns["energyTruth"] = np.sort(columns["energyTruth"])[::-1][ranks].copy()
    return columns


@pytest.fixture
def broken(tiny_data: Path, tmp_path: Path) -> Path:
    """train_000.root with four events that cannot be."""
    target = tmp_path / "broken.root"
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    npho, times = columns["npho"].copy(), columns["relative_time"].copy()
    npho[BRIGHT] *= 1000
    npho[DEAD] = np.nan
    npho[SENTINEL] = 1e10
    times[LATE] = np.where(np.abs(times[LATE]) < 9e9, 1.0, times[LATE])
    columns |= {"npho": npho, "relative_time": times}
    with TreeWriter(target, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
    return target


def test_truth_that_is_no_number_is_told_before_the_first_step(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, paste: Any
) -> None:
    target = tmp_path / "unknown.root"
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["energyTruth"] = columns["energyTruth"].copy()
    columns["energyTruth"][[3, 5, 8]] = np.nan, np.inf, 1e10
    with TreeWriter(target, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
    heard: list[str] = []
    observer = NullObserver()
    observer.message = heard.append  # type: ignore[method-assign]
    config = tiny_config(data={"train_path": str(target)}, tasks=ENERGY)
    result = engine.train(config, max_steps=1, observer=observer)
    (found,) = [item for item in result.findings if item.code == "DAT-16"]
    assert "task energy is NaN, infinite or beyond 1e10 in 2 of 20 events" in found.problem
    assert found.where == f"{target}:tree branch energyTruth entry 3"
    beside = f" --against {tiny_data / 'val.root'}:tree"  # the run's own validation stays what it is
    assert engine.check_data(str(target)).next == found.fix.replace(beside, "", 1), "as check-data says it"
    assert beside in found.fix
    paste(found.fix, tmp_path)
    mended = tmp_path / "unknown_converted.root"
    found_then = engine.check_data(str(mended)).findings
    assert "DAT-16" not in {item.code for item in found_then if item.severity.value != "info"}
    with uproot.open(mended) as file:
        for name, values in file["tree"].arrays(library="np").items():
            kept = np.where(np.isfinite(columns[name]), columns[name], np.float32(1e10))
            assert np.array_equal(values, kept if name == "energyTruth" else columns[name], equal_nan=True)
    assert any(found.problem in line for line in heard)


@pytest.mark.parametrize(
    ("branch", "task", "factor", "unit", "right"),
    [
        ("energyTruth", "energy", 1e3, "MeV", "GeV"),
        ("timeTruth", "timing", 1e9, "ns", "s"),
        ("uvwTruth", "uvwFI", 10.0, "mm", "cm"),
        ("emiAng", "angle", np.pi / 180, "radians", "deg"),
    ],
)
def test_a_truth_in_another_unit_is_told_before_the_first_step_with_the_line_that_mends_it(
    tiny_config: Config,
    tiny_data: Path,
    tmp_path: Path,
    branch: str,
    task: str,
    factor: float,
    unit: str,
    right: str,
    paste: Any,
) -> None:
    """It was told at the end alone, by the diagnosis."""
    target, columns = tmp_path / "unit.root", columns_of(tiny_data / "train_000.root")
    columns[branch] = (factor * columns[branch]).astype("f4")
    columns[branch][5] = 1e10  # not known, in any unit
    write(target, columns)
    heard: list[str] = []
    observer = NullObserver()
    observer.message = heard.append  # type: ignore[method-assign]
    tasks = {"energy": {"enabled": False}, task: {"enabled": True, "scale": "auto"}}
    config = tiny_config(data={"train_path": str(target)}, tasks=tasks)
    result = engine.train(config, max_steps=0, observer=observer)
    (found,) = [item for item in result.findings if item.code == "DAT-16"]
    assert f"task {task} looks like {unit}, not {right}: typical size" in found.problem
    assert found.where == f"{target}:tree branch {branch}"
    beside = f" --against {tiny_data / 'val.root'}:tree"  # the run's own validation stays what it is
    assert engine.check_data(str(target)).next == found.fix.replace(beside, "", 1), "as check-data says it"
    assert beside in found.fix
    first = next(index for index, line in enumerate(heard) if found.problem in line)
    told = in_lines(found)
    assert heard[first : first + len(told)] == told, "as any command says it"
    paste(found.fix, tmp_path)
    mended = columns_of(tmp_path / "unit_converted.root")
    assert mended[branch][5].max() == np.float32(1e10)
    known = np.arange(len(mended[branch])) != 5
    assert np.allclose(mended[branch][known], columns_of(tiny_data / "train_000.root")[branch][known], rtol=1e-6)
    config = tiny_config(data={"train_path": str(tmp_path / "unit_converted.root")}, tasks=tasks)
    assert "DAT-16" not in {item.code for item in engine.train(config, max_steps=0, run_name="mended").findings}


def test_one_truth_that_no_event_can_have_is_told_before_the_first_step(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    target, columns = tmp_path / "one.root", columns_of(tiny_data / "train_000.root")
    columns["energyTruth"][7] = 52.8
    write(target, columns)
    result = engine.train(tiny_config(data={"train_path": str(target)}, tasks=ENERGY), max_steps=0)
    (found,) = [item for item in result.findings if item.code == "DAT-16"]
    assert "task energy is 52.8 GeV: outside of what is possible; 1 such in all" in found.problem
    assert found.where == f"{target}:tree branch energyTruth entry 7"


def test_one_truth_that_stretches_its_scale_is_told_before_the_first_step(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    """137 widths away, less than damage of the data is: nothing told of it, and its task did not learn."""
    target = tmp_path / "far.root"
    columns = columns_of(tiny_data / "train_000.root")
    truth = columns["timeTruth"]
    middle = np.median(truth)
    width = 1.4826 * np.median(np.abs(truth - middle))
    told: dict[float, list[Finding]] = {}
    for far in (0.0, 15.0, 137.0):  # without any the time itself stays: these are the controls
        truth[7] = middle + far * width
        write(target, columns)
        tasks = {"timing": {"enabled": True, "scale": "auto"}}
        config = load_config(tiny_config(data={"train_path": str(target)}, tasks=tasks)).config
        source = open_source(config.data, "train", tasks=tuple(config.tasks.enabled()), require_truth=True)
        told[far] = list(stretched_scales(config, source))
    assert (told[0.0], told[15.0]) == ([], [])
    (found,) = told[137.0]
    assert (found.code, found.severity.value) == ("DAT-16", "warning")
    assert found.where == f"{target}:tree branch timeTruth entry 7"
    narrow = float(np.delete(truth, 7).std())
    setting, _, other = found.fix.partition(", or ")
    assert other == f"--set tasks.timing.scale={narrow:.3g}"
    assert "data.exclude=[" in setting
    tasks = {"timing": {"enabled": True, "scale": 1e-9}}
    fixed = load_config(tiny_config(data={"train_path": str(target)}, tasks=tasks)).config
    assert not list(stretched_scales(fixed, source))


@pytest.mark.parametrize(("action", "wide"), [("rewind", False), ("record", True)])
def test_event_that_healing_leaves_out_does_not_leave_its_unit_behind(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, action: str, wide: bool
) -> None:
    """An energy 80 widths away was put in quarantine, and the head went on in a unit six times as wide."""
    target = tmp_path / "far.root"
    columns = columns_of(tiny_data / "train_000.root")
    truth = columns["energyTruth"]
    truth[7] = np.median(truth) + 80 * 1.4826 * np.median(np.abs(truth - np.median(truth)))
    write(target, columns)
    tasks = {"energy": {"enabled": True, "scale": "auto", "shift": "auto"}}
    config = load_config(tiny_config(data={"train_path": str(target)}, tasks=tasks, guards={"on_spike": action})).config
    source = open_source(config.data, "train", tasks=tuple(config.tasks.enabled()), require_truth=True)
    task = resolve_target_scaling(config, source).tasks.energy
    others = np.delete(truth.astype(np.float64).ravel(), 7)
    assert (task.scale > 4 * others.std()) == wide
    assert (task.scale == pytest.approx(others.std())) == (task.shift == pytest.approx((others.mean(),))) == (not wide)
    (told,) = [item for item in stretched_scales(config, source) if "energy" in item.fix]
    assert told.problem.endswith("as guards.on_spike is rewind") == (not wide)


@pytest.mark.parametrize(("count", "told"), [(2, True), (3, True), (4, False)])
def test_a_few_truths_that_stretch_a_scale_together_are_told_and_a_population_is_not(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, count: int, told: bool
) -> None:
    """Each left out alone leaves a scale as wide, and of several nothing was told; four are a fifth of all events."""
    target = tmp_path / "far.root"
    columns = columns_of(tiny_data / "train_000.root")
    truth = columns["timeTruth"]
    middle = np.median(truth)
    truth[:count] = middle + 60 * 1.4826 * np.median(np.abs(truth - middle)) * (-1.0) ** np.arange(count)
    write(target, columns)
    config = load_config(
        tiny_config(data={"train_path": str(target)}, tasks={"timing": {"enabled": True, "scale": "auto"}})
    ).config
    source = open_source(config.data, "train", tasks=tuple(config.tasks.enabled()), require_truth=True)
    found = [item for item in stretched_scales(config, source) if "timing" in item.fix]
    assert [item.code for item in found] == ["DAT-16"] * told
    for item in found:
        assert f"in {count} of {len(truth)} events, farthest at [" in item.problem
        assert item.where.startswith(f"{target}:tree branch timeTruth entry ")
        assert item.fix.startswith("leave these events out (data.exclude), or --set tasks.timing.scale=")


def test_sensors_that_changed_places_are_told_once_a_file(tiny_config: Config, tiny_data: Path, tmp_path: Path) -> None:
    swapped, (one, other) = tmp_path / "swapped.root", (faces.sensors("us"), faces.sensors("ds"))
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    whole = columns["npho"]
    columns["npho"] = npho = whole.copy()
    npho[:, one], npho[:, other] = whole[:, other], whole[:, one]
    with TreeWriter(swapped, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
    shifted = tmp_path / "shifted.root"
    columns["npho"] = np.roll(whole, 1, axis=1)
    with TreeWriter(shifted, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
    files = [str(swapped), str(tiny_data / "train_001.root")]
    data = {"train_path": files, "val_path": str(shifted), "allow_overlap": True}
    result = engine.train(tiny_config(data=data, tasks=ENERGY))
    told = events(result.run_dir, "sensor_order")
    assert [event.data["sample"] for event in told] == ["train", "val"]
    assert [event.data["files"] for event in told] == [[f"{swapped}:tree"], [f"{shifted}:tree"]]


def test_one_event_written_for_all_is_told_and_no_gain_or_order_is(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    copied, columns = tmp_path / "copied.root", columns_of(tiny_data / "train_000.root")
    light, energies = columns["npho"][4].copy(), columns["energyTruth"].reshape(-1, 1)
    columns["npho"] = np.where(light > UNKNOWN_ABOVE, light, light * energies / energies[4]).astype(np.float32)
    columns["relative_time"][:] = columns["relative_time"][4]
    write(copied, columns)
    files = [str(copied), str(tiny_data / "train_001.root")]
    result = engine.train(tiny_config(data={"train_path": files, "allow_overlap": True}))
    (told,) = events(result.run_dir, "copied_light")
    assert (told.data["files"], told.data["sample"]) == ([f"{copied}:tree"], "train")
    causes = diagnose(gather(Path(result.run_dir))).causes
    assert causes[0].code == "XT-DUPLICATE-EVENTS"
    assert str(copied) in causes[0].fix
    assert not {"XT-INPUT-SCALE", "XT-SENSOR-ORDER"} & {cause.code for cause in causes}


def test_an_energy_of_other_events_is_told_once_and_of_its_file(tiny_config: Config) -> None:
    batch = batch_of(tiny_config())
    rng, light = np.random.default_rng(3), LightEnergies()
    energies, files = rng.uniform(0.015, 0.060, 900), np.arange(900) % 3
    elsewhere = np.where(files == 1, rng.permutation(energies), energies)
    told: list[tuple[str, int]] = []
    for start in range(0, 900, 30):
        rows = slice(start, start + 30)
        extremes = np.zeros((30, 6))
        extremes[:, PHOTONS] = 1e6 * energies[rows]
        targets = {"energy": torch.from_numpy(elsewhere[rows, np.newaxis])}
        told += light.look([replace(batch, targets=targets, extremes=extremes, file_index=files[rows])])
    assert [index for _, index in told] == [1]
    assert "correlation of ranks" in told[0][0]
    assert light.rest() == ""
    few = LightEnergies()
    assert list(few.look([replace(batch, targets=targets, extremes=extremes, file_index=files[rows])])) == []
    assert few.rest() == "", "too few to tell"


def test_a_run_on_energies_of_other_events_says_so(tiny_config: Config, tiny_data: Path, tmp_path: Path) -> None:
    """There are fewer than 192 in the file, so that it is judged when the first epoch is over."""
    target = tmp_path / "reversed.root"
    write(target, against_the_light(tiny_data))
    result = engine.train(tiny_config(data={"train_path": str(target)}, tasks=ENERGY))
    (told,) = events(result.run_dir, "truth_elsewhere")
    assert told.data["task"] == "energy"


def test_a_run_on_directions_of_other_events_says_so(tiny_config: Config, tiny_data: Path, tmp_path: Path) -> None:
    """No position is learnt: within the few steps of this run nothing else would tell."""
    columns = tripled(tiny_data)
    for changed in (False, True):
        target = tmp_path / f"{changed}.root"
        if changed:
            columns["emiAng"] = np.roll(columns["emiAng"], 7, axis=0)
        write(target, columns)
        tasks = {"angle": {"enabled": True}, "uvwFI": {"enabled": False}}
        result = engine.train(
            tiny_config(data={"train_path": str(target)}, tasks=tasks), overrides=[f"mlflow.run_name=r{changed}"]
        )
        assert [event.data["task"] for event in events(result.run_dir, "truth_elsewhere")] == ["angle"] * changed


@pytest.mark.parametrize(("gain", "named"), [(3.0, True), (0.35, True), (1.3, False)])
def test_validation_files_of_another_gain_are_told_once(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, gain: float, named: bool
) -> None:
    columns = columns_of(tiny_data / "train_000.root")
    columns["npho"] = np.where(columns["npho"] < 9e9, columns["npho"] * np.float32(gain), columns["npho"])
    columns["run"] += 7
    write(tmp_path / "later.root", columns)
    result = engine.train(tiny_config(data={"val_path": str(tmp_path / "later.root")}, training={"epochs": 2}))
    told = events(result.run_dir, "files_differ")
    assert [f"{tmp_path / 'later.root'}:tree" in event.data["files"] for event in told] == [True] * named
    causes = engine.diagnose.run(result.run_dir).causes
    assert [cause.code for cause in causes] == ["XT-INPUT-SCALE"] * named
    start = f"xectool check-data {tmp_path / 'later.root'}:tree --against {tiny_data}"
    assert [cause.fix.startswith(start) for cause in causes] == [True] * named


def test_a_true_time_of_another_zero_in_validation_leads_to_its_file(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    """The files of training were the ones to look at."""
    paths = {}
    for index, name in enumerate(("a", "b", "late")):
        columns = tripled(tiny_data)
        columns["run"] += index
        columns["timeTruth"] = columns["timeTruth"] + np.float32(60e-9 * (name == "late"))
        paths[name] = tmp_path / f"{name}.root"
        write(paths[name], columns)
    data = {"train_path": [str(paths["a"]), str(paths["b"])], "val_path": str(paths["late"])}
    tasks = {"timing": {"enabled": True, "scale": "auto", "shift": "auto"}, "uvwFI": {"enabled": False}}
    result = engine.train(tiny_config(data=data, tasks=tasks))
    (told,) = events(result.run_dir, "truth_elsewhere")
    assert (told.data["sample"], told.data["files"][0]) == ("val", f"{paths['late']}:tree")
    assert "later" in told.message
    (cause,) = [cause for cause in engine.diagnose.run(result.run_dir).causes if cause.code == "XT-TRUTH-ELSEWHERE"]
    assert cause.fix.startswith(f"xectool check-data {paths['late']}:tree --against {tmp_path}")


@pytest.mark.parametrize("number", [60, 24])
def test_a_validation_on_energies_of_other_events_says_so(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, number: int
) -> None:
    """Less than 48 events tell beside those of training."""
    columns = against_the_light(tiny_data)
    columns["run"] += 7
    write(tmp_path / "reversed.root", {name: rows[:number] for name, rows in columns.items()})
    write(tmp_path / "sound.root", tripled(tiny_data))
    paths = {"train_path": str(tmp_path / "sound.root"), "val_path": str(tmp_path / "reversed.root")}
    result = engine.train(tiny_config(data=paths, tasks=ENERGY))
    (told,) = events(result.run_dir, "truth_elsewhere")
    assert (told.data["task"], told.data["sample"]) == ("energy", "val")


def test_a_validation_of_few_events_on_positions_of_others_says_so(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    for changed in (False, True):
        columns = {name: rows[:30] for name, rows in tripled(tiny_data).items()}
        columns["run"] += 7
        columns["uvwTruth"] = np.roll(columns["uvwTruth"], 7 * changed, axis=0)
        path = tmp_path / f"{changed}.root"
        write(path, columns)
        config = tiny_config(data={"val_path": str(path)}, tasks={"uvwFI": {"enabled": True}})
        result = engine.train(config, overrides=[f"mlflow.run_name=r{changed}"])
        told = [(event.data["task"], event.data["sample"]) for event in events(result.run_dir, "truth_elsewhere")]
        assert told == [("uvwFI", "val")] * changed


def events(run_dir: str, kind: str) -> list[Any]:
    return [event for event in RunReader(Path(run_dir)).events() if event.kind == kind]


def named(found: list[Any]) -> set[int]:
    return {row[1] for event in found for row in event.data["events"]}


def test_events_that_cannot_be_are_named_and_left_out(tiny_config: Config, broken: Path) -> None:
    result = engine.train(tiny_config(data={"train_path": str(broken)}, tasks=ENERGY))
    assert named(events(result.run_dir, "implausible_event")) == {BRIGHT, DEAD, SENTINEL, LATE}
    assert named(events(result.run_dir, "quarantine")) == {BRIGHT, DEAD, SENTINEL, LATE}
    assert {event.data["files"][0] for event in events(result.run_dir, "implausible_event")} == {f"{broken}:tree"}
    assert [event.data["quarantined"] for event in events(result.run_dir, "audit")] == [4, 4]


def test_without_the_guard_they_are_trained_on_and_nobody_is_told(tiny_config: Config, broken: Path) -> None:
    config = tiny_config(data={"train_path": str(broken)}, tasks=ENERGY, guards={"disable": ["G01"]})
    result = engine.train(config)
    assert not events(result.run_dir, "implausible_event") + events(result.run_dir, "quarantine")
    assert [event.data["seen"] for event in events(result.run_dir, "audit")] == [20, 20]


@pytest.mark.parametrize("guards", [{"quarantine": False}, {"on_input_scale": "warn"}, {"max_quarantined": 0.0}])
def test_where_nothing_may_be_left_out_they_are_only_named(
    tiny_config: Config, broken: Path, guards: dict[str, Any]
) -> None:
    heard: list[str] = []
    observer = NullObserver()
    observer.message = heard.append  # type: ignore[method-assign]
    config = tiny_config(data={"train_path": str(broken)}, tasks=ENERGY, guards=guards)
    result = engine.train(config, max_steps=3, observer=observer)
    found = events(result.run_dir, "implausible_event")
    assert named(found) == {BRIGHT, DEAD, SENTINEL, LATE}
    dark = {event.message: event.data["reasons"][0] == NO_READING for event in found}
    codes = {message: "XT-NAN-DATA" if is_dark else "XT-SPIKE-EVENT" for message, is_dark in dark.items()}
    assert {f"warning {code}: {message}" for message, code in codes.items()} <= {*heard}, "what `xectool explain` takes"
    assert {event.data["action"] for event in found} == {"record"}
    assert not events(result.run_dir, "quarantine")


def mixed(data: Path, target: Path, factor: float) -> list[str]:
    """Write events of which one file has its times times ``factor``; return a sound file and that one."""
    columns = tripled(data)
    times = columns["relative_time"]
    write(target.with_name("sound.root"), columns)
    write(target, columns | {"relative_time": np.where(np.abs(times) < 9e9, times * np.float32(factor), times)})
    return [str(target.with_name("sound.root")), str(target)]


def test_a_file_out_of_reach_beside_sound_ones_stops_the_run(
    tiny_config: Config, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of each batch has times in ns; the control trains on them to the end."""
    sound, odd = mixed(tiny_data, tmp_path / "ns.root", 1e9)
    config = tiny_config(data={"train_path": [sound, odd], "batch_size": 8}, tasks=ENERGY)
    with pytest.raises(DataUnusable, match="they are in another unit") as stopped:
        engine.train(config, run_name="stopped", overrides=["data.cache=off"])
    error = stopped.value
    assert error.code == "XT-INPUT-SCALE"
    assert f"read so far of {odd}:tree" in error.problem
    assert sound not in error.problem
    assert error.fix.startswith(f"xectool check-data {odd}:tree --config ")
    told = engine.check_data(f"{odd}:tree")
    assert any(item.severity.value == "error" for item in told.findings), "what the line leads to says it, too"
    for guards in ("on_input_scale=warn", "disable=[G01]"):
        result = engine.train(config, run_name=guards[:4], overrides=[f"guards.{guards}"], max_steps=12)
        found = [event for event in events(result.run_dir, "files_differ") if event.data["files"] == [f"{odd}:tree"]]
        unit = [event for event in found if event.data.get("meaning") == "they are in another unit"]
        assert (result.status, len(unit)) == ("max_steps", guards == "on_input_scale=warn")
        if unit:
            (said,) = (item for item in result.findings if "diagnose run" in item.fix)
            assert "XT-INPUT-SCALE" in f"{said.code} {said.problem}", (
                "events were made three of one, which is said, too"
            )
            assert said.severity.value == "warning"
            assert said.fix == f"xectool diagnose run {result.run_dir}"


@pytest.mark.parametrize(
    ("error", "code"), [(OSError("it is gone"), "XT-DISK"), (TypeError("a defect\nof ours"), "XT-DEFECT")]
)
@pytest.mark.parametrize("page", [False, True])
def test_a_training_never_fails_for_its_diagnosis_and_says_what_failed(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, page: bool
) -> None:
    """A defect was one line without its type, and nothing in the document; of the page it led to the diagnosis."""

    def broken(*given: object) -> None:
        raise error

    heard: list[str] = []
    observer = NullObserver()
    observer.message = heard.append  # type: ignore[method-assign]
    monkeypatch.setattr(*((reporting, "write_page") if page else (run_health, "run")), broken)
    settings = [f"checkpoint.save_artifacts={json.dumps(page)}"]
    result = engine.train(tiny_config(), max_steps=1, observer=observer, overrides=settings)
    assert result.status == "max_steps"
    lacking, again = ("no report was written", "report") if page else ("the run was not diagnosed", "diagnose run")
    said, told = f"{lacking}: {type(error).__name__}: {str(error).splitlines()[0]}", result.findings[-1]
    assert heard[-1] == told.problem == said
    assert (told.code, told.severity.value) == (code, "warning")
    assert told.fix == f"xectool {again} {result.run_dir}"


@pytest.mark.parametrize("changed", ["times", "gain", "pedestal", "empty"])
def test_possible_data_and_a_few_events_out_of_reach_do_not_stop(
    tiny_config: Config, tiny_data: Path, changed: str
) -> None:
    batch = batch_of(tiny_config())
    alive, normalizer = batch.npho < 9e9, Normalizer(NormalizationConfig())
    npho, times = {
        "times": (batch.npho, torch.where(alive & (batch.time < 9e9), batch.time + 1e-5, batch.time)),
        "gain": (torch.where(alive, batch.npho * 100, batch.npho), batch.time),
        "pedestal": (torch.where(alive, torch.randn_like(batch.npho), batch.npho), torch.full_like(batch.time, 1e10)),
        "empty": (torch.full_like(batch.npho, math.nan), torch.full_like(batch.time, math.nan)),
    }[changed]
    assert not list(out_of_reach(replace(batch, npho=npho, time=times), normalizer))
    seconds = torch.where(alive & (batch.time < 9e9), batch.time + 1.0, batch.time)
    assert len(list(out_of_reach(replace(batch, time=seconds), normalizer))) == batch.num_events


def batch_of(config: Path) -> EventBatch:
    data = open_data(load_config(config).config)
    with build_parts(data, plan_execution(data.config.training, "cpu"), Ranks()).train_loader as loader:
        return next(iter(loader.epoch(1)))


POISON = (np.nan, np.inf, -np.inf, 1e10, -1e10, 9.5e9, 2e10, 5e7, -2e4, -1.0, 2e-6, 0.0)


def test_what_the_extremes_of_an_event_let_pass_holds_nothing_a_look_finds(tiny_config: Config) -> None:
    config = load_config(tiny_config()).config
    batch, normalizer = batch_of(tiny_config()), Normalizer(config.normalization)
    source, usual = open_source(config.data, "train", tasks=()), usual_extremes(normalizer)
    assert usual.holds(measured(batch).extremes)
    caught = 0
    for value, sensors, name in itertools.product(POISON, (1, 1400, 4760), ("npho", "time")):
        readings = getattr(batch, name).clone()
        readings[2, :sensors] = value
        broken = measured(replace(batch, **{name: readings}))
        found = implausible(broken, normalizer)
        caught += bool(found)
        assert not (found and usual.holds(broken.extremes))
        plain = replace(broken, extremes=None)
        assert ReadingWatch(config, source).look(broken) == ReadingWatch(config, source).look(plain)
    assert caught > 5


def measured(batch: EventBatch) -> EventBatch:
    targets = {task: target.numpy() for task, target in batch.targets.items()}
    window = WindowArrays(batch.npho.numpy(), batch.time.numpy(), targets, batch.entry, np.empty((batch.num_events, 6)))
    measure(window)
    return replace(batch, extremes=window.extremes)


def test_sound_events_and_another_unit_for_all_are_no_matter_of_events(tiny_config: Config) -> None:
    batch, normalizer = batch_of(tiny_config()), Normalizer(NormalizationConfig())
    assert implausible(batch, normalizer) == []
    for factor in (1e-3, 50.0, 1e5):
        assert implausible(replace(batch, npho=batch.npho * factor), normalizer) == []
    assert implausible(replace(batch, npho=torch.full_like(batch.npho, 1e10)), normalizer) == []


@pytest.mark.parametrize(("gain", "named"), [(60.0, True), (1e-3, True), (8.0, False), (1.0, False)])
def test_a_file_of_another_gain_is_told_once(tiny_config: Config, gain: float, named: bool) -> None:
    batch = batch_of(tiny_config())
    files = torch.arange(batch.num_events) % 2
    npho = torch.where((files == 1)[:, None] & (batch.npho < 9e9), batch.npho * gain, batch.npho)
    windows = [[replace(batch, npho=npho, file_index=files)]] * 12
    light = LightByFile()
    found = [differ for window in windows if (differ := light.look(window))]
    assert [differ[:2] for differ in found] == [(1, 0) if gain > 1 else (0, 1)] * named


@pytest.mark.parametrize("factor", [-1.0, 100.0, 1e3, 1e6, 1e8])
def test_one_event_out_of_scale_is_found_beside_any_others(tiny_config: Config, factor: float) -> None:
    batch, normalizer = batch_of(tiny_config()), Normalizer(NormalizationConfig())
    npho = batch.npho.clone()
    npho[2] *= factor
    ((row, reason),) = implausible(replace(batch, npho=npho), normalizer)
    assert row == 2
    assert "photons" in reason or "reading" in reason


@pytest.mark.parametrize(("name", "value"), [("npho", 3e8), ("npho", -3e8), ("time", 2.2e5), ("time", -1.0)])
def test_the_one_sensor_that_makes_an_event_impossible_is_named(tiny_config: Config, name: str, value: float) -> None:
    batch, normalizer = batch_of(tiny_config()), Normalizer(NormalizationConfig())
    readings = getattr(batch, name).clone()
    sensor = int(torch.where(batch.npho[2] < UNKNOWN_ABOVE, batch.npho[2], 0.0).argmax())
    readings[2, sensor] = value
    ((row, reason),) = implausible(replace(batch, **{name: readings}), normalizer)
    assert (row, f"sensor {sensor} " in reason) == (2, True), reason
    many = getattr(batch, name).clone()
    many[2] = value
    ((row, reason),) = implausible(replace(batch, **{name: many}), normalizer)
    assert (row, "sensor" in reason.replace("sensors", "")) == (2, False), reason


@pytest.mark.parametrize(
    ("of_usual", "value", "found"),
    [(1.0, 2.5e6, True), (1.0, 4e5, False), (1e-3, 3e6, True), (8.0, 3.5e6, False), (50.0, 3e6, False)],
)
def test_light_that_no_sensor_gives_is_found_though_the_event_as_a_whole_could_have_it(
    tiny_config: Config, of_usual: float, value: float, found: bool
) -> None:
    """`check-data` says of such a reading that it cannot come from a sensor (DAT-02); of other units none."""
    batch, normalizer = batch_of(tiny_config()), Normalizer(NormalizationConfig())
    npho = torch.where(batch.npho < UNKNOWN_ABOVE, batch.npho * of_usual, batch.npho)
    npho[2, 3656] = value
    broken = measured(replace(batch, npho=npho))
    rows = implausible(broken, normalizer)
    assert [(row, "sensor 3656 has" in reason) for row, reason in rows] == [(2, True)] * found
    assert not (rows and usual_extremes(normalizer).holds(broken.extremes))


def test_a_channel_that_is_hot_in_every_event_names_none_and_hides_no_dead_one(tiny_config: Config) -> None:
    batch, normalizer = batch_of(tiny_config()), Normalizer(NormalizationConfig())
    npho = batch.npho.clone()
    npho[:, 100], npho[3], npho[2, 200] = 3e6, DEAD_VALUE, 2e7
    broken = measured(replace(batch, npho=npho))
    (hot, dead) = implausible(broken, normalizer)
    assert (hot[0], hot[1].startswith("sensor 200 has 2e+07 photons (no sensor gives ")) == (2, True)
    assert dead[0] == 3
    assert not implausible(broken.take(np.arange(2)), normalizer, [8e5] * 8)


def test_of_several_sensors_with_impossible_light_one_is_named(tiny_config: Config) -> None:
    batch, normalizer = batch_of(tiny_config()), Normalizer(NormalizationConfig())
    npho = batch.npho.clone()
    npho[2, 100], npho[2, 200] = 2.1e6, -2.5e6
    ((row, reason),) = implausible(measured(replace(batch, npho=npho)), normalizer)
    assert (row, reason) == (2, "sensor 200 has -2.5e+06 photons (no sensor gives 2e+06), and 1 more")


def test_one_event_of_a_small_batch_is_found_by_those_before(tiny_config: Config) -> None:
    """Sensor-level training takes two or three events a step, which say nothing of what is usual."""
    batch, normalizer = batch_of(tiny_config()).take(np.arange(2)), Normalizer(NormalizationConfig())
    npho = batch.npho.clone()
    npho[1, 1234] = 1e8
    broken = replace(batch, npho=npho)
    assert implausible(broken, normalizer) == [], "nothing to compare with: it may be a matter of units"
    assert [row for row, _ in implausible(broken, normalizer, [7e5] * 4)] == [1]
    assert implausible(broken, normalizer, [1e8] * 4) == []


def test_a_truth_that_no_event_can_have_is_named_though_its_loss_does_not_stand_out(
    tiny_config: Config, tiny_data: Path, tmp_path: Path
) -> None:
    far = tmp_path / "far.root"
    with uproot.open(tiny_data / "train_000.root") as file:
        columns = dict(file["tree"].arrays(library="np"))
    columns["uvwTruth"] = columns["uvwTruth"].copy()
    columns["uvwTruth"][7, 1] += 300.0
    with TreeWriter(far, {name: (v.dtype.str[1:], v.shape[1:]) for name, v in columns.items()}) as writer:
        writer.extend(columns)
    tasks = {"uvwFI": {"enabled": True, "scale": "auto", "shift": "auto"}}
    result = engine.train(tiny_config(data={"train_path": str(far)}, tasks=tasks), max_steps=2)
    (cause,) = engine.diagnose.run(result.run_dir).causes
    assert cause.code == "XT-SPIKE-EVENT"
    assert "entry 7 of" in cause.problem
    assert str(far) in cause.problem


def test_a_pedestal_in_all_files_is_no_light(tiny_config: Config) -> None:
    batch = batch_of(tiny_config())
    npho = torch.where(batch.npho.abs() < 9e9, batch.npho + 40_000.0, batch.npho)
    opinion = opinion_of(replace(batch, npho=npho), Normalizer(NormalizationConfig()))
    assert (opinion.level, opinion.channel) == ("error", "npho")
    assert "in its darkest sensors" in opinion.reason
    bright = opinion_of(replace(batch, npho=batch.npho * 1e4), Normalizer(NormalizationConfig()))
    assert bright.reason.startswith("an event has")


@pytest.mark.parametrize(("num_events", "named"), [(12, 1), (4, 5)], ids=["dead", "control: too few to tell"])
def test_nan_of_a_dead_sensor_is_no_invalid_number(tiny_config: Config, num_events: int, named: int) -> None:
    """Twenty lines and XT-NAN-DATA at the end, of files that `check-data` called good."""
    config = load_config(tiny_config()).config
    batch = batch_of(tiny_config())
    rows = torch.arange(num_events) % batch.num_events
    npho = batch.npho[rows].clone()
    npho[:, 7] = math.nan
    npho[1, 9] = math.nan
    identity = {name: getattr(batch, name)[rows] for name in ("run", "event", "entry", "file_index")}
    targets = {task: target[rows] for task, target in batch.targets.items()}
    many = replace(batch, npho=npho, time=batch.time[rows], targets=targets, extremes=None, **identity)
    found = ReadingWatch(config, open_source(config.data, "train", tasks=())).look(many)
    assert len(found) == named
    assert any("sensor 9" in reading.line for reading in found)

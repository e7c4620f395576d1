"""Files hold the events of the seed whatever their number, format and blocks, in the stated units."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from xectool.detector import coordinates
from xectool.engine.simulation import simulate
from xectool.errors import UsageError
from xectool.simulation import dataset
from xectool.simulation.dataset import SimulationSettings, simulate_block
from xectool.simulation.response import DetectorResponse

Rows = dict[str, Any]


def read(path: str | Path) -> Rows:
    with uproot.open(f"{path}:tree") as tree:
        arrays = tree.arrays(list(dataset.BRANCHES), library="ak")
        return {name: np.asarray(arrays[name]) for name in dataset.BRANCHES}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    path = tmp_path_factory.mktemp("sim") / "a.root"
    simulate(path, events=120, seed=4)
    return read(path)


def test_branches_have_their_type_and_shape(rows: Rows) -> None:
    for name, (dtype, shape) in dataset.BRANCHES.items():
        assert rows[name].dtype == np.dtype(dtype), name
        assert rows[name].shape == (120, *shape), name


def test_truth_is_in_the_stated_units(rows: Rows) -> None:
    assert rows["energyTruth"].min() > 0.015
    assert rows["energyTruth"].max() < 0.060
    assert np.abs(rows["timeTruth"]).max() < 5e-9
    assert np.allclose(coordinates.xyz_to_uvw(rows["xyzTruth"]), rows["uvwTruth"], atol=1e-4)
    assert np.allclose(coordinates.angles_to_direction(rows["emiAng"]), rows["emiVec"], atol=1e-6)
    flight = rows["xyzTruth"] - rows["xyzVTX"]
    assert np.allclose(flight / np.linalg.norm(flight, axis=1, keepdims=True), rows["emiVec"], atol=1e-5)
    assert (rows["nGammaTruth"] == [0, 1, 0, 0, 0]).all()


def test_times_are_relative_to_the_earliest_used_sensor(rows: Rows) -> None:
    used = (rows["npho"] >= 100) & (rows["npho"] < 9e9)
    assert (np.where(used, rows["relative_time"], 1.0).min(axis=1) == 0).all()


def test_time_truth_can_be_learned_from_the_times(rows: Rows) -> None:
    from xectool.detector import geometry

    way_cm = np.linalg.norm(rows["xyzTruth"][:, None] - geometry.positions_cm(), axis=2)
    timed = (rows["npho"] >= 100) & (rows["relative_time"] < 1)
    weight = np.where(timed, rows["npho"], 0)
    conversion_s = rows["relative_time"] - way_cm * 1.69 / 2.99792458e10
    estimate = np.average(np.where(timed, conversion_s, 0), axis=1, weights=weight)
    error = estimate - rows["timeTruth"]
    assert np.median(np.abs(error - np.median(error))) < 0.5 * np.median(
        np.abs(rows["timeTruth"] - np.median(rows["timeTruth"]))
    )


def test_light_grows_with_energy_and_depends_on_depth(rows: Rows) -> None:
    light = np.where(rows["npho"] < 9e9, rows["npho"], 0).sum(axis=1)
    assert np.corrcoef(light, rows["energyTruth"])[0, 1] > 0.95
    yield_ = light / rows["energyTruth"]
    assert 0.02 < yield_.std() / yield_.mean() < 0.2
    assert np.corrcoef(yield_, rows["uvwTruth"][:, 2])[0, 1] < -0.3


def test_events_do_not_depend_on_files_or_format(tmp_path: Path, rows: Rows) -> None:
    result = simulate(tmp_path / "b.root", events=120, seed=4, files=3, format="rntuple", compression="zstd")
    assert [Path(path).name for path in result.files] == ["b_000.root", "b_001.root", "b_002.root"]
    parts = [read(path) for path in result.files]
    for name in set(dataset.BRANCHES) - {"run"}:
        assert np.array_equal(np.concatenate([part[name] for part in parts]), rows[name]), name
    assert [np.unique(part["run"]).tolist() for part in parts] == [[4000], [4001], [4002]]


def test_events_do_not_depend_on_their_block() -> None:
    settings = SimulationSettings(events=40, seed=9, pileup=0.5)
    detector = DetectorResponse.from_seed(1, 0.01)
    whole = simulate_block(settings, detector, range(20))
    alone = simulate_block(settings, detector, range(7, 8))
    for name, values in alone.items():
        assert np.array_equal(values[0], whole[name][7]), name


def test_sets_of_different_seeds_share_the_detector() -> None:
    detector = DetectorResponse.from_seed(1, 0.01)
    train, val = (simulate_block(SimulationSettings(events=3, seed=seed), detector, range(3)) for seed in (1, 2))
    assert np.array_equal(train["npho"][0] == 1e10, val["npho"][2] == 1e10)
    assert not np.array_equal(train["energyTruth"], val["energyTruth"])


def test_a_fixed_energy_is_kept() -> None:
    settings = SimulationSettings(events=4, energy_gev=0.0528)
    energies = simulate_block(settings, DetectorResponse.from_seed(1), range(4))["energyTruth"]
    assert np.allclose(energies, 0.0528)


def test_pileup_adds_gammas_and_light_but_keeps_the_signal_truth() -> None:
    detector = DetectorResponse.from_seed(1)
    settings = SimulationSettings(events=64, energy_gev=0.0528, pileup=0.3)
    piled = simulate_block(settings, detector, range(64))
    clean = simulate_block(dataclasses.replace(settings, pileup=0.0), detector, range(64))
    assert (piled["nGammaTruth"].sum(axis=1) == 1).all()
    num_gammas = piled["nGammaTruth"].argmax(axis=1)
    extra = num_gammas > 1
    assert 8 < extra.sum() < 32
    assert num_gammas.max() <= 4
    assert np.array_equal(piled["uvwTruth"], clean["uvwTruth"])
    assert (piled["npho"][extra].sum(axis=1) > 1.03 * clean["npho"][extra].sum(axis=1)).mean() > 0.9


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"events": 0}, "--events 20k"),
        ({"seed": -1}, "--seed 1"),
        ({"seed": 2**31}, "--seed 1"),
        ({"files": 0}, "--files 1"),
        ({"files": 11}, "each with an event"),
        ({"energy_gev": 52.8}, "--energy 0.0528"),
        ({"energy_gev": 55}, r"--energy cannot be 55, which looks like MeV[\s\S]*fix: --energy 0.055 "),
        ({"energy_gev": 0.0}, r"--energy cannot be 0.0\n[\s\S]*fix: --energy 0.0528 "),
        ({"energy_gev": -0.05}, "--energy 0.0528"),
        ({"events": 2**31}, "to 2147483647"),
        ({"energy_gev": float("nan")}, "--energy 0.0528"),
        ({"energy_gev": (0.06, 0.015)}, "--energy 0.0528"),
        ({"dead_fraction": 1.0}, "--dead 0.01"),
        ({"dead_fraction": -0.1}, "--dead 0.01"),
        ({"pileup": 1.5}, "--pileup 0.1"),
        ({"detector_seed": -1}, "--detector-seed 1"),
        ({"format": "tree"}, "did you mean 'ttree'"),
        ({"compression": "gzip"}, "--compression zlib:1"),
    ],
)
def test_bad_options_name_the_one_to_write(tmp_path: Path, change: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        simulate(tmp_path / "c.root", **{"events": 10, **change})
    assert list(tmp_path.iterdir()) == []


def test_missing_directories_are_made(tmp_path: Path) -> None:
    result = simulate(tmp_path / "new" / "deep" / "d.root", events=2)
    assert result.events == 2
    assert result.seconds > 0
    assert Path(result.files[0]).is_file()


def test_a_directory_as_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fix: xectool simulate .*sim\.root"):
        simulate(tmp_path, events=2)


@pytest.mark.parametrize(
    ("output", "fix"),
    [
        ("run.yaml", "run.root"),
        ("sim", "sim.root"),
        ("sim.root:tree", "sim.root"),
        ("root://host//data/sim.root", "sim.root"),
    ],
)
def test_an_output_that_is_no_local_root_file_is_refused(
    output: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("kind: mae")
    with pytest.raises(UsageError, match=re.escape(f"fix: xectool simulate {fix}")):
        simulate(output, events=2)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
    assert (tmp_path / "run.yaml").read_text() == "kind: mae"

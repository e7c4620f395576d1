from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from xectool.data.batch import EventBatch
from xectool.detector import coordinates, faces, geometry
from xectool.rootio.reader import EventFile
from xectool.tasks.baselines import BaselineMetrics, ConventionalEstimator, light_features
from xectool.tasks.linear_fit import LinearFit, lone

MakeBatch = Callable[..., EventBatch]

BRANCHES = {"angle": "emiAng", "energy": "energyTruth", "timing": "timeTruth", "uvwFI": "uvwTruth"}


def file_batch(make_batch: MakeBatch, path: Path, stop: int) -> EventBatch:
    with EventFile(path) as file:
        sensors = {
            n: torch.from_numpy(file.read_column(b, 0, stop)) for n, b in (("npho", "npho"), ("time", "relative_time"))
        }
        targets = {t: torch.from_numpy(file.read_column(b, 0, stop).reshape(stop, -1)) for t, b in BRANCHES.items()}
    return make_batch(targets, **sensors)


def point_source(uvw_cm: np.ndarray, light: float = 1e6) -> np.ndarray:
    towards = coordinates.uvw_to_xyz(uvw_cm) - geometry.positions_cm()
    distance = np.linalg.norm(towards, axis=1)
    return light * np.clip((towards * geometry.normals()).sum(axis=1), 0, None) / distance**3


@pytest.fixture(scope="module")
def calibrated(reference_dir: Path, make_batch: MakeBatch) -> tuple[ConventionalEstimator, EventBatch]:
    data = reference_dir / "data"
    train = file_batch(make_batch, data / "synth_train.root", 200)
    return ConventionalEstimator().fit([train]), file_batch(make_batch, data / "synth_val.root", 100)


def test_estimators_beat_the_spread_of_the_truth(calibrated: tuple[ConventionalEstimator, EventBatch]) -> None:
    estimator, batch = calibrated
    estimate = estimator.predict(batch)
    for task in ("angle", "energy", "uvwFI"):
        truth = batch.targets[task].numpy()
        left, spread = (estimate[task] - truth).std(axis=0), truth.std(axis=0)
        assert (left < 0.9 * spread).all(), (task, left, spread)


def test_scores_are_the_networks_headline_metrics(calibrated: tuple[ConventionalEstimator, EventBatch]) -> None:
    estimator, batch = calibrated
    scores = BaselineMetrics(estimator)
    scores.update(batch)
    found = scores.compute()
    assert set(found) == {f"baseline_{task}" for task in BRANCHES}
    residual = estimator.predict(batch)["energy"] - batch.targets["energy"].numpy()
    assert found["baseline_energy"] == pytest.approx(np.percentile(np.abs(residual), 68), rel=1e-5)


def test_state_survives_json(calibrated: tuple[ConventionalEstimator, EventBatch]) -> None:
    estimator, batch = calibrated
    restored = ConventionalEstimator.from_state(json.loads(json.dumps(estimator.state())))
    for task, values in estimator.predict(batch).items():
        np.testing.assert_array_equal(restored.predict(batch)[task], values)


def test_features_of_a_point_source_point_at_it() -> None:
    for u, v in ((0.0, 0.0), (5.0, -20.0), (-8.0, 15.0)):
        uvw = np.array([u, v, 1.5])
        found = light_features(point_source(uvw)[np.newaxis], np.zeros((1, 4760)))[0]
        assert found[1:3] == pytest.approx([u, v], abs=1.0)


def test_width_grows_linearly_with_depth() -> None:
    depths = np.arange(1.5, 8.0, 0.5)
    npho = np.stack([point_source(np.array([0.0, 0.0, w])) for w in depths])
    widths = light_features(npho, np.zeros_like(npho))[:, 3]
    assert (np.diff(widths) > 0).all()
    assert np.corrcoef(depths, widths)[0, 1] > 0.998


@pytest.mark.parametrize("bad", [1e10, np.nan, np.inf, -3.0])
def test_dead_and_invalid_sensors_count_as_dark(bad: float) -> None:
    npho = point_source(np.array([3.0, 4.0, 2.0]))[np.newaxis]
    dark = npho.copy()
    ids = faces.index_map("inner")[40:44, 20:24].ravel()
    dark[0, ids] = 0.0
    npho[0, ids] = bad
    np.testing.assert_array_equal(light_features(npho, np.zeros((1, 4760))), light_features(dark, np.zeros((1, 4760))))


def test_an_event_without_light_has_finite_features() -> None:
    found = light_features(np.zeros((2, 4760)), np.full((2, 4760), 1e10))
    assert np.isfinite(found).all()
    assert found[:, 0].tolist() == [0.0, 0.0]


def test_unknown_truth_is_not_calibrated_on(make_batch: MakeBatch) -> None:
    generator = torch.Generator().manual_seed(0)
    npho = torch.rand(30, 4760, generator=generator) * torch.linspace(1, 2, 30).unsqueeze(1)
    energy = npho.sum(dim=1, keepdim=True) * 1e-5
    energy[3] = 1e10
    batch = make_batch({"energy": energy, "timing": torch.full((30, 1), 1e10)}, npho=npho)
    estimator = ConventionalEstimator().fit([batch])
    assert estimator.tasks == ("energy",)
    assert estimator.predict(batch)["energy"][4] == pytest.approx(float(energy[4]), rel=1e-4)
    scores = BaselineMetrics(estimator)
    scores.update(batch)
    assert set(scores.compute()) == {"baseline_energy"}


def test_no_events_calibrate_nothing() -> None:
    assert ConventionalEstimator().fit([]).tasks == ()


def test_linear_fit_ignores_features_that_do_not_vary() -> None:
    x = np.column_stack([np.linspace(0, 1e-8, 50), np.full(50, 7.0)])
    fit = LinearFit.fit(x, 3e-9 + 0.5 * x[:, :1])
    assert fit.slope[1, 0] == 0.0
    np.testing.assert_allclose(fit(x), 3e-9 + 0.5 * x[:, :1], rtol=1e-9)


@pytest.mark.parametrize("bad", ["hot sensors", "a truth of 1e6", "both"])
@pytest.mark.parametrize("count", [1, 3])
def test_single_bad_events_do_not_bend_the_fit(bad: str, count: int) -> None:
    draw = np.random.default_rng(5)
    light = draw.uniform(3e5, 8e5, (400, 1))
    energy = light * 7.5e-8 * draw.normal(1, 0.02, light.shape)
    sound = LinearFit.fit(light, energy)
    spoiled_light, spoiled_energy = light.copy(), energy.copy()
    if bad != "a truth of 1e6":
        spoiled_light[:count] = 7e7
    if bad != "hot sensors":
        spoiled_energy[-count:] = 1e6
    spoiled = LinearFit.fit(spoiled_light, spoiled_energy)
    np.testing.assert_allclose(spoiled(light), sound(light), rtol=2e-3)
    plain = np.polynomial.Polynomial.fit(spoiled_light[:, 0], spoiled_energy[:, 0], 1)
    assert np.abs(plain(light) / sound(light) - 1).max() > 0.2  # control: what least squares makes of the same events


@pytest.mark.parametrize("share", [0.008, 0.02, 0.04, 0.08])
@pytest.mark.parametrize("width", [0.0, 1e-9, 0.005])
def test_a_population_of_another_energy_belongs_to_the_fit(share: float, width: float) -> None:
    """Few of other energies beside one line, as calibrations have them, are all that tells of the slope."""
    draw = np.random.default_rng(6)
    energy = 0.0528 * draw.normal(1, width, (1000, 1))
    count = round(1000 * share)
    energy[:count] = draw.uniform(0.02, 0.05, (count, 1))
    light = energy / 7.5e-8 * draw.normal(1, 0.02, energy.shape)
    plain = np.polynomial.Polynomial.fit(light[:, 0], energy[:, 0], 1)
    np.testing.assert_allclose(LinearFit.fit(light, energy)(light), plain(light), rtol=1e-9)


@pytest.mark.parametrize("count", [1, 4, 7, 20, 59])
def test_of_few_events_none_is_told_from_the_others(count: int) -> None:
    values = np.random.default_rng(7).normal(size=(count, 2))
    values[0] = 1e9
    assert not lone(values).any()

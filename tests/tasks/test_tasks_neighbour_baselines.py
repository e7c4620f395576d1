from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from xectool.config.normalization import NormalizationConfig
from xectool.data.batch import EventBatch
from xectool.detector import coordinates, faces, solid_angle
from xectool.detector.constants import DEAD_VALUE
from xectool.detector.neighbours import near
from xectool.models.normalize import Normalizer
from xectool.tasks.event_variants import with_neighbours
from xectool.tasks.neighbour_baselines import (
    NeighbourAverage,
    SolidAngleWeighted,
    default_tables,
    light_point_cm,
)

ALL = np.ones((1, 4760), bool)


@pytest.fixture(scope="module")
def older(reference_dir: Path) -> dict[str, np.ndarray]:
    units = np.load(reference_dir / "units.npz")
    return {name: units[name] for name in ("bl_raw", "bl_mask", "bl_avg", "bl_sa", "bl_avg_norm", "sa")}


def test_the_older_estimates_are_reproduced(older: dict[str, np.ndarray], reference_dir: Path) -> None:
    positions = np.genfromtxt(reference_dir / "sensor_directions.txt")[:, 4:7]
    raw, mask, tables = older["bl_raw"].astype(float), older["bl_mask"], (near(positions, 20.0),)
    average = NeighbourAverage(tables).fill(raw, ~mask, mask)
    np.testing.assert_allclose(average, older["bl_avg"], rtol=1e-12)
    weighted = SolidAngleWeighted(tables, older["sa"]).fill(raw, ~mask, mask)
    np.testing.assert_allclose(weighted, older["bl_sa"], rtol=1e-9)
    scheme = Normalizer(NormalizationConfig()).scheme
    normalized = scheme(torch.from_numpy(average.clip(min=0))).numpy()
    np.testing.assert_allclose(normalized[mask], older["bl_avg_norm"][mask], rtol=1e-5, atol=1e-7)


def test_a_constant_field_is_filled_exactly_even_inside_a_dead_patch() -> None:
    wanted = ~ALL
    wanted[0, [44 * row + column for row in range(30, 40) for column in range(10, 30)]] = True
    filled = NeighbourAverage(default_tables()).fill(np.full((1, 4760), 7.0), ALL & ~wanted, wanted)
    np.testing.assert_allclose(filled, 7.0)


def test_a_sensor_far_from_any_visible_one_gets_the_mean_of_its_face() -> None:
    wanted = ~ALL
    wanted[0, faces.sensors("us")] = True
    wanted[0, faces.sensors("us")[-1]] = False
    photons = np.zeros((1, 4760))
    photons[0, faces.sensors("us")[-1]] = 5.0
    filled = NeighbourAverage(default_tables()).fill(photons, ALL & ~wanted, wanted)
    np.testing.assert_allclose(filled[0, faces.sensors("us")], 5.0)
    wanted[0, faces.sensors("us")] = True
    assert not NeighbourAverage(default_tables()).fill(photons, ALL & ~wanted, wanted)[wanted].any()


def test_hidden_and_dead_readings_are_never_looked_at() -> None:
    wanted = ~ALL
    wanted[0, ::7] = True
    photons = np.random.default_rng(0).exponential(100.0, (1, 4760))
    for estimator in (NeighbourAverage(default_tables()), SolidAngleWeighted(default_tables())):
        clean = estimator.fill(photons, ALL & ~wanted, wanted)[wanted]
        spoilt = estimator.fill(np.where(wanted, np.nan, photons), ALL & ~wanted, wanted)[wanted]
        assert np.array_equal(clean, spoilt)


def test_light_of_a_point_is_located_and_filled_better_with_solid_angles() -> None:
    rng = np.random.default_rng(1)
    uvw = np.column_stack([rng.uniform(-15, 15, 12), rng.uniform(-45, 45, 12), rng.uniform(3, 10, 12)])
    point = np.asarray(coordinates.uvw_to_xyz(uvw))
    photons = rng.poisson(2e6 * solid_angle.solid_angle_fraction(point)).astype(float)
    visible = np.ones(photons.shape, bool)
    found = light_point_cm(photons, visible)
    assert np.linalg.norm(found - point, axis=1).max() < 0.4 * 10
    wanted = rng.random(photons.shape) < 0.05
    errors = [
        np.abs(estimator.fill(photons, ~wanted, wanted) - photons)[wanted].mean()
        for estimator in (NeighbourAverage(default_tables()), SolidAngleWeighted(default_tables()))
    ]
    assert errors[1] < 0.85 * errors[0]


def test_neighbours_fill_no_event_without_a_reading(make_batch: Callable[..., EventBatch]) -> None:
    npho = torch.full((2, 4760), 100.0)
    npho[1] = DEAD_VALUE
    batch, mask = make_batch({"energy": torch.ones(2, 1)}, npho=npho), torch.zeros(2, 4760, dtype=torch.bool)
    mask[0, 7], mask[1] = True, True
    filled = with_neighbours(1)(batch, mask).npho
    assert 10 < float(filled[0, 7]) < 1000
    assert (filled[1] == DEAD_VALUE).all(), "it had 0 photons in every sensor"

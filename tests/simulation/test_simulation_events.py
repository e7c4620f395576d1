"""Gamma rays come from the target, convert at the right depth and share out their energy."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.detector import coordinates, geometry
from xectool.simulation import events, physics

ENERGY_GEV = 0.0528


@pytest.fixture(scope="module")
def gammas() -> list[events.Gamma]:
    rng = np.random.default_rng(11)
    return [events.make_gamma(rng, ENERGY_GEV) for _ in range(3000)]


def test_deposits_share_out_the_energy(gammas: list[events.Gamma]) -> None:
    sums = np.array([gamma.deposit_energies_gev.sum() for gamma in gammas])
    assert (sums <= ENERGY_GEV * (1 + 1e-12)).all()
    assert (sums >= physics.MIN_CONTAINED_SHARE * ENERGY_GEV).all()
    assert 0.97 < sums.mean() / ENERGY_GEV < 1


def test_only_deposits_inside_the_xenon_make_light(gammas: list[events.Gamma]) -> None:
    for gamma in gammas[:300]:
        assert geometry.is_inside(gamma.deposits_cm[gamma.deposit_energies_gev > 0]).all()


def test_depth_along_the_flight_follows_the_attenuation_length(gammas: list[events.Gamma]) -> None:
    length_cm = physics.attenuation_length_cm(ENERGY_GEV)
    conversions = np.array([gamma.conversion_cm for gamma in gammas])
    directions = np.array([gamma.direction for gamma in gammas])
    depth = coordinates.xyz_to_uvw(conversions)[:, 2]
    # Nearly head on, so the depth behind the face divided by the cosine is the way in the xenon.
    cosine = np.einsum("ei,ei->e", directions[:, :2], conversions[:, :2]) / np.hypot(*conversions[:, :2].T)
    way = depth / cosine
    assert (depth > 0).all()
    assert way.mean() == pytest.approx(length_cm, rel=0.06)
    assert np.median(way) == pytest.approx(np.log(2) * length_cm, rel=0.06)


def test_the_flight_starts_on_the_target_and_passes_the_conversion(gammas: list[events.Gamma]) -> None:
    for gamma in gammas[:300]:
        x, y, z = gamma.vertex_cm
        assert x == pytest.approx(z * np.tan(np.radians(15)))
        assert abs(z) < 13.5
        assert abs(y) < 3.3
        flight = gamma.conversion_cm - gamma.vertex_cm
        assert np.allclose(flight / np.linalg.norm(flight), gamma.direction)
        assert gamma.conversion_time_s == pytest.approx(np.linalg.norm(flight) / physics.SPEED_OF_LIGHT_CM_S)


def test_showers_grow_with_energy() -> None:
    rng = np.random.default_rng(3)
    low, high = ([events.make_gamma(rng, energy) for _ in range(800)] for energy in (0.015, 0.055))

    def extent(group: list[events.Gamma]) -> float:
        return float(np.mean([np.ptp(gamma.deposits_cm @ gamma.direction) for gamma in group]))

    def count(group: list[events.Gamma]) -> float:
        return float(np.mean([len(gamma.deposits_cm) for gamma in group]))

    assert extent(high) > 1.3 * extent(low)
    assert count(high) > count(low) + 0.3


def test_all_of_a_gamma_shifts_with_its_start() -> None:
    early, late = (events.make_gamma(np.random.default_rng(5), ENERGY_GEV, start) for start in (0.0, 1e-8))
    assert np.allclose(late.deposit_times_s - early.deposit_times_s, 1e-8)
    assert np.array_equal(late.deposits_cm, early.deposits_cm)

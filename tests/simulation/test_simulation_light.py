"""Light on the sensors agrees with the exact solid angle and with conservation of photons."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.detector import constants, coordinates, faces, geometry
from xectool.detector.solid_angle import solid_angle_fraction
from xectool.simulation import light, physics

Photons = np.ndarray


def photons_of(uvw: list[list[float]], energies_gev: list[float]) -> tuple[Photons, Photons]:
    points = coordinates.uvw_to_xyz(np.array(uvw))
    first = np.arange(len(uvw))
    return light.light_on_sensors(points, np.array(energies_gev), np.zeros(len(uvw)), first)


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    rng = np.random.default_rng(8)
    return coordinates.uvw_to_xyz(rng.uniform([-24, -68, 0.2], [24, 68, 35], (60, 3)))


def test_direct_share_agrees_with_the_exact_solid_angle(points: np.ndarray) -> None:
    fast, distance = light._direct_share(points)
    exact = solid_angle_fraction(points)
    seen = fast > 0
    assert np.abs(fast - exact)[seen].max() < 0.006 * exact.max()
    # Grazing views are relatively worse, and dark; elsewhere the expansion holds to half a percent.
    bright = seen & (exact > 1e-6)
    assert np.allclose(fast[bright], exact[bright], rtol=0.008)
    assert np.allclose(distance, np.linalg.norm(points[:, None] - geometry.positions_cm(), axis=-1), rtol=1e-5)


def test_a_line_through_the_inner_wall_carries_no_light() -> None:
    point = coordinates.uvw_to_xyz(np.array([[0.0, 65.0, 3.0]]))
    share, _ = light._direct_share(point)
    far_end = faces.index_map("us")[-1]
    assert (share[0, far_end] == 0).all()
    for sensor in np.flatnonzero(share[0, constants.NUM_SIPMS :] > 0) + constants.NUM_SIPMS:
        way = np.linspace(point[0], geometry.positions_cm()[sensor], 200)
        assert np.hypot(way[:, 0], way[:, 1]).min() > constants.REFERENCE_RADIUS_CM - 1e-3


def test_sensors_receive_less_than_the_light_made() -> None:
    photons, _ = photons_of([[0, 0, 1.0], [10, 30, 15.0], [0, 0, 38.0]], [0.05] * 3)
    share = photons.sum(axis=1) * physics.ENERGY_PER_PHOTON_GEV / 0.05
    assert (share > 0.2).all()
    assert (share < 0.6).all()


def test_light_is_linear_in_energy() -> None:
    one, _ = photons_of([[3, 4, 5.0]], [0.01])
    five, _ = photons_of([[3, 4, 5.0]], [0.05])
    assert np.allclose(five, 5 * one, rtol=1e-6)


def test_deposits_of_a_gamma_add_up() -> None:
    parts, _ = photons_of([[3, 4, 5.0], [5, 4, 9.0]], [0.01, 0.02])
    together, _ = light.light_on_sensors(
        coordinates.uvw_to_xyz(np.array([[3, 4, 5.0], [5, 4, 9.0]])),
        np.array([0.01, 0.02]),
        np.zeros(2),
        np.array([0]),
    )
    assert np.allclose(together[0], parts.sum(axis=0), rtol=1e-6)


def test_attenuation_follows_absorption_and_scattering() -> None:
    assert pytest.approx(1 / 250 + 1 / 40) == 1 / light.EFFECTIVE_LENGTH_CM
    assert pytest.approx(1 - light.EFFECTIVE_LENGTH_CM / 250) == light.SCATTERED_SHARE


def test_light_travels_at_the_speed_of_the_medium() -> None:
    point = [[0.0, 0.0, 10.0]]
    _, times_s = photons_of(point, [0.05])
    way_cm = np.linalg.norm(coordinates.uvw_to_xyz(np.array(point)) - geometry.positions_cm(), axis=1)
    assert np.allclose(times_s[0], way_cm * 1.69 / 2.99792458e10, rtol=1e-5)


def test_walls_have_the_area_of_the_faces() -> None:
    # Pitch areas of the faces, by hand: inner 142 x 67, outer 233 x 96, ends 2 x 8193, top and bottom 2 x 41 x 81 cm2.
    assert light.wall_area_cm2() == pytest.approx(142.3 * 67.1 + 232.8 * 95.97 + 2 * 8194 + 2 * 41.3 * 81.5, rel=0.01)

"""Coordinates go there and back, and agree with the definition of the experiment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from xectool.detector import coordinates as k
from xectool.detector import faces, geometry

COORDINATE = st.tuples(st.floats(-60, 60), st.floats(-200, 200), st.floats(-60, 80))


@given(uvw=COORDINATE)
def test_uvw_survives_the_round_trip(uvw: tuple[float, float, float]) -> None:
    assert np.allclose(k.xyz_to_uvw(k.uvw_to_xyz(np.array(uvw))), uvw, atol=1e-9)


@given(theta=st.floats(0.001, 179.999), phi=st.floats(-179.9, 179.9))
def test_emission_angles_survive_the_round_trip(theta: float, phi: float) -> None:
    direction = k.angles_to_direction(np.array([theta, phi]))
    assert np.isclose(np.linalg.norm(direction), 1.0)
    assert np.allclose(k.direction_to_angles(3.0 * direction), [theta, phi], atol=1e-9)


def test_inner_sensors_lie_at_zero_depth() -> None:
    uvw = k.xyz_to_uvw(geometry.positions_cm()[faces.sensors("inner")])
    assert np.abs(uvw[:, 2]).max() < 1e-9
    assert np.isclose(np.diff(uvw[:2, 0]), 1.5097727).all()
    assert np.isclose(uvw[0, 1] - uvw[44, 1], 1.5304, atol=1e-4)


def test_v_agrees_with_the_definition_of_the_experiment() -> None:
    # v = -(Phi - pi) R with Phi = pi + atan2(-y, -x), as the analyzer of the experiment writes it.
    x, y = -70.0, 12.0
    azimuth = np.pi + np.arctan2(-y, -x)
    assert np.isclose(k.xyz_to_uvw(np.array([x, y, 0.0]))[1], -(azimuth - np.pi) * 64.97)


def test_precision_of_the_input_is_kept() -> None:
    points = np.ones((2, 5, 3), dtype=np.float32)
    assert k.uvw_to_xyz(points).dtype == np.float32
    assert k.uvw_to_xyz(points).shape == (2, 5, 3)

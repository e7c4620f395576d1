"""Solid angles agree with closed forms, with the older system, and with the sphere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.detector import constants as c
from xectool.detector import coordinates, faces, geometry
from xectool.detector.solid_angle import disc_fraction, sipm_fraction, solid_angle_fraction

UP = np.array([0.0, 1.0, 0.0])


def test_agrees_with_the_older_system_given_its_radius_and_tables(reference_dir: Path) -> None:
    units = np.load(reference_dir / "units.npz")
    table = np.loadtxt(reference_dir / "sensor_directions.txt")
    ours = solid_angle_fraction(units["sa_xyz"], positions_cm=table[:, 4:7], normals=table[:, 1:4], pmt_radius_cm=3.81)
    assert np.abs(ours - units["sa"]).max() < 1e-8


def test_smaller_photocathode_is_2_9_times_less_in_area_seen_from_afar(reference_dir: Path) -> None:
    units = np.load(reference_dir / "units.npz")
    pmts = solid_angle_fraction(units["sa_xyz"])[:, 4092:]
    older = solid_angle_fraction(units["sa_xyz"], pmt_radius_cm=3.81)[:, 4092:]
    assert older.sum() / pmts.sum() == pytest.approx((3.81 / 2.25) ** 2, rel=0.02)


@pytest.mark.parametrize("height_cm", [0.1, 1.0, 10.0, 100.0])
def test_disc_on_its_axis_has_the_closed_form(height_cm: float) -> None:
    expected = (1 - height_cm / np.hypot(height_cm, 2.25)) / 2
    assert disc_fraction(height_cm * UP, UP, 2.25) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("off_axis_cm", [0.7, 2.2, 2.25, 2.3, 6.0])
def test_disc_off_its_axis_agrees_with_the_sum_of_its_parts(off_axis_cm: float) -> None:
    radius, height = 2.25, 1.3
    ring, turn = np.meshgrid((np.arange(800) + 0.5) / 800 * radius, (np.arange(800) + 0.5) / 800 * 2 * np.pi)
    distance2 = height**2 + (ring * np.cos(turn) - off_axis_cm) ** 2 + (ring * np.sin(turn)) ** 2
    parts = ring * (radius / 800) * (2 * np.pi / 800) * height / distance2**1.5
    exact = disc_fraction(np.array([off_axis_cm, height, 0.0]), UP, radius)
    assert exact == pytest.approx(parts.sum() / (4 * np.pi), rel=2e-5)


def test_disc_is_continuous_across_its_rim() -> None:
    offsets = np.stack([2.25 + np.linspace(-1e-4, 1e-4, 41), np.full(41, 0.8), np.zeros(41)], axis=1)
    values = disc_fraction(offsets, UP, 2.25)
    assert np.abs(np.diff(values)).max() < 1e-5


def test_sipm_agrees_with_the_sum_of_its_parts() -> None:
    normal = np.array([-1.0, 0.0, 0.0])
    point = np.array([-0.9, 0.4, 0.3])
    side = (np.arange(400) + 0.5) / 400 * 0.59
    edges = np.concatenate([0.025 + side, -0.025 - side])
    y, z = np.meshgrid(edges, edges)
    distance2 = point[0] ** 2 + (y - point[1]) ** 2 + (z - point[2]) ** 2
    parts = (0.59 / 400) ** 2 * abs(point[0]) / distance2**1.5
    assert sipm_fraction(point, normal) == pytest.approx(parts.sum() / (4 * np.pi), rel=1e-4)


def test_points_behind_a_sensor_see_nothing() -> None:
    assert disc_fraction(-1.0 * UP, UP, 2.25) == 0
    assert sipm_fraction(np.array([1.0, 0.0, 0.0]), np.array([-1.0, 0.0, 0.0])) == 0


def test_sensors_cover_less_than_the_sphere_and_about_the_instrumented_area() -> None:
    points = coordinates.uvw_to_xyz(np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 20.0], [15.0, 50.0, 10.0]]))
    covered = solid_angle_fraction(points)
    assert (covered >= 0).all()
    assert (covered.sum(axis=1) < 0.6).all()
    # Close to the inner face half of the sphere is that face, covered as much as its area is.
    inner = covered[0, faces.sensors("inner")].sum()
    area = c.SIPM_AREA_CM2 / (c.INNER_PITCH_Z_CM * c.REFERENCE_RADIUS_CM * np.radians(c.INNER_PITCH_DEG))
    assert inner == pytest.approx(0.5 * area, rel=0.12)


def test_blocks_do_not_show_in_the_result() -> None:
    rng = np.random.default_rng(5)
    points = coordinates.uvw_to_xyz(rng.uniform([-20, -60, 0.5], [20, 60, 30], (19, 3)))
    whole = solid_angle_fraction(points)
    one_by_one = np.concatenate([solid_angle_fraction(point) for point in points])
    assert np.array_equal(whole, one_by_one)


def test_far_sensors_follow_the_projected_area() -> None:
    point = coordinates.uvw_to_xyz(np.array([[0.0, 0.0, 20.0]]))
    offset = point - geometry.positions_cm()
    distance = np.linalg.norm(offset, axis=1)
    area = np.where(np.arange(4760) < 4092, c.SIPM_AREA_CM2, c.PMT_AREA_CM2)
    cosine = np.sum(offset * geometry.normals(), axis=1) / distance
    far = (distance > 40) & (cosine > 0.05)
    expected = (area * cosine / (4 * np.pi * distance**2))[far]
    assert np.allclose(solid_angle_fraction(point)[0, far], expected, rtol=0.006)

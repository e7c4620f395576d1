"""Positions and normals agree with the tables of the older system to the stated error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.detector import faces, geometry


def test_positions_agree_with_the_table_to_its_print_rounding(reference_dir: Path) -> None:
    table = np.loadtxt(reference_dir / "sensor_positions.txt")
    assert np.array_equal(table[:, 0], np.arange(faces.NUM_SENSORS))
    assert np.abs(geometry.positions_cm() - table[:, 1:]).max() < 4.95e-4


def test_pmt_positions_agree_with_the_surveyed_table_up_to_a_rigid_shift(reference_dir: Path) -> None:
    table = np.loadtxt(reference_dir / "sensor_directions.txt")
    pmts = slice(4092, None)
    ours, theirs = geometry.positions_cm()[pmts], table[pmts, 4:7]
    # Kabsch: the best rotation and translation from ours to theirs.
    centre, target = ours.mean(0), theirs.mean(0)
    left, _, right = np.linalg.svd((ours - centre).T @ (theirs - target))
    moved = (ours - centre) @ (left @ right) + target
    assert np.abs(moved - theirs).max() < 1.5e-3


def test_normals_agree_with_the_surveyed_table(reference_dir: Path) -> None:
    table = np.loadtxt(reference_dir / "sensor_directions.txt")
    cosine = np.sum(geometry.normals() * table[:, 1:4], axis=1)
    angle_deg = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    assert angle_deg[4092:].max() < 0.1  # rotation of 0.8 mrad and print rounding
    assert angle_deg[:4092].mean() == pytest.approx(0.36, abs=0.05)  # SiPM survey
    assert angle_deg[:4092].max() < 1.2


def test_normals_are_unit_vectors_that_look_into_the_xenon() -> None:
    positions, normals = geometry.positions_cm(), geometry.normals()
    assert np.allclose(np.linalg.norm(normals, axis=1), 1.0)
    assert geometry.is_inside(positions + 0.5 * normals).all()
    assert not geometry.is_inside(positions - 0.5 * normals).any()


def test_tables_cannot_be_changed_by_a_caller() -> None:
    with pytest.raises(ValueError, match="read-only"):
        geometry.positions_cm()[0, 0] = 0.0

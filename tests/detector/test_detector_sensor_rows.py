"""Where the rows of a face begin is read from the light, to one sensor; sound light is silent, whatever is dead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xectool.detector import coordinates, geometry
from xectool.detector.sensor_rows import displaced_rows

Array = np.ndarray[Any, Any]
COLUMN = np.arange(4760) % 44


@pytest.fixture(scope="module")
def npho() -> Array:
    """Photons of 32 point sources anywhere in the detector, shape (32, 4760)."""
    rng = np.random.default_rng(11)
    uvw = np.stack([rng.uniform(-25, 25, 32), rng.uniform(-60, 60, 32), rng.uniform(2, 30, 32)], axis=-1)
    gaps = coordinates.uvw_to_xyz(uvw)[:, np.newaxis] - geometry.positions_cm()
    return rng.poisson(5e4 / np.square(gaps).sum(axis=-1)).astype(np.float32)


@pytest.mark.parametrize(
    ("by", "told"), [(1, "inner face begin 1 sensor too late"), (-3, "inner face begin 3 sensors too early")]
)
def test_rolled_sensors_are_told_with_their_number(by: int, told: str, npho: Array) -> None:
    dead = np.random.default_rng(12).random(4760) < 0.3
    assert told in displaced_rows(np.roll(np.where(dead, np.float32(1e10), npho), by, axis=1))


def test_the_outer_face_tells_of_a_whole_row_and_of_phototubes_alone(npho: Array) -> None:
    assert "outer face begin 1 sensor too early" in displaced_rows(np.roll(npho, 44, axis=1))
    npho = npho.copy()
    npho[:, 4092:] = np.roll(npho[:, 4092:], 1, axis=1)
    assert "outer face begin 1 sensor too late" in displaced_rows(npho)


def test_sound_light_is_silent_with_dead_and_noisy_columns_and_without_light(npho: Array) -> None:
    inner = np.arange(4760) < 4092
    noise = np.random.default_rng(13).normal(0, 3, npho.shape).astype(np.float32)
    broken = (
        npho,
        np.where(inner & (COLUMN == 43), np.float32(1e10), npho),
        np.where(inner & (COLUMN == 20), noise, npho),
        np.where(inner & (COLUMN >= 40), noise, npho),
        np.where(inner, np.float32(np.nan), npho),
        np.zeros_like(npho),
    )
    assert [displaced_rows(photons) for photons in broken] == [""] * len(broken)

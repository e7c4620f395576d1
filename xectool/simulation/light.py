"""Transport of scintillation light from deposits to sensors, in closed form.

Direct light: exact solid angle near a sensor and its expansion far from it, thinned by absorption and Rayleigh
scattering. Scattered light: what the direct beam lost to scattering, spread evenly over the walls.

Legend: D deposits, G gamma rays, S sensors (4760). Arrays of D x S are float32; a block of deposits stays in the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.detector import geometry, solid_angle
from xectool.simulation import physics as p

FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]

EFFECTIVE_LENGTH_CM = 1 / (1 / p.ABSORPTION_LENGTH_CM + 1 / p.RAYLEIGH_LENGTH_CM)
"""Attenuation of the direct light."""
SCATTERED_SHARE = EFFECTIVE_LENGTH_CM / p.RAYLEIGH_LENGTH_CM
"""Share of the photons lost to the direct light that are scattered rather than absorbed."""

# A disc with the second moment of the four chips: 4 times the mean square distance from the middle along one axis.
_SIPM_RADIUS_CM = math.sqrt(c.SIPM_CHIP_CM**2 / 3 + (c.SIPM_CHIP_CM + c.SIPM_CHIP_GAP_CM) ** 2)
_NEAR_RADII = 4.0


@dataclass(frozen=True)
class _SensorTable:
    """Per-sensor numbers of the far-field formula, each of shape (S,), float32."""

    x: SingleArray
    y: SingleArray
    z: SingleArray
    normal_x: SingleArray
    normal_y: SingleArray
    normal_z: SingleArray
    area_share: SingleArray
    radius_squared: SingleArray
    near_squared: SingleArray
    azimuth: SingleArray
    horizon: SingleArray
    wall_share: SingleArray


def wall_area_cm2() -> float:
    """Return the area of the surfaces that enclose the active xenon."""
    span = math.radians(c.INNER_SPAN_DEG)
    slope = c.END_PITCH_Z_CM / c.END_PITCH_RADIUS_CM
    inner, outer = c.REFERENCE_RADIUS_CM, c.OUTER_RADIUS_CM
    z_inner = c.END_FIRST_Z_CM + slope * (inner - c.END_FIRST_RADIUS_CM)
    z_outer = c.END_FIRST_Z_CM + slope * (outer - c.END_FIRST_RADIUS_CM)
    curved = span * 2 * (inner * z_inner + outer * z_outer)
    ends = span * (outer**2 - inner**2) * math.sqrt(1 + slope**2)
    top_and_bottom = 2 * (outer - inner) * (z_inner + z_outer)
    return curved + ends + top_and_bottom


@cache
def _table() -> _SensorTable:
    positions, normals = geometry.positions_cm(), geometry.normals()
    radius, azimuth, _ = geometry.cylindrical()
    sipm = np.arange(c.NUM_SENSORS) < c.NUM_SIPMS
    area = np.where(sipm, c.SIPM_AREA_CM2, c.PMT_AREA_CM2)
    disc = np.where(sipm, _SIPM_RADIUS_CM, c.PMT_RADIUS_CM)
    columns = (
        *positions.T,
        *normals.T,
        area / (4 * math.pi),
        0.375 * disc**2,
        (_NEAR_RADII * disc) ** 2,
        azimuth,
        np.arccos(c.REFERENCE_RADIUS_CM / radius),
        area / wall_area_cm2(),
    )
    return _SensorTable(*(np.ascontiguousarray(column, dtype=np.float32) for column in columns))


def light_on_sensors(
    deposits_cm: FloatArray, energies_gev: FloatArray, times_s: FloatArray, first_deposit: npt.NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Return the expected photons on every sensor and their mean arrival time.

    Args:
        deposits_cm: Deposits of all gamma rays one after the other, shape (D, 3).
        energies_gev: Their energies, shape (D,).
        times_s: Their times, shape (D,).
        first_deposit: Where each gamma ray's deposits begin, shape (G,).

    Returns:
        Photons, shape (G, S), and times in s, shape (G, S); the time is the light-weighted one of the straight ways.
    """
    share, distance = _direct_share(deposits_cm)
    geometric = share.sum(axis=1, dtype=np.float64)
    share *= np.exp(distance * np.float32(-1 / EFFECTIVE_LENGTH_CM))
    lost = np.divide(
        geometric - share.sum(axis=1, dtype=np.float64), geometric, out=np.zeros_like(geometric), where=geometric > 0
    )
    diffuse = (lost * SCATTERED_SHARE * p.DIFFUSE_SURVIVAL).astype(np.float32)
    share += diffuse[:, np.newaxis] * _table().wall_share
    share *= (energies_gev / p.ENERGY_PER_PHOTON_GEV).astype(np.float32)[:, np.newaxis]
    photons = np.add.reduceat(share, first_deposit, axis=0).astype(np.float64)
    # Times relative to the gamma ray's first deposit keep float32 exact to below a picosecond.
    num_deposits = np.diff(np.append(first_deposit, len(times_s)))
    start_s = np.repeat(times_s[first_deposit], num_deposits)
    distance *= np.float32(p.REFRACTIVE_INDEX / p.SPEED_OF_LIGHT_CM_S)
    distance += (times_s - start_s).astype(np.float32)[:, np.newaxis]
    distance *= share
    weighted = np.add.reduceat(distance, first_deposit, axis=0).astype(np.float64)
    mean = np.divide(weighted, photons, out=np.zeros_like(weighted), where=photons > 0)
    return photons, mean + times_s[first_deposit][:, np.newaxis]


def _direct_share(deposits_cm: FloatArray) -> tuple[SingleArray, SingleArray]:
    """Return the fraction of 4 pi and the distance in cm, shape (D, S) both, of every deposit and sensor."""
    table = _table()
    x, y, z = (column[:, np.newaxis] for column in deposits_cm.astype(np.float32).T)
    dx, dy, dz = x - table.x, y - table.y, z - table.z
    height = dx * table.normal_x
    squared = np.square(dx, out=dx)
    height += dy * table.normal_y
    squared += np.square(dy)
    height += dz * table.normal_z
    squared += np.square(dz)
    np.maximum(height, 0, out=height)
    distance = np.sqrt(squared, out=dy)
    inverse_squared = np.reciprocal(squared, out=dz)
    # A / (4 pi d^2) cos (1 - 3/8 (R/d)^2 (5 cos^2 - 3)): the first two Legendre terms of a disc.
    correction = np.square(height)
    correction *= inverse_squared
    correction *= -5
    correction += 3
    correction *= table.radius_squared
    correction *= inverse_squared
    correction += 1
    height *= table.area_share
    height *= inverse_squared
    height /= distance
    height *= correction
    _exact_where_near(height, squared, deposits_cm)
    _hide_behind_inner_wall(height, deposits_cm)
    return height, distance


def _exact_where_near(share: SingleArray, squared: SingleArray, deposits_cm: FloatArray) -> None:
    row, sensor = np.nonzero(squared < _table().near_squared)
    offset = deposits_cm[row] - geometry.positions_cm()[sensor]
    normals = geometry.normals()[sensor]
    sipm = sensor < c.NUM_SIPMS
    share[row[sipm], sensor[sipm]] = solid_angle.sipm_fraction(offset[sipm], normals[sipm])
    share[row[~sipm], sensor[~sipm]] = solid_angle.disc_fraction(offset[~sipm], normals[~sipm], c.PMT_RADIUS_CM)


def _hide_behind_inner_wall(share: SingleArray, deposits_cm: FloatArray) -> None:
    # Seen along the beam, the straight line to a sensor stays outside the inner cylinder only within both horizons.
    # The inner sensors need no test: beyond the horizon they are seen from behind.
    pmts = slice(c.NUM_SIPMS, None)
    radius = np.hypot(deposits_cm[:, 0], deposits_cm[:, 1])
    azimuth = np.arctan2(deposits_cm[:, 1], -deposits_cm[:, 0]).astype(np.float32)
    horizon = np.arccos(np.minimum(c.REFERENCE_RADIUS_CM / radius, 1.0)).astype(np.float32)
    apart = np.abs(azimuth[:, np.newaxis] - _table().azimuth[pmts])
    apart -= horizon[:, np.newaxis]
    share[:, pmts] *= apart < _table().horizon[pmts]

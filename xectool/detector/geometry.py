"""Where every sensor is and where it looks, from a parametric description of the ideal detector.

Positions agree with the older system's sensor table to its print rounding, 4.9e-4 cm. The surveyed positions of a
real run differ by up to 0.96 cm on the inner face; read them from a file where they matter.

Legend: S sensors (4760).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.detector import faces, hexgrid

FloatArray = npt.NDArray[np.float64]


@cache
def positions_cm() -> FloatArray:
    """Return the sensor positions in cm, shape (S, 3), read-only."""
    radius, phi, z = cylindrical()
    return _frozen(np.stack([-radius * np.cos(phi), radius * np.sin(phi), z], axis=-1))


@cache
def normals() -> FloatArray:
    """Return the unit normals of the sensors, pointing into the xenon, shape (S, 3), read-only."""
    phi = cylindrical()[1]
    zero = np.zeros_like(phi)
    along_r = np.stack([-np.cos(phi), np.sin(phi), zero], axis=-1)
    along_phi = np.stack([np.sin(phi), np.cos(phi), zero], axis=-1)
    along_z = np.array([0.0, 0.0, 1.0])
    result = np.empty((c.NUM_SENSORS, 3))
    slope_r, slope_z = c.END_PITCH_Z_CM / c.END_PITCH_CM, c.END_PITCH_RADIUS_CM / c.END_PITCH_CM
    by_face = {
        "inner": along_r,
        "us": slope_r * along_r + slope_z * along_z,
        "ds": slope_r * along_r - slope_z * along_z,
        "outer": -along_r,
        "top": -along_phi,
        "bot": along_phi,
    }
    for face, vectors in by_face.items():
        ids = faces.sensors(face)
        result[ids] = vectors[ids]
    return _frozen(result)


@cache
def cylindrical() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return radius (cm), azimuth (rad, from -x towards +y) and z (cm) of the sensors, each (S,), read-only."""
    places = np.full((3, c.NUM_SENSORS), np.nan)
    _place_inner(places)
    _place_outer(places)
    _place_ends(places)
    _place_top_and_bottom(places)
    radius, phi, z = _frozen(places)
    return radius, phi, z


def is_inside(xyz_cm: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Say which points lie in the active xenon, bounded by the six planes and cylinders of the sensors.

    Args:
        xyz_cm: Points, shape (..., 3).

    Returns:
        Booleans of shape (...).
    """
    x, y, z = np.moveaxis(xyz_cm, -1, 0)
    radius = np.hypot(x, y)
    slope = c.END_PITCH_Z_CM / c.END_PITCH_RADIUS_CM
    z_limit = c.END_FIRST_Z_CM + slope * (radius - c.END_FIRST_RADIUS_CM)
    inside: npt.NDArray[np.bool_] = (
        (radius > c.REFERENCE_RADIUS_CM) & (radius < c.OUTER_RADIUS_CM) & (np.abs(z) < z_limit)
    )
    inside &= np.abs(np.arctan2(y, -x)) < math.radians(c.HEX_PHI_DEG)
    return inside


def _place_inner(places: FloatArray) -> None:
    row, column = np.indices(c.INNER_SHAPE)
    phi = math.radians(c.INNER_PITCH_DEG) * (_middle(c.INNER_SHAPE[0]) - row)
    z = c.INNER_PITCH_Z_CM * (column - _middle(c.INNER_SHAPE[1]))
    _put(places, faces.index_map("inner"), c.REFERENCE_RADIUS_CM, phi, z)


def _place_outer(places: FloatArray) -> None:
    # The image maps have z along the rows and azimuth along the columns.
    column, row = np.indices(c.OUTER_SHAPE[::-1])
    phi = math.radians(c.PMT_PITCH_DEG) * (_middle(c.OUTER_SHAPE[0]) - row)
    z = c.OUTER_PITCH_Z_CM * (column - _middle(c.OUTER_SHAPE[1]))
    _put(places, faces.index_map("outer_coarse"), c.OUTER_RADIUS_CM, phi, z)
    column, row = np.indices(c.OUTER_CENTER_SHAPE[::-1])
    phi = math.radians(c.OUTER_CENTER_PITCH_DEG) * (_middle(c.OUTER_CENTER_SHAPE[0]) - row)
    z = c.OUTER_CENTER_PITCH_Z_CM * (column - _middle(c.OUTER_CENTER_SHAPE[1]))
    # Written second: the centre moves the twelve PMTs that it shares with the coarse numbering.
    _put(places, faces.index_map("outer_center"), c.OUTER_RADIUS_CM, phi, z)


def _place_ends(places: FloatArray) -> None:
    row, column = np.indices(c.END_SHAPE)
    phi = math.radians(c.PMT_PITCH_DEG) * (_middle(c.END_SHAPE[0]) - row)
    radius = c.END_FIRST_RADIUS_CM + c.END_PITCH_RADIUS_CM * column
    z = c.END_FIRST_Z_CM + c.END_PITCH_Z_CM * column
    _put(places, faces.index_map("us"), radius, phi, -z)
    _put(places, faces.index_map("ds"), radius, phi, z)


def _place_top_and_bottom(places: FloatArray) -> None:
    row, offset = hexgrid.node_places().T
    radius = c.HEX_FIRST_RADIUS_CM + c.HEX_PITCH_RADIUS_CM * row
    phi = math.radians(c.HEX_PHI_DEG)
    _put(places, faces.index_map("top"), radius, phi, c.HEX_PITCH_Z_CM * offset)
    _put(places, faces.index_map("bottom"), radius, -phi, c.HEX_PITCH_Z_CM * offset)


def _put(places: FloatArray, ids: faces.IntArray, radius: npt.ArrayLike, phi: npt.ArrayLike, z: npt.ArrayLike) -> None:
    for row, values in enumerate((radius, phi, z)):
        places[row, ids] = values


def _middle(count: int) -> float:
    return (count - 1) / 2


def _frozen(array: FloatArray) -> FloatArray:
    array.setflags(write=False)
    return array

"""Coordinates of points in the xenon and of directions from the target.

``u`` runs along the beam (z), ``v`` along the azimuth on the inner face, ``w`` is the depth behind that face, all in
cm. Azimuth is measured from the -x axis towards +y, so ``v = 0`` is the middle of the detector.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c

FloatArray = npt.NDArray[np.floating]


def uvw_to_xyz(uvw_cm: FloatArray) -> FloatArray:
    """Return Cartesian coordinates in cm of points given as (u, v, w) in cm, shape (..., 3) both.

    >>> uvw_to_xyz(np.array([1.0, 0.0, 10.0])).round(2).tolist()
    [-74.97, 0.0, 1.0]
    """
    u, v, w = np.moveaxis(uvw_cm, -1, 0)
    radius, phi = w + c.REFERENCE_RADIUS_CM, v / c.REFERENCE_RADIUS_CM
    return np.stack([-radius * np.cos(phi), radius * np.sin(phi), u], axis=-1)


def xyz_to_uvw(xyz_cm: FloatArray) -> FloatArray:
    """Return (u, v, w) in cm of Cartesian points in cm, shape (..., 3) both; the inverse of :func:`uvw_to_xyz`."""
    x, y, z = np.moveaxis(xyz_cm, -1, 0)
    radius, phi = np.hypot(x, y), np.arctan2(y, -x)
    return np.stack([z, phi * c.REFERENCE_RADIUS_CM, radius - c.REFERENCE_RADIUS_CM], axis=-1)


def angles_to_direction(angles_deg: FloatArray) -> FloatArray:
    """Return unit vectors, shape (..., 3), of emission angles (theta, phi) in degrees, shape (..., 2).

    Theta is measured from the +z axis, phi as everywhere from -x towards +y.
    """
    theta, phi = np.moveaxis(np.radians(angles_deg), -1, 0)
    return np.stack([-np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)


def direction_to_angles(direction: FloatArray) -> FloatArray:
    """Return emission angles (theta, phi) in degrees, shape (..., 2), of vectors of any length, shape (..., 3)."""
    x, y, z = np.moveaxis(direction, -1, 0)
    # atan2 keeps its precision near the axis, where arccos loses half of the digits.
    angles: FloatArray = np.degrees(np.stack([np.arctan2(np.hypot(x, y), z), np.arctan2(y, -x)], axis=-1))
    return angles

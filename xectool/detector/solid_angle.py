"""Which fraction of the full sphere each sensor covers, seen from a point in the xenon.

Purely geometrical: no attenuation, no reflection, no efficiency. A SiPM package is four square chips with gaps; a PMT
is a disc. Both formulas are exact.

Legend: E points, S sensors (4760), N pairs of point and sensor.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from xectool.detector import constants as c
from xectool.detector import geometry

FloatArray = npt.NDArray[np.float64]

BLOCK_POINTS = 8
"""Points handled at once; bounds the memory to about 40 MB, and the blocks stay in the cache."""

_CHIP_EDGES_CM = (
    (-c.SIPM_CHIP_CM - c.SIPM_CHIP_GAP_CM / 2, -c.SIPM_CHIP_GAP_CM / 2),
    (c.SIPM_CHIP_GAP_CM / 2, c.SIPM_CHIP_CM + c.SIPM_CHIP_GAP_CM / 2),
)
_RIM_TOLERANCE = 1.0e-6


def solid_angle_fraction(
    source_cm: npt.NDArray[np.floating],
    *,
    positions_cm: FloatArray | None = None,
    normals: FloatArray | None = None,
    pmt_radius_cm: float = c.PMT_RADIUS_CM,
) -> FloatArray:
    """Return the fraction of 4 pi that every sensor covers from each point.

    Args:
        source_cm: Points, shape (E, 3).
        positions_cm: Sensor centres, shape (S, 3); the ideal detector by default.
        normals: Unit normals into the xenon, shape (S, 3); the ideal detector by default.
        pmt_radius_cm: Radius of the photocathode; the older system's Python used 3.81.

    Returns:
        Fractions between 0 and 0.5, shape (E, S); 0 for a point behind a sensor.
    """
    positions = geometry.positions_cm() if positions_cm is None else positions_cm
    directions = geometry.normals() if normals is None else normals
    source = np.asarray(source_cm, dtype=np.float64).reshape(-1, 1, 3)
    result = np.empty((source.shape[0], c.NUM_SENSORS))
    sipms, pmts = slice(0, c.NUM_SIPMS), slice(c.NUM_SIPMS, None)
    for start in range(0, source.shape[0], BLOCK_POINTS):
        block = slice(start, start + BLOCK_POINTS)
        result[block, sipms] = sipm_fraction(source[block] - positions[sipms], directions[sipms])
        result[block, pmts] = disc_fraction(source[block] - positions[pmts], directions[pmts], pmt_radius_cm)
    return result


def sipm_fraction(offset_cm: FloatArray, normals: FloatArray) -> FloatArray:
    """Return the fraction of 4 pi of the four chips of SiPM packages.

    A rectangle with edges ``a1, a2`` and ``b1, b2`` at distance ``h`` covers
    ``F(a2, b2) - F(a1, b2) - F(a2, b1) + F(a1, b1)`` with ``F = atan(a b / (h sqrt(a^2 + b^2 + h^2)))``.

    Args:
        offset_cm: From the centre of the sensor to the point, shape (..., 3).
        normals: Unit normals, broadcastable to the offsets; not along z.

    Returns:
        Fractions, shape (...).
    """
    across = np.stack([-normals[..., 1], normals[..., 0], np.zeros_like(normals[..., 0])], axis=-1)
    across /= np.linalg.norm(across, axis=-1, keepdims=True)
    along = np.cross(across, normals)
    height = np.einsum("...i,...i->...", offset_cm, normals)
    a_offset = np.einsum("...i,...i->...", offset_cm, along)
    b_offset = np.einsum("...i,...i->...", offset_cm, across)
    front = height > 0
    height = np.where(front, height, 1.0)
    total = np.zeros_like(height)
    for a_edges in _CHIP_EDGES_CM:
        for b_edges in _CHIP_EDGES_CM:
            for sign, a_edge, b_edge in _corners(a_edges, b_edges):
                a, b = a_edge - a_offset, b_edge - b_offset
                total += sign * np.arctan2(a * b, height * np.sqrt(a * a + b * b + height * height))
    return np.where(front, total / (4 * math.pi), 0.0)


def _corners(a_edges: tuple[float, float], b_edges: tuple[float, float]) -> tuple[tuple[int, float, float], ...]:
    (a1, a2), (b1, b2) = a_edges, b_edges
    return (1, a1, b1), (1, a2, b2), (-1, a1, b2), (-1, a2, b1)


def disc_fraction(offset_cm: FloatArray, normals: FloatArray, radius_cm: float) -> FloatArray:
    """Return the fraction of 4 pi of discs.

    Complete elliptic integrals in Carlson's form, after F. Paxton, Rev. Sci. Instrum. 30 (1959) 254.

    Args:
        offset_cm: From the centre of the disc to the point, shape (..., 3).
        normals: Unit normals, broadcastable to the offsets.
        radius_cm: Radius of the discs.

    Returns:
        Fractions, shape (...).
    """
    along = np.einsum("...i,...i->...", offset_cm, normals)
    front = along > 0
    height = np.where(front, along, 1.0)
    axis_distance = np.sqrt(np.maximum(np.einsum("...i,...i->...", offset_cm, offset_cm) - along**2, 0.0))
    gap, sum_ = axis_distance - radius_cm, axis_distance + radius_cm
    far_squared = height**2 + sum_**2
    complement = (height**2 + gap**2) / far_squared
    first = special.elliprf(0.0, complement, 1.0)
    on_rim = np.abs(gap) < _RIM_TOLERANCE * radius_cm
    # On the rim the third integral diverges, but its product with the gap tends to a jump of pi that cancels.
    safe_ratio = np.where(on_rim, 1.0, gap / sum_)
    modulus = 4 * axis_distance * radius_cm / sum_**2
    third = first + modulus / 3 * special.elliprj(0.0, complement, 1.0, safe_ratio**2)
    scale = 2 * height / np.sqrt(far_squared)
    covered = np.where(axis_distance < radius_cm, 2 * math.pi, 0.0) - scale * (first - safe_ratio * third)
    covered = np.where(on_rim, math.pi - scale * first, covered)
    return np.where(front, np.maximum(covered, 0.0) / (4 * math.pi), 0.0)

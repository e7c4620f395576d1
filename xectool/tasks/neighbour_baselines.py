"""Conventional ways to fill a dead sensor from the sensors around it: what an inpainter has to beat.

Axes: B events, S sensors (4760).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import sparse

from xectool.detector import constants as c
from xectool.detector import coordinates, faces, geometry, solid_angle
from xectool.detector.neighbours import NeighbourTable, within_distance, within_hops

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DEFAULT_HOPS = 1
OLDER_RADIUS_CM = 20.0
MIN_WEIGHTED_PHOTONS = 50.0
"""Light of the neighbours below which their pattern is noise, and the plain mean is better (older system)."""


class NeighbourEstimator(ABC):
    """Estimates hidden sensors from visible ones of the same face.

    Args:
        tables: Neighbours to try, nearest first: a sensor none of whose neighbours is visible uses the next table, and
            after the last one the mean of its face.
    """

    def __init__(self, tables: Sequence[NeighbourTable]) -> None:
        self._matrices = [table.matrix() for table in tables]

    def fill(self, photons: FloatArray, visible: BoolArray, wanted: BoolArray) -> FloatArray:
        """Return photons with estimates at the wanted sensors, shape (B, S).

        Args:
            photons: Raw photons, shape (B, S); only those of visible sensors are looked at.
            visible: Sensors with a valid reading that is not hidden, shape (B, S).
            wanted: Sensors to estimate, shape (B, S).
        """
        light = np.where(visible, photons, 0.0)
        filled = photons.astype(np.float64)
        open_ = wanted.copy()
        for matrix in self._matrices:
            if open_.any():
                count = (matrix @ visible.T.astype(np.float64)).T
                found = open_ & (count > 0)
                filled[found] = self._estimates(matrix, light, visible, found, count)
                open_ &= ~found
        filled[open_] = _face_means(light, visible)[open_]
        return filled

    @abstractmethod
    def _estimates(
        self, matrix: sparse.csr_array, light: FloatArray, visible: BoolArray, found: BoolArray, count: FloatArray
    ) -> FloatArray:
        """Return the estimates of the sensors in ``found``, in its order; ``count`` is that of visible neighbours."""


class NeighbourAverage(NeighbourEstimator):
    """Mean of the visible neighbours."""

    def _estimates(
        self, matrix: sparse.csr_array, light: FloatArray, visible: BoolArray, found: BoolArray, count: FloatArray
    ) -> FloatArray:
        means: FloatArray = (matrix @ light.T).T[found] / count[found]
        return means


class SolidAngleWeighted(NeighbourEstimator):
    """Light of the neighbours in proportion to solid angles: ``sum(n) Omega / sum(Omega_n)``.

    Below 50 photons in the neighbours, or where none of them sees the point, the plain mean.

    Args:
        tables: As for every estimator.
        solid_angles: What each sensor covers, shape (B, S), or None: from the point the visible light comes from.
    """

    def __init__(self, tables: Sequence[NeighbourTable], solid_angles: FloatArray | None = None) -> None:
        super().__init__(tables)
        self._solid_angles = solid_angles

    def _estimates(
        self, matrix: sparse.csr_array, light: FloatArray, visible: BoolArray, found: BoolArray, count: FloatArray
    ) -> FloatArray:
        total = (matrix @ light.T).T
        used = found | (((matrix @ found.T.astype(np.float64)).T > 0) & visible)
        omega = self._solid_angles
        if omega is None:
            omega = _solid_angles(light_point_cm(light, visible), used)
        around = (matrix @ np.where(visible, omega, 0.0).T).T
        weighted = (total > MIN_WEIGHTED_PHOTONS) & (around > 0)
        ratio = np.divide(omega, around, out=1.0 / np.maximum(count, 1.0), where=weighted)
        estimates: FloatArray = (total * ratio)[found]
        return estimates


@cache
def default_tables(hops: int = DEFAULT_HOPS) -> tuple[NeighbourTable, ...]:
    """Return neighbours within ``hops``, and for sensors in dead patches within two and four times as many."""
    return tuple(within_hops(hops * factor) for factor in (1, 2, 4))


@cache
def older_tables() -> tuple[NeighbourTable, ...]:
    """Return the older system's neighbours: closer than 20 cm."""
    return (within_distance(OLDER_RADIUS_CM),)


def light_point_cm(light: FloatArray, visible: BoolArray) -> FloatArray:
    """Return the point in the xenon that the light on the inner face comes from, xyz in cm, shape (B, 3).

    The centroid of the squared light gives u and v: squares hardly see the diffuse light that pulls a plain centroid to
    the middle. A point at depth w above a plane of sensors lights it as ``n ~ w / (r^2 + w^2)^1.5``,
    for which ``sum(n)^2 / sum(n^2) = 8 pi w^2 / (area of a sensor's cell)``. Light that misses the face makes w a
    fourth too small at 9 cm; ratios of solid angles of neighbours hardly notice.

    Args:
        light: Photons, shape (B, S), zero where not visible.
        visible: Which sensors can be looked at, shape (B, S).
    """
    ids = faces.index_map("inner").ravel()
    _, phi, z = geometry.cylindrical()
    seen = np.where(visible[:, ids], light[:, ids], 0.0).clip(min=0.0)
    total = seen.sum(axis=1, keepdims=True)
    share = np.divide(seen, total, out=np.full_like(seen, 1.0 / seen.shape[1]), where=total > 0)
    cell_cm2 = c.INNER_PITCH_Z_CM * c.REFERENCE_RADIUS_CM * math.radians(c.INNER_PITCH_DEG)
    squares = np.square(share)
    power = squares.sum(axis=1)
    peak = squares / power[:, np.newaxis]
    depth = np.sqrt(cell_cm2 / (8 * math.pi * power))
    uvw = np.column_stack([peak @ z[ids], peak @ (c.REFERENCE_RADIUS_CM * phi[ids]), depth])
    point: FloatArray = np.asarray(coordinates.uvw_to_xyz(uvw), dtype=np.float64)
    return point


def _solid_angles(points_cm: FloatArray, used: BoolArray) -> FloatArray:
    """Return solid angles of the sensors in ``used``, zero elsewhere, shape (B, S)."""
    result = np.zeros(used.shape)
    event, sensor = np.nonzero(used)
    offset = points_cm[event] - geometry.positions_cm()[sensor]
    normals = geometry.normals()[sensor]
    sipm = sensor < c.NUM_SIPMS
    values = np.empty(len(sensor))
    values[sipm] = solid_angle.sipm_fraction(offset[sipm], normals[sipm])
    values[~sipm] = solid_angle.disc_fraction(offset[~sipm], normals[~sipm], c.PMT_RADIUS_CM)
    result[event, sensor] = values
    return result


def _face_means(light: FloatArray, visible: BoolArray) -> FloatArray:
    """Return for every sensor the mean of the visible sensors of its face, shape (B, S); zero where none is."""
    face = faces.face_ids()
    members = np.eye(len(faces.FACES))[face]
    total, count = light @ members, visible.astype(np.float64) @ members
    means: FloatArray = np.divide(total, count, out=np.zeros_like(total), where=count > 0)[:, face]
    return means

"""Which sensors lie near which: the few hops of a graph of touching sensors, or a distance on the same face.

Neighbours never leave a face: sensors across an edge look into another direction and see other light.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from xectool.detector import constants as c
from xectool.detector import faces, geometry, hexgrid
from xectool.errors import UsageError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Cells of the common grid of the outer face: a coarse PMT covers 5 x 3 (z x azimuth), a centre PMT 3 x 2.
_COARSE_CELL, _CENTER_CELL = (5, 3), (3, 2)
_CENTER_PLACE = (slice(15, 30), slice(30, 42))


@dataclass(frozen=True)
class NeighbourTable:
    """Neighbours of every sensor, itself left out.

    Attributes:
        starts: Where each sensor's neighbours begin in ``members``, shape (S + 1,).
        members: Sensor ids, ascending for each sensor.
    """

    starts: IntArray
    members: IntArray

    def of(self, sensor: int) -> IntArray:
        """Return the neighbours of one sensor, ascending."""
        return self.members[self.starts[sensor] : self.starts[sensor + 1]]

    @property
    def counts(self) -> IntArray:
        """How many neighbours each sensor has, shape (S,)."""
        return np.diff(self.starts)

    def matrix(self) -> Any:
        """Return a sparse (S, S) matrix of ones; ``matrix @ values`` sums over neighbours."""
        shape = (c.NUM_SENSORS, c.NUM_SENSORS)
        return sparse.csr_array((np.ones(len(self.members)), self.members, self.starts), shape=shape)


@cache
def within_hops(hops: int) -> NeighbourTable:
    """Return the sensors reached in at most ``hops`` steps between sensors that touch.

    On the inner and the end faces a sensor touches the eight around it; on top and bottom the true hexagonal
    neighbours; on the outer face those whose areas share an edge or a corner, so coarse grid and centre are one graph.

    Args:
        hops: At least 1.

    Raises:
        UsageError: ``hops`` is below 1.
    """
    if hops < 1:
        raise UsageError(f"neighbours within {hops} hops do not exist", fix="give at least 1 hop")
    touching = _touching()
    reached = touching
    for _ in range(hops - 1):
        reached = ((reached @ touching) + reached).astype(bool)
    return _table(reached)


@cache
def within_distance(radius_cm: float) -> NeighbourTable:
    """Return the sensors of the same face closer than ``radius_cm`` in the ideal geometry."""
    return near(geometry.positions_cm(), radius_cm)


def near(positions_cm: npt.NDArray[np.floating], radius_cm: float) -> NeighbourTable:
    """Return the sensors of the same face whose centres are closer than ``radius_cm``.

    Args:
        positions_cm: Sensor positions, shape (S, 3).
        radius_cm: The distance itself is left out.
    """
    from scipy.spatial import cKDTree  # a fifth of a second, which a start without it need not spend

    pairs = cKDTree(positions_cm).query_pairs(radius_cm, output_type="ndarray")
    first, second = pairs.T
    face = faces.face_ids()
    apart = np.linalg.norm(positions_cm[first] - positions_cm[second], axis=1)
    kept = (face[first] == face[second]) & (apart < radius_cm)
    return _table(_symmetric(first[kept], second[kept]))


@cache
def _touching() -> Any:
    pairs = [_grid_pairs(faces.index_map(name)) for name in ("inner", "us", "ds")]
    pairs.append(_grid_pairs(_outer_owners()))
    source, target, kind = hexgrid.edge_index()
    for name in ("top", "bottom"):
        ids = faces.index_map(name)
        pairs.append(np.stack([ids[source[kind > 0]], ids[target[kind > 0]]]))
    first, second = np.concatenate(pairs, axis=1)
    return _symmetric(first, second)


def _outer_owners() -> IntArray:
    """Return which sensor covers each cell of the outer face, shape (45, 72)."""
    owners = _spread(faces.index_map("outer_coarse"), _COARSE_CELL)
    owners[_CENTER_PLACE] = _spread(faces.index_map("outer_center"), _CENTER_CELL)
    return owners


def _spread(ids: IntArray, cell: tuple[int, int]) -> IntArray:
    return ids.repeat(cell[0], axis=0).repeat(cell[1], axis=1)


def _grid_pairs(grid: IntArray) -> IntArray:
    """Return pairs of ids in cells that share an edge or a corner, shape (2, N)."""
    steps = (
        (grid[:, :-1], grid[:, 1:]),
        (grid[:-1], grid[1:]),
        (grid[:-1, :-1], grid[1:, 1:]),
        (grid[:-1, 1:], grid[1:, :-1]),
    )
    return np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in steps], axis=1)


def _symmetric(first: IntArray, second: IntArray) -> Any:
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    shape = (c.NUM_SENSORS, c.NUM_SENSORS)
    return sparse.coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=shape).tocsr()


def _table(matrix: Any) -> NeighbourTable:
    coordinates = sparse.coo_array(matrix)
    row, column = coordinates.coords
    other = row != column
    row, column = row[other].astype(np.int64), column[other].astype(np.int64)
    order = np.lexsort((column, row))
    starts = np.concatenate([[0], np.bincount(row, minlength=c.NUM_SENSORS).cumsum()]).astype(np.int64)
    members = column[order]
    starts.setflags(write=False)
    members.setflags(write=False)
    return NeighbourTable(starts, members)

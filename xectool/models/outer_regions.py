"""Where each outer sensor lies on the outer image, and which sensors each of its cells shows.

Axes: U outer sensors (234, ascending ids), G cells of the image (row-major), R most cells of one sensor, P most sensors
of one cell.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xectool.detector import faces
from xectool.detector.faces import IntArray
from xectool.models.outer_grid import (
    CENTER_CELL,
    CENTER_COLUMNS,
    CENTER_ROWS,
    COARSE_CELL,
    fine_owners,
    pooled_shape,
)
from xectool.models.resample import FloatArray, area_overlaps

BoolArray = npt.NDArray[np.bool_]
Pool = tuple[int, int] | None


def sensor_cells(geometry: str, pool: Pool) -> tuple[IntArray, BoolArray]:
    """Return the cells of each outer sensor, int64 (U, R), and which entries are cells, bool (U, R); the rest is 0."""
    touched = _overlaps(pool) > 0 if geometry == "physical" else _compat_regions(pool)
    return _padded(touched)


def sensor_shares(geometry: str, pool: Pool) -> FloatArray:
    """Return how much each cell counts for each outer sensor, (U, G).

    Physical rows sum to 1, as an image cell shows its sensor's own value. In the older geometry a cell shows the value
    over the number of the sensor's fine cells, so npho rows sum to that number; divide by it for the time.
    """
    if geometry == "physical":
        overlaps = _overlaps(pool)
        shares: FloatArray = overlaps / overlaps.sum(axis=1, keepdims=True)
        return shares
    regions = _compat_regions(pool)
    sums: FloatArray = regions / regions.sum(axis=1, keepdims=True) * compat_divisors()[:, None]
    return sums


def compat_divisors() -> FloatArray:
    """Return over how many fine cells the older geometry spreads the npho of each outer sensor, (U,)."""
    central = np.isin(faces.sensors("outer"), faces.index_map("outer_center"))
    divisors: FloatArray = np.where(central, float(np.prod(CENTER_CELL)), float(np.prod(COARSE_CELL)))
    return divisors


def cell_sensors(geometry: str, pool: Pool) -> IntArray:
    """Return the ids of the sensors that decide whether each cell is hidden, int64 (G, P); short rows repeat an id."""
    if geometry == "physical":
        local, used = _padded(_overlaps(pool).T > 0)
        local = np.where(used, local, local[:, :1])
        ids: IntArray = faces.sensors("outer")[local]
        return ids
    coarse = faces.index_map("outer_coarse", "compat").repeat(COARSE_CELL[0], axis=0).repeat(COARSE_CELL[1], axis=1)
    rows, columns = pooled_shape(pool)
    height, width = pool or (1, 1)
    blocks = coarse[: rows * height, : columns * width].reshape(rows, height, columns, width)
    return blocks.transpose(0, 2, 1, 3).reshape(rows * columns, height * width)


def _overlaps(pool: Pool) -> FloatArray:
    """Return how many fine cells of each outer sensor every cell of the physical image covers, (U, G)."""
    owners = fine_owners("physical").T
    rows, columns = pooled_shape(pool)[::-1]
    one_hot = (owners[..., None] == faces.sensors("outer")).astype(np.float64)
    shown = np.tensordot(area_overlaps(owners.shape[0], rows), one_hot, axes=(1, 0))
    by_cell: FloatArray = np.einsum("cb,rbu->urc", area_overlaps(owners.shape[1], columns), shown)
    return by_cell.reshape(len(by_cell), rows * columns)


def _compat_regions(pool: Pool) -> BoolArray:
    """Return which cells the older system reads each outer sensor from, bool (U, G)."""
    shape, ids = pooled_shape(pool), faces.sensors("outer")
    regions = np.zeros((len(ids), *shape), dtype=np.bool_)
    coarse, center = faces.index_map("outer_coarse", "compat"), faces.index_map("outer_center", "compat")
    for local, sensor in enumerate(ids):
        in_center = np.argwhere(center == sensor)
        if len(in_center):
            place, cell, origin = in_center[0], CENTER_CELL, (CENTER_ROWS.start, CENTER_COLUMNS.start)
        else:
            place, cell, origin = np.argwhere(coarse == sensor)[0], COARSE_CELL, (0, 0)
        rows, columns = (
            _span(origin[axis] + place[axis] * cell[axis], cell[axis], (pool or (1, 1))[axis], shape[axis])
            for axis in (0, 1)
        )
        regions[local, rows, columns] = True
    return regions.reshape(len(ids), -1)


def _span(first: int, length: int, pool: int, size: int) -> slice:
    start = min(first // pool, size - 1)
    return slice(start, min(max((first + length) // pool, start + 1), size))


def _padded(touched: BoolArray) -> tuple[IntArray, BoolArray]:
    """Return the indices of the true entries of each row, padded with 0 at the end, and which are no padding."""
    counts = touched.sum(axis=1)
    used = np.arange(counts.max()) < counts[:, None]
    indices = np.zeros(used.shape, dtype=np.int64)
    indices[used] = np.nonzero(touched)[1]
    return indices, used

"""Which sensors the inpainter's heads look at: boxes on images, rings on hexagons, nearest sensors in space.

Axes: S sensors (4760), P positions of a face, R most neighbours of a position, K neighbours of a sensor.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xectool.detector import faces, geometry, hexgrid
from xectool.detector.faces import IntArray
from xectool.errors import DataFileError
from xectool.models.resample import FloatArray

HOPS = 2
_TIE_MARGIN = 16
_TIE_CM = 1e-3
_WAVELENGTH_CM = 100.0


def box_neighbours(shape: tuple[int, int]) -> tuple[IntArray, IntArray]:
    """Return the neighbours of every cell of an image within two cells in row and column, row-major.

    Args:
        shape: Height and width.

    Returns:
        Cells (P, 24), padded with 0 at the end of a row, and how many are no padding (P,).
    """
    steps = range(-HOPS, HOPS + 1)
    height, width = shape
    lists = [
        [
            (row + down) * width + column + right
            for down in steps
            for right in steps
            if (down or right) and 0 <= row + down < height and 0 <= column + right < width
        ]
        for row in range(height)
        for column in range(width)
    ]
    return _padded(lists)


def hex_neighbours(geometry_name: str) -> tuple[IntArray, IntArray]:
    """Return the nodes at most two edges away from every node, ascending; as :func:`box_neighbours`, (73, 18)."""
    source, destination, _ = hexgrid.edge_index(geometry_name)
    touching = np.zeros((hexgrid.NUM_NODES, hexgrid.NUM_NODES), dtype=np.int64)
    touching[source, destination] = 1
    reached = np.linalg.matrix_power(touching, HOPS) > 0
    np.fill_diagonal(reached, False)
    return _padded([np.flatnonzero(row).tolist() for row in reached])


def nearest_sensors(positions_cm: FloatArray, k: int) -> IntArray:
    """Return the k sensors nearest to each, itself left out, nearest first, int64 (S, k).

    Sensors equally far to within 10 micrometres are ordered by id, so that the table does not depend on a library.

    Args:
        positions_cm: Shape (S, 3).
        k: K, below S.
    """
    from scipy.spatial import cKDTree  # a fifth of a second, which a start without it need not spend

    num = min(k + 1 + _TIE_MARGIN, len(positions_cm))
    distances, ids = cKDTree(positions_cm).query(positions_cm, k=num)
    distances = np.where(ids == np.arange(len(ids))[:, None], -1.0, np.round(distances / _TIE_CM))
    order = np.lexsort((ids, distances), axis=1)[:, 1 : k + 1]
    nearest: IntArray = np.take_along_axis(ids, order, axis=1).astype(np.int64)
    return nearest


def position_waves(positions_cm: Tensor, width: int) -> Tensor:
    """Return sines and cosines of each coordinate at wavelengths 200 cm, 100 cm, 50 cm ..., shape (S, width).

    In single precision, as in the older system: its phases reach 1e5, where the last digits show.

    Args:
        positions_cm: Shape (S, 3).
        width: A multiple of 6; x, y and z get one third each, first all sines, then all cosines.
    """
    bands = 2.0 ** torch.arange(width // 6, dtype=torch.float32) * (math.pi / _WAVELENGTH_CM)
    phases = positions_cm.float().unsqueeze(-1) * bands
    return torch.cat((phases.sin(), phases.cos()), dim=-1).flatten(1)


def sensor_positions(path: str | None) -> FloatArray:
    """Return positions in cm, shape (S, 3): of a text file with ``id x y z`` a line, or those of the ideal detector.

    Raises:
        DataFileError: The file cannot be read, or does not place every sensor once.
    """
    if path is None:
        return geometry.positions_cm()
    try:
        table = np.loadtxt(Path(path).expanduser(), ndmin=2, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise _bad_table(path, f"cannot read the sensor positions: {error}") from error
    if table.shape != (faces.NUM_SENSORS, 4) or not np.array_equal(np.sort(table[:, 0]), np.arange(faces.NUM_SENSORS)):
        raise _bad_table(path, f"the table has shape {table.shape}, not one line 'id x y z' for each of 4760 sensors")
    ordered: FloatArray = table[np.argsort(table[:, 0]), 1:]
    return ordered


def _bad_table(path: str, problem: str) -> DataFileError:
    return DataFileError(
        problem,
        where=f"model.sensor_positions_file: {path}",
        fix="--set model.sensor_positions_file=null   # the positions of the ideal detector",
        code="XT-DATA-POSITIONS",
    )


def _padded(lists: list[list[int]]) -> tuple[IntArray, IntArray]:
    counts = np.array([len(row) for row in lists], dtype=np.int64)
    table = np.zeros((len(lists), counts.max()), dtype=np.int64)
    table[np.arange(counts.max()) < counts[:, None]] = [index for row in lists for index in row]
    return table, counts

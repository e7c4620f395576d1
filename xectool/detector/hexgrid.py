"""The staggered PMT rows of the top and bottom faces, and which PMTs are neighbours.

Both faces have 73 nodes, numbered row by row from the inner to the outer side. Every row is centred on z = 0, so two
adjacent rows are always shifted by half a pitch, but to which side depends on their lengths, not on the row's parity.
The older system assumed alternating parity: its table misses 92 of the 366 true neighbour edges and has 84 false ones.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.detector.faces import check_geometry

ROW_LENGTHS: Final = c.HEX_ROW_LENGTHS
NUM_NODES: Final = c.NUM_HEX
EDGE_TYPES: Final = ("self", "left", "right", "inner_left", "inner_right", "outer_left", "outer_right")
"""Where the destination lies as seen from the source: left is towards -z, inner towards the target."""

_ROW_STEPS: Final = (0, 0, -1, -1, 1, 1)


@cache
def edge_index(geometry: str = "physical") -> npt.NDArray[np.int64]:
    """Return the directed edges of the 73-node graph, shape (3, E): rows source, destination, type; read-only.

    Edges are listed by source; the first of each source is its self edge (type 0), the others follow in the order of
    :data:`EDGE_TYPES`.

    Args:
        geometry: ``physical`` for the true neighbours (E = 439), ``compat`` for the older table (E = 431).

    Raises:
        UsageError: The geometry is unknown.
    """
    check_geometry(geometry)
    edges: list[tuple[int, int, int]] = []
    for row, length in enumerate(ROW_LENGTHS):
        for column in range(length):
            node = node_index(row, column)
            edges.append((node, node, 0))
            edges.extend((node, other, kind) for other, kind in _neighbours(row, column, geometry))
    table = np.array(edges, dtype=np.int64).T.copy()
    table.setflags(write=False)
    return table


def node_index(row: int, column: int) -> int:
    """Return the node number of a place on the face.

    >>> node_index(1, 0)
    11
    """
    return sum(ROW_LENGTHS[:row]) + column


@cache
def node_places() -> npt.NDArray[np.float64]:
    """Return each node's row number and its z offset from the middle in pitches, shape (73, 2), read-only."""
    places = [(row, column - (n - 1) / 2) for row, n in enumerate(ROW_LENGTHS) for column in range(n)]
    table = np.array(places, dtype=np.float64)
    table.setflags(write=False)
    return table


def _neighbours(row: int, column: int, geometry: str) -> list[tuple[int, int]]:
    shifts = _column_steps_true(row) if geometry == "physical" else _column_steps_parity(row)
    found = []
    for kind, (row_step, column_step) in enumerate(zip(_ROW_STEPS, shifts, strict=True), start=1):
        other_row, other_column = row + row_step, column + column_step
        if 0 <= other_row < len(ROW_LENGTHS) and 0 <= other_column < ROW_LENGTHS[other_row]:
            found.append((node_index(other_row, other_column), kind))
    return found


def _column_steps_true(row: int) -> tuple[int, ...]:
    # Column k of a row with L nodes lies at z = k - (L - 1) / 2, so half a pitch to the left in a row with L' nodes is
    # column k + (L' - L - 1) / 2, an integer because adjacent lengths differ by one.
    inner = (ROW_LENGTHS[row - 1] - ROW_LENGTHS[row] - 1) // 2 if row > 0 else 0
    outer = (ROW_LENGTHS[row + 1] - ROW_LENGTHS[row] - 1) // 2 if row + 1 < len(ROW_LENGTHS) else 0
    return (-1, 1, inner, inner + 1, outer, outer + 1)


def _column_steps_parity(row: int) -> tuple[int, ...]:
    return (-1, 1, -1, 0, -1, 0) if row % 2 == 0 else (-1, 1, 0, 1, 0, 1)

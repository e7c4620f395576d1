"""The neighbour table agrees with the distances between PMTs; the compat one with the older system."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.detector import faces, geometry, hexgrid
from xectool.errors import UsageError


def neighbours_by_distance(face: str) -> set[tuple[int, int]]:
    positions = geometry.positions_cm()[faces.index_map(face)]
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    # 6.12 within a row, 7.56 to the staggered rows; the next distance is 10.6 (rows are 6.91 apart, 1.5 pitches off).
    return {(int(a), int(b)) for a, b in np.argwhere((distance > 0) & (distance < 8.0))}


@pytest.mark.parametrize("face", ["top", "bottom"])
def test_physical_edges_are_the_true_neighbours(face: str) -> None:
    source, destination, kind = hexgrid.edge_index()
    edges = {(int(s), int(d)) for s, d in zip(source[kind > 0], destination[kind > 0], strict=True)}
    assert edges == neighbours_by_distance(face)
    assert len(edges) == 366


def test_every_node_has_one_self_edge() -> None:
    source, destination, kind = hexgrid.edge_index()
    assert np.array_equal(source[kind == 0], np.arange(hexgrid.NUM_NODES))
    assert np.array_equal(destination[kind == 0], np.arange(hexgrid.NUM_NODES))


def test_edge_types_say_the_direction() -> None:
    source, destination, kind = hexgrid.edge_index()
    step = hexgrid.node_places()[destination] - hexgrid.node_places()[source]
    expected = np.array([(0, 0), (0, -1), (0, 1), (-1, -0.5), (-1, 0.5), (1, -0.5), (1, 0.5)])
    assert np.array_equal(step, expected[kind])


def test_physical_edges_are_symmetric_with_opposite_types() -> None:
    opposite = (0, 2, 1, 6, 5, 4, 3)
    edges = {tuple(int(x) for x in edge) for edge in hexgrid.edge_index().T}
    assert {(d, s, opposite[k]) for s, d, k in edges} == edges


def test_compat_edges_equal_the_older_system(reference_dir: Path) -> None:
    units = np.load(reference_dir / "units.npz")
    assert np.array_equal(hexgrid.edge_index("compat"), units["geom_hex_edge_index"])


def test_compat_edges_miss_92_true_neighbours() -> None:
    source, destination, kind = hexgrid.edge_index("compat")
    edges = {(int(s), int(d)) for s, d in zip(source[kind > 0], destination[kind > 0], strict=True)}
    assert len(neighbours_by_distance("top") - edges) == 92


def test_unknown_geometry_is_refused() -> None:
    with pytest.raises(UsageError, match="geometry: physical"):
        hexgrid.edge_index("real")

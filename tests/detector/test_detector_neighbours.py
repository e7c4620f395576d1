from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.detector import faces, geometry
from xectool.detector.neighbours import NeighbourTable, near, within_distance, within_hops
from xectool.errors import UsageError

TABLES = [within_hops(1), within_hops(2), within_distance(20.0)]


@pytest.mark.parametrize("table", TABLES, ids=["1 hop", "2 hops", "20 cm"])
def test_neighbours_are_mutual_on_the_same_face_and_never_the_sensor_itself(table: NeighbourTable) -> None:
    matrix, face = table.matrix(), faces.face_ids()
    row, column = matrix.nonzero()
    assert (matrix != matrix.T).nnz == 0
    assert np.array_equal(face[row], face[column])
    assert not (row == column).any()
    assert all((np.diff(table.of(sensor)) > 0).all() for sensor in (0, 4100, 4755))


def test_a_sensor_inside_a_grid_touches_eight() -> None:
    assert within_hops(1).of(44 * 40 + 20).tolist() == [
        44 * 40 + 20 + step for step in (-45, -44, -43, -1, 1, 43, 44, 45)
    ]
    assert within_hops(2).counts[44 * 40 + 20] == 24


def test_every_sensor_has_a_neighbour() -> None:
    assert within_hops(1).counts.min() == 2  # corners of the top and bottom faces
    assert within_distance(20.0).counts.min() >= 2


def test_neighbours_on_the_outer_face_are_near_across_the_edge_of_the_centre() -> None:
    positions, table = geometry.positions_cm(), within_hops(1)
    for sensor in faces.sensors("outer"):
        apart = np.linalg.norm(positions[table.of(int(sensor))] - positions[sensor], axis=1)
        assert apart.max() < 16.0
    edge = faces.index_map("outer_center")[0, 0]
    assert set(table.of(int(edge))) - set(faces.index_map("outer_center").ravel().tolist())


def test_hexagonal_neighbours_lie_one_pitch_away() -> None:
    positions, table = geometry.positions_cm(), within_hops(1)
    for sensor in faces.sensors("top"):
        apart = np.linalg.norm(positions[table.of(int(sensor))] - positions[sensor], axis=1)
        assert apart.max() < 8.0


@pytest.mark.parametrize("hops", [1, 2])
def test_grids_agree_with_the_older_tables_where_those_are_right(reference_dir: Path, hops: int) -> None:
    older = np.load(reference_dir / "units.npz")[f"geom_khop{hops}"]
    table, positions = within_hops(hops), geometry.positions_cm()
    right = np.isin(faces.face_ids(), [faces.FACES.index(face) for face in ("inner", "us", "ds")])
    # The older outer table has two separate grids; away from the centre they cannot differ.
    centre = positions[faces.index_map("outer_center").ravel()]
    far = np.linalg.norm(positions[:, None] - centre[None], axis=-1).min(axis=1) > 25.0 * hops
    right |= far & (faces.face_ids() == faces.FACES.index("outer"))
    for sensor in np.flatnonzero(right):
        assert table.of(int(sensor)).tolist() == [other for other in older[sensor] if other >= 0]


def test_distances_agree_with_the_older_counts(reference_dir: Path) -> None:
    table = np.genfromtxt(reference_dir / "sensor_directions.txt")
    expected = np.load(reference_dir / "units.npz")["bl_nbr_counts"]
    assert np.array_equal(near(table[:, 4:7], 20.0).counts, expected)


def test_zero_hops_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 hop"):
        within_hops(0)

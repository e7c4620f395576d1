"""Faces partition the sensors, and the maps follow the detector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.detector import faces, geometry
from xectool.errors import UsageError

SHAPES = {
    "inner": (93, 44),
    "us": (24, 6),
    "ds": (24, 6),
    "outer_coarse": (9, 24),
    "outer_center": (5, 6),
    "top": (73,),
    "bottom": (73,),
}


@pytest.mark.parametrize("geometry_name", faces.GEOMETRIES)
@pytest.mark.parametrize("name", faces.INDEX_MAPS)
def test_a_map_has_its_shape_and_no_sensor_twice(name: str, geometry_name: str) -> None:
    ids = faces.index_map(name, geometry_name)
    assert ids.shape == SHAPES[name]
    assert ids.dtype == np.int64
    assert np.unique(ids).size == ids.size
    assert not ids.flags.writeable


def test_faces_partition_the_sensors() -> None:
    sizes = {face: faces.sensors(face).size for face in faces.FACES}
    assert sizes == {"inner": 4092, "us": 144, "ds": 144, "outer": 234, "top": 73, "bot": 73}
    everything = np.concatenate([faces.sensors(face) for face in faces.FACES])
    assert np.array_equal(np.sort(everything), np.arange(faces.NUM_SENSORS))


def test_coarse_and_centre_maps_cover_the_outer_face() -> None:
    both = np.union1d(faces.index_map("outer_coarse"), faces.index_map("outer_center"))
    assert np.array_equal(both, faces.sensors("outer"))


def test_compat_maps_equal_the_older_system(reference_dir: Path) -> None:
    units = np.load(reference_dir / "units.npz")
    names = {name: name for name in ("inner", "us", "ds", "outer_center")} | {"outer_coarse": "outer_coarse_full"}
    for ours, theirs in names.items():
        assert np.array_equal(faces.index_map(ours, "compat"), units[f"geom_{theirs}_index_map"]), ours
    assert np.array_equal(faces.sensors("outer"), units["geom_outer_all_sensor_ids"])
    assert np.array_equal(faces.face_ids(), units["geom_face_ids"])


@pytest.mark.parametrize(("axis", "pitch_cm"), [(0, 10.36), (1, 9.70)])
def test_physical_outer_map_puts_neighbours_beside_each_other(axis: int, pitch_cm: float) -> None:
    positions = geometry.positions_cm()[faces.index_map("outer_coarse")]
    centre = np.isin(faces.index_map("outer_coarse"), faces.index_map("outer_center"))
    steps = np.linalg.norm(np.diff(positions, axis=axis), axis=-1)
    kept = ~(np.delete(centre, -1, axis) | np.delete(centre, 0, axis))
    assert np.allclose(steps[kept], pitch_cm, atol=0.02)


def test_compat_outer_map_is_scrambled() -> None:
    positions = geometry.positions_cm()[faces.index_map("outer_coarse", "compat")]
    assert np.median(np.linalg.norm(np.diff(positions, axis=0), axis=-1)) > 40


def test_physical_centre_replaces_the_cells_it_covers() -> None:
    coarse, centre = faces.index_map("outer_coarse"), faces.index_map("outer_center")
    shared = np.intersect1d(coarse, centre)
    assert np.array_equal(np.sort(coarse[3:6, 10:14].ravel()), shared)


def test_unknown_map_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'outer_center'"):
        faces.index_map("outer_centre")


def test_unknown_face_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'outer'"):
        faces.sensors("outter")


def test_unknown_geometry_shows_the_line_to_write() -> None:
    with pytest.raises(UsageError, match="geometry: physical"):
        faces.index_map("inner", "exact")

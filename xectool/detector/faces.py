"""Which sensor sits where: faces, and the grids that show a face as an image.

Sensors 0..4091 are the SiPMs of the inner face, row by row; the PMTs follow: coarse outer face, upstream, downstream,
top, bottom, and last the 18 extra PMTs of the outer centre.

Two geometries exist. ``physical`` follows the detector. ``compat`` repeats the older system, which reads the coarse
outer face as 9 rows of 24 although the numbering runs 9 positions along z for each of 24 azimuths; its checkpoints
need that layout.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.errors import UsageError, did_you_mean

NUM_SENSORS: Final = c.NUM_SENSORS
FACES: Final = ("inner", "us", "ds", "outer", "top", "bot")
"""Face names; the position of a name is the face's number in :func:`face_ids`."""
GEOMETRIES: Final = ("physical", "compat")
INDEX_MAPS: Final = ("inner", "us", "ds", "outer_coarse", "outer_center", "top", "bottom")

# Rows run along azimuth from top to bottom, columns along z from upstream to downstream.
_OUTER_CENTER: Final = (
    (4185, 4742, 4186, 4743, 4187),
    (4744, 4745, 4746, 4747, 4748),
    (4194, 4749, 4195, 4750, 4196),
    (4203, 4751, 4204, 4752, 4205),
    (4753, 4754, 4755, 4756, 4757),
    (4212, 4758, 4213, 4759, 4214),
)

IntArray: TypeAlias = npt.NDArray[np.int64]


@cache
def index_map(name: str, geometry: str = "physical") -> IntArray:
    """Return the sensor ids of one face, laid out as its image, read-only.

    Args:
        name: One of :data:`INDEX_MAPS`.
        geometry: ``physical``, or ``compat`` for the older system's layout. They differ for ``outer_coarse`` only.

    Returns:
        int64 ids: inner (93, 44), us and ds (24, 6), outer_coarse (9, 24), outer_center (5, 6), top and bottom (73,).
        The physical outer maps have z along the rows and azimuth along the columns.

    Raises:
        UsageError: The name or the geometry is unknown.
    """
    if name not in INDEX_MAPS:
        raise UsageError(
            f"there is no index map '{name}'",
            fix=did_you_mean(name, INDEX_MAPS) or f"use one of {', '.join(INDEX_MAPS)}",
        )
    check_geometry(geometry)
    if name == "outer_coarse":
        return _frozen(_outer_coarse(geometry))
    if name == "outer_center":
        return _frozen(np.array(_OUTER_CENTER, dtype=np.int64).T)
    first, shape = {
        "inner": (0, c.INNER_SHAPE),
        "us": (c.US_FIRST, c.END_SHAPE),
        "ds": (c.DS_FIRST, c.END_SHAPE),
        "top": (c.TOP_FIRST, (c.NUM_HEX,)),
        "bottom": (c.BOTTOM_FIRST, (c.NUM_HEX,)),
    }[name]
    return _frozen(first + np.arange(np.prod(shape), dtype=np.int64).reshape(shape))


def check_geometry(geometry: str) -> None:
    """Refuse a geometry that does not exist.

    Raises:
        UsageError: The geometry is neither ``physical`` nor ``compat``.
    """
    if geometry not in GEOMETRIES:
        raise UsageError(
            f"there is no geometry '{geometry}'",
            where="model.geometry",
            fix="geometry: physical   # or compat, for checkpoints of the older system",
        )


def _outer_coarse(geometry: str) -> IntArray:
    rows, columns = c.OUTER_SHAPE
    ids = c.OUTER_FIRST + np.arange(rows * columns, dtype=np.int64)
    if geometry == "compat":
        return ids.reshape(columns, rows)
    return ids.reshape(rows, columns).T


def _frozen(ids: IntArray) -> IntArray:
    ids = np.ascontiguousarray(ids)
    ids.setflags(write=False)
    return ids


@cache
def face_ids() -> IntArray:
    """Return the face number of every sensor, shape (4760,), read-only; see :data:`FACES`."""
    ids = np.full(c.NUM_SENSORS, FACES.index("outer"), dtype=np.int64)
    for face in FACES:
        if face != "outer":
            ids[index_map("bottom" if face == "bot" else face)] = FACES.index(face)
    return _frozen(ids)


@cache
def sensors(face: str) -> IntArray:
    """Return the ascending sensor ids of one face, read-only; the outer face has 234.

    Raises:
        UsageError: The face is unknown.
    """
    if face not in FACES:
        raise UsageError(
            f"there is no face '{face}'", fix=did_you_mean(face, FACES) or f"use one of {', '.join(FACES)}"
        )
    return _frozen(np.flatnonzero(face_ids() == FACES.index(face)))

"""Sensor outlines on the unrolled detector, from the same geometry everything else uses.

x runs along -z (upstream on the right), y along the azimuth at the inner radius (top of the detector up), both in cm;
the end, top and bottom faces are folded out around the inner face, the outer face stands to the right.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c
from xectool.detector import faces, geometry

FloatArray = npt.NDArray[np.float64]

GAP_CM = 4.0
HALF_Z_CM = c.INNER_SHAPE[1] * c.INNER_PITCH_Z_CM / 2
HALF_V_CM = np.radians(c.INNER_SPAN_DEG / 2) * c.REFERENCE_RADIUS_CM
END_WIDTH_CM = c.END_SHAPE[1] * c.END_PITCH_CM
OUTER_HALF_Z_CM = c.OUTER_SHAPE[1] * c.OUTER_PITCH_Z_CM / 2
HEX_HEIGHT_CM = len(c.HEX_ROW_LENGTHS) * c.HEX_PITCH_RADIUS_CM
OUTER_X_CM = HALF_Z_CM + END_WIDTH_CM + 3 * GAP_CM + OUTER_HALF_Z_CM

#: Where the name of each face is written.
FACE_LABELS: dict[str, tuple[float, float]] = {
    "downstream": (-HALF_Z_CM - GAP_CM - END_WIDTH_CM / 2, HALF_V_CM + 1),
    "upstream": (HALF_Z_CM + GAP_CM + END_WIDTH_CM / 2, HALF_V_CM + 1),
    "inner": (0.0, HALF_V_CM + 0.2),
    "top": (0.0, HALF_V_CM + 2 * GAP_CM + HEX_HEIGHT_CM + 1),
    "bottom": (0.0, -HALF_V_CM - 2 * GAP_CM - HEX_HEIGHT_CM - 7),
    "outer": (OUTER_X_CM, HALF_V_CM + 1),
}
#: left, right, bottom, top.
OUTLINE_CM = (
    -HALF_Z_CM - GAP_CM - END_WIDTH_CM - 2,
    OUTER_X_CM + OUTER_HALF_Z_CM + 2,
    -HALF_V_CM - 2 * GAP_CM - HEX_HEIGHT_CM - 8,
    HALF_V_CM + 2 * GAP_CM + HEX_HEIGHT_CM + 8,
)


@cache
def polygons() -> tuple[FloatArray, ...]:
    """Return the outline of every sensor in the order of ids, each of shape (corners, 2), cm."""
    found: list[FloatArray] = [np.empty((0, 2))] * c.NUM_SENSORS
    for ids, centre, shape in (_inner(), *_ends(), *_outer(), *_hexagons()):
        for sensor, point in zip(ids, centre, strict=True):
            found[sensor] = point + shape
    return tuple(found)


Group = tuple[npt.NDArray[np.int64], FloatArray, FloatArray]


def _rectangle(width: float, height: float) -> FloatArray:
    return 0.5 * np.array([(-width, -height), (width, -height), (width, height), (-width, height)])


def _inner() -> Group:
    _, phi, z = geometry.cylindrical()
    ids = faces.index_map("inner").ravel()
    pitch_v = np.radians(c.INNER_PITCH_DEG) * c.REFERENCE_RADIUS_CM
    centre = np.stack([-z[ids], c.REFERENCE_RADIUS_CM * phi[ids]], axis=1)
    return ids, centre, _rectangle(c.INNER_PITCH_Z_CM, pitch_v)


def _ends() -> list[Group]:
    radius, phi, z = geometry.cylindrical()
    groups = []
    for face in ("us", "ds"):
        ids = faces.index_map(face).ravel()
        along = (radius[ids] - c.END_FIRST_RADIUS_CM) / c.END_PITCH_RADIUS_CM * c.END_PITCH_CM + c.END_PITCH_CM / 2
        x = -np.sign(z[ids]) * (HALF_Z_CM + GAP_CM + along)
        shape = _rectangle(c.END_PITCH_CM, np.radians(c.PMT_PITCH_DEG) * c.REFERENCE_RADIUS_CM)
        groups.append((ids, np.stack([x, c.REFERENCE_RADIUS_CM * phi[ids]], axis=1), shape))
    return groups


def _outer() -> list[Group]:
    _, phi, z = geometry.cylindrical()
    centre_ids = faces.index_map("outer_center").ravel()
    coarse_ids = np.setdiff1d(faces.index_map("outer_coarse").ravel(), centre_ids)
    sizes = ((c.OUTER_PITCH_Z_CM, c.PMT_PITCH_DEG), (c.OUTER_CENTER_PITCH_Z_CM, c.OUTER_CENTER_PITCH_DEG))
    groups = []
    for ids, (width, height_deg) in zip((coarse_ids, centre_ids), sizes, strict=True):
        centre = np.stack([OUTER_X_CM - z[ids], c.REFERENCE_RADIUS_CM * phi[ids]], axis=1)
        groups.append((ids, centre, _rectangle(width, np.radians(height_deg) * c.REFERENCE_RADIUS_CM)))
    return groups


def _hexagons() -> list[Group]:
    radius, _, z = geometry.cylindrical()
    turn = np.radians(30 + 60 * np.arange(6))
    shape = np.stack([np.cos(turn), np.sin(turn)], axis=1) * (c.HEX_PITCH_Z_CM / np.sqrt(3))
    # Stretched to the row pitch: the sensors are packed a little looser than regular hexagons along the radius.
    shape[:, 1] *= c.HEX_PITCH_RADIUS_CM / (c.HEX_PITCH_Z_CM * np.sqrt(3) / 2)
    groups = []
    for face, side in (("top", 1.0), ("bottom", -1.0)):
        ids = faces.index_map(face).ravel()
        outwards = radius[ids] - c.HEX_FIRST_RADIUS_CM + c.HEX_PITCH_RADIUS_CM / 2
        y = side * (HALF_V_CM + 2 * GAP_CM + outwards)
        groups.append((ids, np.stack([-z[ids], y], axis=1), shape))
    return groups

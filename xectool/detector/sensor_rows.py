"""Whether the rows of a face begin where the numbering says: one sensor too many in front moves all that follow.

Sensors next to each other in a row see the same light; the last of a row and the first of the next lie at opposite ends
of the face and do not. Where that break lies tells where the rows begin, to one sensor.

Axes: B events, S sensors.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector import constants as c

Array = npt.NDArray[Any]
ROWS: Final = {"inner": (0, c.INNER_SHAPE), "outer": (c.OUTER_FIRST, c.OUTER_SHAPE)}
"""First sensor and shape of the faces whose rows are long enough for a clear break."""
# 0.18 to 0.23 on the inner face, 0.5 to 0.65 on the outer: three seeds, half piled up, 30 % dead, 24 events.
LEAST_CONTRAST: Final = 0.1


def displaced_rows(npho: Array) -> str:
    """Return which face's rows begin elsewhere and by how many sensors, or an empty string.

    Args:
        npho: Photons, raw, shape (B, S); dead, invalid and negative channels count as unknown.
    """
    for face, (first, (rows, columns)) in ROWS.items():
        likeness = _likeness(npho[:, first : first + rows * columns]).reshape(rows, columns)
        known = np.asarray(np.isfinite(likeness).any(axis=0))
        if known.sum() < columns // 2 or not known[-1]:
            continue
        of_column = np.full(columns, np.inf)
        of_column[known] = np.nanmedian(likeness[:, known], axis=0)
        least, second = np.partition(of_column, 1)[:2]
        after = (int(of_column.argmin()) + 1) % columns
        # Sensors without light are unlike those beside them as well; no other fault makes the ends of rows alike.
        if after and min(second - least, of_column[-1]) >= LEAST_CONTRAST:
            shift = after if after <= columns // 2 else after - columns
            count = f"{abs(shift)} sensor" + "s" * (abs(shift) > 1)
            return f"the rows of the {face} face begin {count} too {'late' if shift > 0 else 'early'}"
    return ""


def _likeness(npho: Array) -> Array:
    """Return how well each sensor foretells the next, as a correlation over events; NaN where one is dead, and last."""
    valid = (npho >= 0) & (npho < c.UNKNOWN_ABOVE)
    level = np.log1p(np.where(valid, npho, 0.0).astype(np.float64))
    level = np.where(valid, level - level.sum(axis=1, keepdims=True) / np.maximum(valid.sum(axis=1), 1)[:, None], 0.0)
    level -= level.mean(axis=0)
    spread = np.sqrt(np.square(level).mean(axis=0))
    usable = (2 * valid.sum(axis=0) > len(npho)) & (spread > 0)
    both = usable[:-1] & usable[1:]
    found = np.full(npho.shape[1], np.nan)
    products = (level[:, :-1] * level[:, 1:]).mean(axis=0)
    found[:-1][both] = products[both] / (spread[:-1] * spread[1:])[both]
    return found

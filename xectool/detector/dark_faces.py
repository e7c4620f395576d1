"""Faces that are off: next to nothing of the light of an event, where each face of a live detector has its share.

Axes: S sensors.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector import constants, faces

Array = npt.NDArray[Any]
LEAST_SHARE: Final = 1e-3
"""Of the light of an event. The smallest faces, top and bottom, have 0.007 to 0.15 of it wherever the event lies;
electronics without high voltage add noise that is 3e-4 at 15 MeV."""


def dark_faces(npho: Array) -> frozenset[str]:
    """Return the faces without light, none where there is no light at all.

    Args:
        npho: Photons, raw, shape (S,); dead and invalid channels count as dark, noise below zero cancels that above.
    """
    readings = np.where(np.abs(npho) < constants.UNKNOWN_ABOVE, npho, 0.0)
    sums = np.bincount(faces.face_ids(), weights=readings, minlength=len(faces.FACES))
    least = LEAST_SHARE * sums.sum()
    return frozenset(name for name, light in zip(faces.FACES, sums, strict=True) if least > 0 and light < least)

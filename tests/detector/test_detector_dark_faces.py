"""Faces without light."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.detector import constants, faces
from xectool.detector.dark_faces import dark_faces


def test_a_face_without_light_is_named_and_one_with_its_share_is_not() -> None:
    npho = np.full(constants.NUM_SENSORS, 100.0)
    assert dark_faces(npho) == frozenset()
    npho[list(faces.sensors("us"))] = 1e10
    assert dark_faces(npho) == {"us"}


@pytest.mark.parametrize("level", [0.0, -3.0, 1e10])
def test_where_there_is_no_light_at_all_no_face_is_off(level: float) -> None:
    """A sum below zero, of noise or a pedestal, made each face with more than its share of it dark or lit by chance."""
    npho = np.full(constants.NUM_SENSORS, level)
    npho[:500] -= 2.0 * (level < 0)
    assert dark_faces(npho) == frozenset()

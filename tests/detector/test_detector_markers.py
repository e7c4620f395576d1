"""A foreign marker of "no reading" is told from readings of another unit, that are quantised or saturated too."""

from __future__ import annotations

import numpy as np
import pytest
from xectool.detector.markers import marker_words, markers_in

RNG = np.random.default_rng(3)
TIMES = RNG.uniform(-2e-9, 1.2e-8, (20, 4760)).astype(np.float32)
NPHO = (RNG.exponential(200, (20, 4760)) - RNG.exponential(5, (20, 4760))).astype(np.float32)
DARK = RNG.random((20, 4760)) < 0.7
DEAD = np.arange(4760) % 100 == 7


@pytest.mark.parametrize("number", [-1.0, -99.0, -999.0, -9999.0, -999.9, 999.0, -1e6, -12345.5, -3.4028235e38])
@pytest.mark.parametrize("factor", [1.0, 1e6, 1e9, 1e12])
def test_a_marker_is_known_in_any_unit_of_time(number: float, factor: float) -> None:
    values = np.where(DARK, np.float32(number), TIMES * np.float32(factor))
    assert [float(np.float32(found)) for found in markers_in(values, "time")] == [float(np.float32(number))]


@pytest.mark.parametrize("number", [-99.0, -999.0, -9999.0, -1e10])
def test_a_marker_of_dead_sensors_alone_is_known(number: float) -> None:
    for channel, values in (("npho", NPHO), ("time", TIMES)):
        assert markers_in(np.where(DEAD, np.float32(number), values), channel) == [number]


def test_two_markers_are_both_known() -> None:
    values = np.where(DEAD, np.float32(-9999), np.where(DARK, np.float32(-999), TIMES * np.float32(1e9)))
    assert markers_in(values, "time") == [-999.0, -9999.0]


@pytest.mark.parametrize("marker", [1e10, np.nan, 0.0])
def test_what_is_known_already_is_no_foreign_marker(marker: float) -> None:
    for factor in (1.0, 1e9):
        assert markers_in(np.where(DARK, np.float32(marker), TIMES * np.float32(factor)), "time") == []
    assert markers_in(np.where(DEAD, np.float32(marker), NPHO), "npho") == []


def test_readings_are_no_markers() -> None:
    """Whole numbers, the ends of a range, one damaged reading, and a stretch of bytes that are alike."""
    steps = np.round(TIMES * np.float32(1e9))
    for values in (steps, np.clip(steps, -1, 10), np.clip(TIMES * np.float32(1e12), -1000, 9999)):
        assert markers_in(values, "time") == []
    ends = np.clip(NPHO * np.float32(1e5), np.float32(-1e5), np.float32(4e6))
    for values in (np.round(NPHO), np.clip(NPHO, -1, 999), ends):
        assert markers_in(values, "npho") == []
    damaged = TIMES.copy()
    damaged[3, 5] = -999
    damaged[7, 200:1200] = 12.078
    assert markers_in(damaged, "time") == []


def test_a_marker_is_written_as_it_was_typed() -> None:
    assert [marker_words(float(np.float32(number))) for number in (-999, -999.9, 1e6)] == ["-999", "-999.9", "1000000"]

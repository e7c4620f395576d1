"""Robust statistics of step series."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import theilslopes
from xectool.diagnosis.evidence.statistics import MAX_SLOPE_POINTS, slope


@pytest.mark.parametrize("count", [2, 3, 50, MAX_SLOPE_POINTS])
def test_slope_is_that_of_theil_and_sen(count: int) -> None:
    """Also where places repeat; one wild value in fifty moves a least-squares slope by far and this one hardly."""
    random = np.random.default_rng(count)
    for x in (np.arange(count, dtype=np.float64), np.r_[0.0, random.integers(1, 5, count - 1)]):
        y = 2.0 * x + random.normal(size=count)
        assert slope(x, y) == theilslopes(y, x).slope
    x = np.arange(50.0)
    y = 2.0 * x
    y[-1] = 1e6
    assert slope(x, y) == 2.0
    assert np.polyfit(x, y, 1)[0] > 100


def test_a_single_place_has_no_slope() -> None:
    assert slope(np.ones(5), np.arange(5.0)) == 0.0

"""The sums of the readings of every sensor against their definition."""

import numpy as np
from xectool.checks.sums import SensorSums
from xectool.detector.constants import NUM_SENSORS
from xectool.engine.data_report import _read


def test_sums_take_the_valid_readings_only() -> None:
    rng = np.random.default_rng(7)
    sums, seen, known = SensorSums(), [], []
    for rows in (3, 64, 1):
        values = rng.normal(-1e-7, 1e-7, (rows, NUM_SENSORS)).astype(np.float32)
        valid = rng.random(values.shape) < 0.6
        valid[:, 5] = False
        values[~valid] = rng.choice(np.array([np.nan, np.inf, -np.inf, 1e10, -5, 0], np.float32), (~valid).sum())
        low, high, shown = sums.add(values, valid)
        masked = np.ma.masked_array(values.astype(np.float64), ~valid)
        np.testing.assert_array_equal(low, masked.min(axis=0).filled(np.inf).astype(np.float32))
        np.testing.assert_array_equal(high, masked.max(axis=0).filled(-np.inf).astype(np.float32))
        np.testing.assert_array_equal(shown, masked.filled(0).astype(np.float32))
        seen.append(masked)
        known.append(valid)
    together = np.ma.concatenate(seen)
    assert sums.events == 68
    np.testing.assert_array_equal(sums.valid, np.concatenate(known).sum(axis=0))
    np.testing.assert_allclose(sums.sum, together.sum(axis=0).filled(0), atol=2e-11)
    np.testing.assert_allclose(sums.squares, (together**2).sum(axis=0).filled(0), rtol=1e-5)
    assert np.isinf(sums.lowest[5])
    assert np.isinf(sums.highest[5])
    assert sums.mean[5] == 0


def test_a_sample_of_all_events_leaves_no_basket_unread() -> None:
    assert "all events" in _read(100, 100, deep=False)
    assert "unread" not in _read(100, 100, deep=False)
    assert "not sampled are unread" in _read(64, 100, deep=False)
    assert _read(64, 100, deep=True) == "every basket was read"

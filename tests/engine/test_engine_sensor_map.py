"""The readings a training shows to the sensor map as it predicts."""

from __future__ import annotations

import numpy as np
import torch
from xectool.checks.health import HealthScan
from xectool.data.batch import EventBatch
from xectool.engine.sensor_map import scanned


def batch(npho: np.ndarray, start: int) -> EventBatch:
    numbers = np.arange(start, start + len(npho))
    return EventBatch(
        torch.from_numpy(npho), torch.zeros(npho.shape), {}, torch.ones(len(npho)), np.zeros(len(npho), np.int32),
        numbers, numbers, numbers, epoch=0, step=0,
    )  # fmt: skip


def test_states_come_from_the_readings_of_all_batches() -> None:
    rng = np.random.default_rng(5)
    npho = rng.poisson(40, (120, 4760)).astype(np.float32)
    npho[:, 17] = 1e10  # no reading
    npho[:, 1200] = 12.0  # says the same in every event
    npho[:, 3000] += 5000
    npho[::2, 40] = np.nan
    scan = HealthScan()
    batches = [batch(npho[start : start + 25], start) for start in range(0, 120, 25)]
    predicted = [(one, {}) for one in (*batches, batch(npho[:0], 120))]
    assert [pair[0].num_events for pair in scanned(iter(predicted), scan)] == [25, 25, 25, 25, 20, 0]
    health = scan.health()
    assert (health.events, health.judged) == (120, True)
    assert (health.of("dead"), health.of("constant"), health.of("hot")) == ([17], [1200], [3000])
    assert health.valid_share[[17, 40, 50]].tolist() == [0.0, 0.5, 1.0]

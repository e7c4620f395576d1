"""What is far from the rest of a batch of few events: one other event has no spread of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xectool.diagnosis.cases.incident_batch import outlier_lines


@pytest.mark.parametrize(
    ("bright", "others", "named"),
    [
        (3.9e4, [5.1e3], False),  # an ordinary bright event was "far off", so the data were blamed for a loss
        (3.9e4, [5.1e3, 5.11e3], False),
        (1e9, [5.1e3], True),
        (1e9, [5.1e3, 5.11e3], True),
        (3.9e4, [5.1e3, 5.2e3, 5.0e3, 5.1e3, 5.3e3, 4.9e3, 5.1e3, 5.2e3], True),
    ],
)
def test_few_other_events_do_not_make_an_ordinary_one_far(
    tmp_path: Path, bright: float, others: list[float], named: bool
) -> None:
    light = np.array([bright, *others])
    rows = np.arange(len(light))
    identity = dict.fromkeys(("file_index", "entry", "run", "event"), rows)
    npho = np.stack([light, np.ones_like(light)], axis=1)
    np.savez(tmp_path / "batch.npz", npho=npho, **identity)
    assert bool(outlier_lines(tmp_path, ((0, 0, 0, 0),))) is named

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


@pytest.mark.parametrize(("truth", "named"), [(20.0, False), (-999.0, True), (2e4, True)])
def test_a_truth_near_zero_beside_one_other_is_no_scale(tmp_path: Path, truth: float, named: bool) -> None:
    """Of a signed truth the size of the one other event tells nothing: 20 cm were "far" from 0.1 cm."""
    rows = np.arange(2)
    identity = dict.fromkeys(("file_index", "entry", "run", "event"), rows)
    targets = np.array([[truth, 1.0, 3.0], [0.1, 1.0, 3.0]])
    np.savez(tmp_path / "batch.npz", targets_uvwFI=targets, **identity)
    lines = outlier_lines(tmp_path, ((0, 0, 0, 0),))
    assert [line.split(" is ")[0] for line in lines] == ["target uvwFI[0]"] * named

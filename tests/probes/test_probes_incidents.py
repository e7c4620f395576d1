"""The events of an incident come back as the micro-batches they were."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from xectool.data.batch import EventBatch
from xectool.probes.repetition.incidents import incident_window
from xectool.training.record.incidents import IncidentFolders

SIZES = [3, 1, 4]  # as the ranks of a run get them: neither full nor alike


def batch(size: int, step: int) -> EventBatch:
    values, numbers = torch.full((size, 4760), float(step)), np.arange(size)
    return EventBatch(
        values, values, {}, torch.ones(size), numbers.astype(np.int32), numbers, numbers, numbers, 2, step
    )


@pytest.mark.parametrize("told", [True, False])
def test_micro_batches_of_any_size_come_back_where_the_incident_tells_their_sizes(tmp_path: Path, told: bool) -> None:
    window = [batch(size, 5 + place) for place, size in enumerate(SIZES)]
    facts: dict[str, Any] = {"batch_start": 5, "batch_stop": 8, "epoch": 2} | ({"batch_events": SIZES} if told else {})
    folder = tmp_path / IncidentFolders(tmp_path, most=9, attempt=1).write(facts, window)
    history: Any = SimpleNamespace(config=SimpleNamespace(data=SimpleNamespace(batch_size=4)))
    found = incident_window(history, folder / "batch.npz", json.loads((folder / "incident.json").read_text()))
    assert [one.num_events for one in found] == (SIZES if told else [sum(SIZES)])
    for one, own in zip(found, window, strict=True) if told else ():
        assert torch.equal(one.npho, own.npho)
        assert one.step == own.step

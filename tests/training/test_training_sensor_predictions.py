from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from xectool.config.normalization import NormalizationConfig
from xectool.data.batch import EventBatch
from xectool.detector import faces
from xectool.models.normalize import Normalizer
from xectool.rootio.reader import EventFile
from xectool.tasks.base import Outputs
from xectool.tasks.masked_batch import MaskedBatch
from xectool.training.predicting import sensors as sensor_predictions
from xectool.training.predicting.sensors import (
    BRANCHES,
    MaskType,
    SensorPredictionResult,
    SensorPredictionRun,
    write_sensor_predictions,
)

BATCH = 20


class FakeTask:
    """Hides every 20th sensor and asks for the dead ones; predicts the truth of npho times two."""

    channels: tuple[str, ...] = ("npho",)

    def __init__(self) -> None:
        self.normalizer = Normalizer(NormalizationConfig(npho_scheme="linear"))

    def prepare(self, batch: EventBatch) -> MaskedBatch:
        x, valid = self.normalizer.normalize(batch.npho, batch.time)
        mask = torch.zeros_like(batch.npho, dtype=torch.bool)
        mask[:, ::20] = True
        return MaskedBatch.of(batch, mask | ~valid[..., 0], x, valid)

    def reconstruction(self, outputs: Outputs) -> Tensor:
        return outputs["sensors"]


def batches(num_events: int) -> Iterator[tuple[EventBatch, Outputs]]:
    npho = torch.arange(BATCH * 4760, dtype=torch.float32).reshape(BATCH, 4760) % 997
    time = torch.full((BATCH, 4760), 2e-9)
    npho[:, 7] = 1e10
    for start in range(0, num_events, BATCH):
        entry = np.arange(start, start + BATCH)
        batch = EventBatch(
            npho,
            time,
            {},
            torch.ones(BATCH),
            np.full(BATCH, 3, np.int32),
            entry,
            np.full(BATCH, 430000),
            entry + 5,
            0,
            0,
        )
        yield batch, {"sensors": 2 * npho.unsqueeze(-1) / 1000}


def write(path: Path, num_events: int, task: FakeTask | None = None) -> SensorPredictionResult:
    return write_sensor_predictions(batches(num_events), path, SensorPredictionRun(task or FakeTask()))


def test_every_asked_sensor_is_a_row_in_physical_units(tmp_path: Path) -> None:
    result = write(tmp_path / "p.root", 40)
    assert result.num_events == 40
    assert result.num_rows == 40 * (238 + 1)
    with EventFile(tmp_path / "p.root") as file:
        assert list(file.branch_names) == list(BRANCHES)
        rows = {name: file.read_column(name) for name in BRANCHES}
    assert len(rows["sensor"]) == result.num_rows
    hidden = rows["mask_type"] == MaskType.HIDDEN
    assert np.array_equal(rows["sensor"][~hidden], np.full(40, 7))
    assert np.all(rows["truth_npho"][~hidden] == np.float32(1e10))
    np.testing.assert_allclose(rows["pred_npho"][hidden], 2 * rows["truth_npho"][hidden], rtol=1e-5)
    assert np.array_equal(rows["face"], faces.face_ids()[rows["sensor"]])
    bright = hidden & (rows["truth_npho"] >= 100)
    assert np.all(rows["truth_time"][bright] == np.float32(2e-9))
    assert np.all(rows["truth_time"][~bright] == np.float32(1e10))
    assert np.all(rows["pred_time"] == np.float32(1e10)), "this network predicts no time"
    assert np.array_equal(np.unique(rows["entry"]), np.arange(40))
    assert np.all(rows["event"] == rows["entry"] + 5)


def test_rows_do_not_depend_on_how_many_are_converted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "whole.root", 20)
    monkeypatch.setattr(sensor_predictions, "MAX_ROWS", 1000)
    write(tmp_path / "pieces.root", 20)
    with EventFile(tmp_path / "whole.root") as one, EventFile(tmp_path / "pieces.root") as other:
        for name in BRANCHES:
            assert np.array_equal(one.read_column(name), other.read_column(name))


def test_predicted_times_are_seconds(tmp_path: Path) -> None:
    task = FakeTask()
    task.channels = ("npho", "time")
    predicted = [
        (batch, {"sensors": torch.cat([outputs["sensors"], torch.full((BATCH, 4760, 1), 0.5)], dim=-1)})
        for batch, outputs in batches(20)
    ]
    write_sensor_predictions(predicted, tmp_path / "t.root", SensorPredictionRun(task))
    with EventFile(tmp_path / "t.root") as file:
        expected = (0.5 - 0.46) * 1.14e-7
        np.testing.assert_allclose(file.read_column("pred_time"), expected, rtol=1e-5)


def test_memory_does_not_grow_with_the_events(tmp_path: Path) -> None:
    process, peaks = psutil.Process(), []
    for name, num_events in (("warm", 200), ("few", 200), ("many", 2000)):
        seen: list[int] = []
        watched = (seen.append(process.memory_info().rss) or pair for pair in batches(num_events))
        write_sensor_predictions(watched, tmp_path / f"{name}.root", SensorPredictionRun(FakeTask()))
        peaks.append(max(seen))
    assert peaks[2] < 1.1 * peaks[1]
    assert peaks[2] - peaks[1] < 40 * 2**20, "1800 more events have 430 thousand rows of 46 bytes in all"


def test_a_run_that_breaks_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[EventBatch, Outputs]]:
        yield from batches(20)
        assert (tmp_path / "p.root.part").exists()
        assert not (tmp_path / "p.root").exists()
        raise RuntimeError("the device went away")

    with pytest.raises(RuntimeError, match="the device went away"):
        write_sensor_predictions(broken(), tmp_path / "p.root", SensorPredictionRun(FakeTask()))
    assert not (tmp_path / "p.root").exists()

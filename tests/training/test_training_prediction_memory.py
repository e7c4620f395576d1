"""Memory of a prediction does not follow the events: nothing of a batch outlives it, and whole processes stay flat."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xectool import engine
from xectool.data.batch_sources import WindowBatches
from xectool.engine import prediction
from xectool.rootio.copying import CarriedBranches
from xectool.rootio.writer import TreeWriter

BATCH = 7  # no other axis of any network is as long
FEW, MANY = 1024, 2560  # two windows of the loader, and more
GROWTH = 1.05  # 18 kB an event; 0.6 % was seen
FILE_EVENTS, WRITTEN = 512, 64  # of a file, and of a batch
_MEASURED = """
import sys
from xectool.cli.app import app
from xectool.cli import boundary
from xectool.rootio.writer import TreeWriter
from xectool.training.process.memory import peak_resident_bytes
few, batches, extend = int(sys.argv.pop(1)), 0, TreeWriter.extend
def counted(writer, rows):
    global batches
    extend(writer, rows)
    batches += 1
    if batches == few:
        sys.stderr.write(f"PEAK {peak_resident_bytes()} of {batches}\\n")
TreeWriter.extend = counted
code = boundary.run(app, sys.argv[1:])
sys.stderr.write(f"PEAK {peak_resident_bytes()} of {batches}\\n")
sys.exit(code)
"""


def peak_bytes(*argv: str) -> dict[int, int]:
    """Peak of a process by the number of events it had written then: FEW, and all."""
    call = [sys.executable, "-c", _MEASURED, str(FEW // WRITTEN), *argv, "--batch-size", str(WRITTEN)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(call, check=True, capture_output=True, text=True, timeout=900, env=environment)
    return {int(batches) * WRITTEN: int(size) for size, batches in re.findall(r"PEAK (\d+) of (\d+)", run.stderr)}


def live_tensors() -> int:
    """Return how many tensors of a batch there are."""
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and thing.ndim > 1)
    return sum(tuple(tensor.shape[:2]) == (BATCH, 4760) for tensor in found)


@pytest.fixture
def left_alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What is left of a batch, tensors and written rows, when the next one is asked for; one number a batch."""
    found: list[int] = []
    written: list[weakref.ref[Any]] = []
    extend = TreeWriter.extend

    def remembering(writer: TreeWriter, rows: dict[str, Any]) -> None:
        written.extend(weakref.ref(row) for row in rows.values() if isinstance(row, np.ndarray) and row.ndim > 1)
        extend(writer, rows)

    def looking(read: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            found.append(live_tensors() + sum(rows() is not None for rows in written))
            return read(*arguments)

        return wrapped

    monkeypatch.setattr(TreeWriter, "extend", remembering)
    monkeypatch.setattr(WindowBatches, "batch", looking(WindowBatches.batch))
    monkeypatch.setattr(CarriedBranches, "read", looking(CarriedBranches.read))
    gc.freeze()  # what is there already, thousands of tests too, is not looked through each time
    yield found
    gc.unfreeze()


def test_nothing_of_a_batch_is_left_when_the_next_is_read(
    tiny_config: Callable[..., Path],
    sensor_config: Callable[..., Path],
    tiny_data: Path,
    tmp_path: Path,
    left_alive: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    regressor = engine.train(tiny_config(), run_name="regressor", max_steps=1).checkpoint_last
    inpainter = engine.train(sensor_config("inpainter", encoder_dim=32), run_name="filler", max_steps=1).checkpoint_last
    (dead := tmp_path / "dead.txt").write_text("17 900 4100")
    data = [str(tiny_data / "val.root")]
    left_alive.clear()
    engine.predict(regressor, data, output=tmp_path / "a.root", batch_size=BATCH)
    engine.predict(inpainter, data, output=tmp_path / "b.root", batch_size=BATCH)
    engine.predict(inpainter, data, output=tmp_path / "c.root", batch_size=BATCH, dead=str(dead))
    engine.repair(inpainter, data, output=tmp_path / "d.root", batch_size=BATCH, dead=str(dead))
    engine.compare(regressor, data, inpainter=inpainter, batch_size=BATCH, dead=str(dead))
    assert left_alive == [0] * (1 + 3) * 5, "a look at the first events, then three batches"

    left_alive.clear()
    monkeypatch.setattr(prediction, "watched", lambda predicted, observer: list(predicted))
    engine.predict(inpainter, data, output=tmp_path / "e.root", batch_size=BATCH)
    assert 0 == left_alive[1] < left_alive[2] < left_alive[3], "what holds its batches is seen"


@pytest.mark.slow
def test_more_events_need_the_same_memory(sensor_config: Callable[..., Path], tmp_path: Path) -> None:
    small = {"encoder_dim": 32, "outer_fine_pool": [15, 9], "dim_feedforward": 32, "cross_attn_k": 4}
    narrow = {"cross_attn_hidden": 16, "cross_attn_latent_dim": 16, "cross_attn_pos_dim": 12}
    config = sensor_config("inpainter", head_type="cross_attention", **small, **narrow)
    model = str(engine.train(config, run_name="small", max_steps=1).checkpoint_last)
    files = tmp_path / "files"
    files.mkdir()
    engine.simulate(str(files / "f_000.root"), events=FILE_EVENTS, seed=5)
    # Names of the same file: inputs are taken once each, and the disk is not filled.
    for number in range(1, MANY // FILE_EVENTS):
        (files / f"f_{number:03d}.root").hardlink_to(files / "f_000.root")
    peaks = peak_bytes("predict", model, str(files), "--output", str(tmp_path / "out.root"))
    assert peaks.keys() == {FEW, MANY}
    assert peaks[MANY] < GROWTH * peaks[FEW], peaks

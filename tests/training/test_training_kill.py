"""A MAE and an inpainter killed with SIGKILL anywhere and resumed end exactly like the run that was not."""

from __future__ import annotations

import math
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xectool import engine
from xectool.checkpoint import store
from xectool.runlog.reader import RunReader

Write = Callable[..., Path]
VARIANTS = {
    "mae": ("mae", {"auto_channel_weight": True}, {}),
    "inpainter_cross_attention": (
        "inpainter",
        {},
        {"mask_npho_flat": True, "head_type": "cross_attention", "predict_channels": ["npho", "time"]},
    ),
}
KILLS = 3
pytestmark = pytest.mark.usefixtures("shallow")


def losses(run_dir: Path) -> dict[int, float]:
    """Loss of every step; a step that was taken again after a kill was the same both times."""
    found: dict[int, float] = {}
    for record in RunReader(run_dir).steps():
        assert found.setdefault(record.step, record.loss) == record.loss
    return found


def saved(run_dir: Path) -> int:
    path = run_dir / store.LAST_NAME
    return path.stat().st_mtime_ns if path.exists() else 0


def killed(warm: Any, config: Path, run_dir: Path, rng: np.random.Generator) -> int:
    """Train until the run is whole, killing it at random moments after a checkpoint or two; returns how often."""
    command = ["train", str(config), "--run-name", run_dir.name, "--resume", "auto"]
    for kills in range(KILLS):
        process = warm.start(*command)
        for _ in range(int(rng.integers(1, 3))):
            began = saved(run_dir)
            while process.poll() is None and saved(run_dir) == began:
                time.sleep(0.01)
        time.sleep(float(rng.uniform(0.0, 0.3)))
        if process.poll() is not None:
            assert process.returncode == 0
            return kills
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        for path in run_dir.glob("checkpoint_*.pt"):
            store.load(path)  # whole, whatever the moment
    assert warm.start(*command).wait() == 0
    return KILLS


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_sensor_training_killed_anywhere_resumes_to_the_bit(
    sensor_config: Write, warm: Any, tmp_path: Path, name: str
) -> None:
    kind, training, model = VARIANTS[name]
    config = sensor_config(kind, training={**training, "lr_scheduler": "cosine"}, save_steps=1, **model)
    whole_dir, run_dir = Path(engine.train(config, run_name="whole").run_dir), tmp_path / "runs" / "killed"
    rng = np.random.default_rng(len(name))
    while killed(warm, config, run_dir, rng) < 2:  # the run was whole before this process came to kill it
        shutil.rmtree(run_dir)
    whole, resumed = (store.load(directory / store.LAST_NAME) for directory in (whole_dir, run_dir))
    assert losses(whole_dir) == losses(run_dir)
    assert len(losses(run_dir)) == whole.meta["progress"]["step"] == 10
    for one, other in ((whole.model, resumed.model), (whole.ema, resumed.ema)):
        assert one.keys() == other.keys() != set()
        assert all(torch.equal(one[key], other[key]) for key in one)
    for index, moments in whole.training["optimizer"]["state"].items():
        assert all(
            torch.equal(value, resumed.training["optimizer"]["state"][index][key]) for key, value in moments.items()
        )
    validated = [[epoch["val/loss"] for epoch in run.meta["progress"]["history"]] for run in (whole, resumed)]
    assert validated[0] == validated[1]
    assert all(math.isfinite(value) for value in validated[0])

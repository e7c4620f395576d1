"""Memory of a prediction does not follow the events: measured on whole processes, as a batch system measures it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from xectool import engine

FEW, MANY = 1024, 5120
FILE_EVENTS = 512
_MEASURED = """
import resource, sys
from xectool.cli.app import app
from xectool.cli import boundary
code = boundary.run(app, sys.argv[1:])
sys.stderr.write(f"PEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\\n")
sys.exit(code)
"""


def peak_kib(*argv: str) -> int:
    call = [sys.executable, "-c", _MEASURED, *argv]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(call, check=True, capture_output=True, text=True, timeout=900, env=environment)
    return int(run.stderr.rsplit("PEAK ", 1)[1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--output"], ["--repair"]], ids=lambda options: options[0])
def test_five_times_the_events_need_the_same_memory(
    sensor_config: Callable[..., Path], tmp_path: Path, options: list[str]
) -> None:
    config = sensor_config("inpainter", encoder_dim=32, outer_fine_pool=[15, 9], dim_feedforward=32, prior="none")
    model = str(engine.train(config, run_name="small", max_steps=1).checkpoint_last)
    files = tmp_path / "files"
    files.mkdir()
    engine.simulate(str(files / "f_000.root"), events=FILE_EVENTS, seed=5)
    # Names of the same file: inputs are taken once each, and the disk is not filled.
    for number in range(1, MANY // FILE_EVENTS):
        (files / f"f_{number:03d}.root").hardlink_to(files / "f_000.root")
    argv = ["predict", model, str(files), *options, str(tmp_path / "out.root"), "--batch-size", "128", "--max-events"]
    few, many = (peak_kib(*argv, str(events)) for events in (FEW, MANY))
    assert many < 1.1 * few, f"{few} KiB for {FEW} events, {many} KiB for {MANY}"

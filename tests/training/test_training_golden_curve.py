"""The whole step against the same network in plain PyTorch: outputs, gradients, and a curve of twenty losses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_twenty_steps_are_those_of_the_plain_network() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.model_step", "--curve", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["outputs"] < 1e-5
    assert found["gradients"] < 1e-4
    ours, plain = found["ours"], found["plain"]
    assert len(ours) == len(plain) == 20
    assert ours == pytest.approx(plain, rel=1e-5)
    assert plain[-1] < plain[0]

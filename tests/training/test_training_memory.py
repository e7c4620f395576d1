"""Memory is tracked under the names of the older system."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch
from xectool.training.process.memory import memory_metrics


def test_resident_memory_is_given_in_gigabytes() -> None:
    found = memory_metrics(torch.device("cpu"))
    assert found == {"perf/process_rss_GB": pytest.approx(psutil.Process().memory_info().rss / 1e9, rel=0.1)}


def test_device_memory_is_added_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2_000_000_000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3_000_000_000)
    found = memory_metrics(torch.device("cuda", 0))
    assert (found["perf/vram_allocated_GB"], found["perf/vram_peak_GB"]) == (2.0, 3.0)


def test_peak_of_a_program_is_not_that_of_the_one_that_started_it() -> None:
    code = (
        "import resource\nfrom xectool.training.process.memory import peak_resident_bytes\n"
        "print(peak_resident_bytes(), 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    held = np.ones(150_000_000)  # 1.2 GB
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own, inherited = map(int, done.stdout.split())
    assert 50e6 < own < held.nbytes
    assert inherited > held.nbytes  # what getrusage says, and why it is not asked

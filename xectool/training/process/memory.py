"""How much memory a run holds, under the names of the tracker."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil
import torch

_BYTES_PER_GB = 1e9
_STATUS = Path("/proc/self/status")


def peak_resident_bytes() -> int:
    """Return the most memory that was ever resident in this program.

    On Linux not from ``getrusage``: a program that is started takes over the peak of the process that starts it.
    """
    if _STATUS.is_file():
        lines = _STATUS.read_text(encoding="utf-8", errors="replace").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_metrics(device: torch.device) -> dict[str, float]:
    """Return resident memory of this process and, on a GPU, allocated and peak device memory; in units of 1e9 bytes."""
    found = {"perf/process_rss_GB": psutil.Process().memory_info().rss / _BYTES_PER_GB}
    if device.type == "cuda":
        found["perf/vram_allocated_GB"] = torch.cuda.memory_allocated(device) / _BYTES_PER_GB
        found["perf/vram_peak_GB"] = torch.cuda.max_memory_allocated(device) / _BYTES_PER_GB
    return found

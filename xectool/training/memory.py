"""How much memory a run holds, under the names of the tracker."""

from __future__ import annotations

import psutil
import torch

_BYTES_PER_GB = 1e9


def memory_metrics(device: torch.device) -> dict[str, float]:
    """Return resident memory of this process and, on a GPU, allocated and peak device memory; in units of 1e9 bytes."""
    found = {"perf/process_rss_GB": psutil.Process().memory_info().rss / _BYTES_PER_GB}
    if device.type == "cuda":
        found["perf/vram_allocated_GB"] = torch.cuda.memory_allocated(device) / _BYTES_PER_GB
        found["perf/vram_peak_GB"] = torch.cuda.max_memory_allocated(device) / _BYTES_PER_GB
    return found

"""What computes an ONNX file: which providers ONNX Runtime is asked for, and which of them it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from xectool.findings import Finding, Severity

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"


def wanted_providers(device: str, available: Sequence[str]) -> list[str | tuple[str, dict[str, Any]]]:
    """Return the providers to ask for, the best one first; the CPU's is always the last.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        available: Providers that this build of ONNX Runtime has.
    """
    place = torch.device(device)
    if place.type != "cuda" or CUDA not in available:
        return [CPU]
    return [(CUDA, {"device_id": place.index or 0}), CPU]


def unused_provider(device: str, available: Sequence[str], used: Sequence[str]) -> tuple[Finding, ...]:
    """Say where a GPU was asked for and does not compute.

    A build for GPUs lists its provider on every machine, and falls back to the CPU where CUDA or the GPU is missing.

    Args:
        device: What was asked for.
        available: Providers that this build of ONNX Runtime has.
        used: Those that the session has.
    """
    if not device.startswith("cuda") or CUDA in used:
        return ()
    built = CUDA in available
    why = "could not start: a library of CUDA or the GPU is missing" if built else "is not available"
    fix = "nvidia-smi, pip install 'onnxruntime-gpu[cuda,cudnn]'" if built else "pip install onnxruntime-gpu"
    problem = f"{CUDA} was asked for and {why}; {used[0]} runs instead"
    return (Finding("X-14", Severity.WARNING, problem, "--device", fix=f"{fix}, or --device cpu"),)

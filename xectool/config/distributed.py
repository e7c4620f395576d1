"""Several processes on one job."""

from __future__ import annotations

from typing import Literal

from xectool.config.section import Float, Int, Section, knob


class DistributedConfig(Section):
    """Ranks and how they talk."""

    num_gpus: Int = knob(1, "Ranks started on this machine, one GPU each", "ranks", "CFG-49", ge=1, le=1024)
    backend: Literal["auto", "nccl", "gloo"] = knob("auto", "auto: nccl with CUDA, gloo without", code="CFG-05")
    timeout_s: Float = knob(600.0, "Longest wait in a collective", "s", "CFG-50", gt=0, le=604_800)
    rank0_timeout_s: Float = knob(
        3600.0, "Longest wait for rank 0 to write checkpoints, predictions and plots", "s", "CFG-50", gt=0, le=604_800
    )

"""Refuses a training that cannot fit into the memory of its device or host, before anything is allocated."""

from __future__ import annotations

import os

import torch

from xectool.config.load import LoadedConfig
from xectool.config.platform import memory_budgets
from xectool.config.root import RunConfig
from xectool.engine.capacity import shortage
from xectool.training.memory_estimate.device import GRAPH_MODES, Device
from xectool.training.process.device import Execution
from xectool.training.process.progress import Observer


def require_memory(loaded: LoadedConfig, config: RunConfig, execution: Execution, watching: Observer) -> None:
    """Refuse a step that does not fit, as `shortage` finds it.

    Args:
        loaded: Knows where each key was written.
        config: What is trained.
        execution: Device and precision.
        watching: Told where the step is estimated, which takes from some seconds to a minute.

    Raises:
        InvalidConfigError: Device (CFG-22) or host (CFG-20) do not suffice.
    """
    limits = memory_budgets(int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    amp = {None: "off", torch.bfloat16: "bf16", torch.float16: "fp16"}[execution.autocast_dtype]

    def begins() -> None:
        watching.phase("estimate the memory of a step", 0)

    loaded.require(shortage(config, _device(config, execution, min(limits.values())), amp, limits, begins))


def _device(config: RunConfig, execution: Execution, host_bytes: int) -> Device:
    if execution.device.type != "cuda":
        return Device("cpu", host_bytes, is_gpu=False)
    facts = torch.cuda.get_device_properties(execution.device)
    graphs = execution.compile_mode in GRAPH_MODES
    return Device(facts.name, facts.total_memory, is_gpu=True, graphs=graphs)

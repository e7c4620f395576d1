"""Refuses a training that cannot fit into the memory of its device or host, before anything is allocated."""

from __future__ import annotations

import os
from typing import Final

import torch

from xectool.config.load import LoadedConfig
from xectool.config.platform import memory_budgets
from xectool.config.root import InpainterConfig, RunConfig
from xectool.config.rules.capacity import host_memory_bytes
from xectool.detector.constants import NUM_SENSORS
from xectool.engine.capacity import estimated, refusals
from xectool.training.memory_estimate.device import GRAPH_MODES, Device
from xectool.training.memory_estimate.host import HOST_SHARE
from xectool.training.process.device import Execution

# Above what any kind of network was measured to take (docs/benchmarks.md); a step below these needs no closer look.
_EVENT_BYTES: Final = 100_000_000
_EVENT_BYTES_PER_WIDTH: Final = 120_000
_STATE_BYTES: Final = 20  # weights, gradients, two moments and average, float32
_SMALL: Final = 0.5


def require_memory(loaded: LoadedConfig, config: RunConfig, execution: Execution) -> None:
    """Refuse a step that does not fit.

    Costs nothing where the run is obviously small: the crude bound of its step is below half of the memory, and fits
    with all else. Else the step is estimated, which takes some seconds in a process of its own, and again with other
    batches where it does not fit.

    Args:
        loaded: Knows where each key was written.
        config: What is trained.
        execution: Device and precision.

    Raises:
        InvalidConfigError: Device (CFG-22) or host (CFG-20) do not suffice.
    """
    limits = memory_budgets(int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    device = _device(config, execution, min(limits.values()))
    step = crude_bytes(config)
    host = sum(host_memory_bytes(config, on_gpu=device.is_gpu).values()) + (0 if device.is_gpu else step)
    if step <= _SMALL * min(device.total_bytes, *limits.values()) and host <= HOST_SHARE * min(limits.values()):
        return
    amp = {None: "off", torch.bfloat16: "bf16", torch.float16: "fp16"}[execution.autocast_dtype]
    for closer in (False, True):
        result = estimated(config, device, amp, limits, closer)
        if result.fits:
            return
    loaded.require(refusals(result))


def crude_bytes(config: RunConfig) -> int:
    """Return a bound on the memory of a step that needs no network: far above, never below."""
    model, data = config.model, config.data
    event = _EVENT_BYTES + _EVENT_BYTES_PER_WIDTH * model.encoder_dim
    inner = model.dim_feedforward or 4 * model.encoder_dim
    weights = model.encoder_dim * (
        30 * model.encoder_dim + model.num_fusion_layers * (4 * model.encoder_dim + 3 * inner)
    )
    heads = 64 * model.encoder_dim * max(getattr(model, "hidden_dim", 0), getattr(model, "decoder_dim", 0) * 16)
    largest = max(data.batch_size, config.validation.batch_size or 0)
    window = (config.training.grad_accum_steps + 1) * data.batch_size * 4 * 4760 * 4
    if isinstance(config, InpainterConfig) and config.model.head_type == "cross_attention":
        around = config.model.cross_attn_k * (config.model.cross_attn_hidden + 8)
        event += 8 * NUM_SENSORS * (around + 16 * config.model.cross_attn_latent_dim)
    return largest * event + window + _STATE_BYTES * (weights + heads)


def _device(config: RunConfig, execution: Execution, host_bytes: int) -> Device:
    if execution.device.type != "cuda":
        return Device("cpu", host_bytes, is_gpu=False)
    facts = torch.cuda.get_device_properties(execution.device)
    graphs = execution.compile_mode in GRAPH_MODES
    return Device(facts.name, facts.total_memory, is_gpu=True, graphs=graphs)

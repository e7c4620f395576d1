"""What a machine can hold of a run: the rules, and for memory the estimate, which knows the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from xectool.config.host_memory import host_memory_bytes
from xectool.config.root import InpainterConfig, RunConfig
from xectool.detector.constants import NUM_SENSORS
from xectool.engine.memory_verdicts import DEFAULT_EVENTS, MemoryEstimate, verdicts
from xectool.findings import Finding, Report, Severity
from xectool.rootio.counting import count_events
from xectool.training.memory_estimate.calibration import load_calibration
from xectool.training.memory_estimate.device import Device
from xectool.training.memory_estimate.estimate import Wanted, estimate
from xectool.training.memory_estimate.host import HOST_SHARE, compile_processes

_MEMORY: Final = "CFG-20"
# Above what any kind of network was measured to take (docs/benchmarks.md); a step below these needs no closer look.
_EVENT_BYTES: Final = 100_000_000
_EVENT_BYTES_PER_WIDTH: Final = 120_000
_STATE_BYTES: Final = 20  # weights, gradients, two moments and average, float32
_SMALL: Final = 0.5
_NO_LIMIT: Final = 1 << 62  # the disk has rules of its own


def estimated(
    config: RunConfig, device: Device, amp: str, limits: Mapping[str, int], closer: bool = True
) -> MemoryEstimate:
    """Return what a run takes of device and host, with what it says where that is not there.

    Args:
        config: The run.
        device: Where it trains.
        amp: Precision, resolved for the device.
        limits: What limits the memory of one rank, in bytes, by its name.
        closer: Whether settings that fit are looked for, which takes some seconds.

    Raises:
        XecError: The network cannot be built.
    """
    calibration, budget = load_calibration(), min(limits.values())
    device = calibration.on(device)
    events = count_events(config.data.train_path, config.data.tree_name) or DEFAULT_EVENTS
    threads = compile_processes(config, device.is_gpu)
    wanted = Wanted(events, amp, closer and device.is_gpu, closer, None, threads, budget)
    found = estimate(config, device, wanted, calibration)
    return MemoryEstimate(config, found, limits, _NO_LIMIT, calibration, events=events)


def refusals(result: MemoryEstimate) -> Report:
    """Return what does not fit."""
    return Report(tuple(item for item in verdicts(result) if item.severity is Severity.ERROR))


def without_memory(rules: Report) -> Report:
    """Return what the rules on capacity say beside a refusal for memory.

    They do not know the step, so that what they propose may be too little for it.
    """
    return Report(tuple(item for item in rules if not _refused(item)))


def _nothing() -> None:
    """Tell nobody."""


def shortage(
    config: RunConfig, device: Device, amp: str, limits: Mapping[str, int], begins: Callable[[], None] = _nothing
) -> Report:
    """Return what of a run does not fit.

    Costs nothing where the run is obviously small: the crude bound of its step is below half of the memory, and fits
    with all else. Else the step is estimated, which takes some seconds in a process of its own, and again with other
    batches where it does not fit.

    Args:
        config: The run.
        device: Where it trains.
        amp: Precision, resolved for the device.
        limits: What limits the memory of one rank, in bytes, by its name.
        begins: Called before the step is estimated.

    Raises:
        XecError: The network cannot be built.
    """
    step = crude_bytes(config)
    host = sum(host_memory_bytes(config, on_gpu=device.is_gpu).values()) + (0 if device.is_gpu else step)
    if step <= _SMALL * min(device.total_bytes, *limits.values()) and host <= HOST_SHARE * min(limits.values()):
        return Report()
    begins()
    for closer in (False, True):
        result = estimated(config, device, amp, limits, closer)
        if result.fits:
            return Report()
    return refusals(result)


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
    window = (config.training.grad_accum_steps + 1) * data.batch_size * 4 * NUM_SENSORS * 4
    if isinstance(config, InpainterConfig) and config.model.head_type == "cross_attention":
        around = config.model.cross_attn_k * (config.model.cross_attn_hidden + 8)
        event += 8 * NUM_SENSORS * (around + 16 * config.model.cross_attn_latent_dim)
    return largest * event + window + _STATE_BYTES * (weights + heads)


def _refused(item: Finding) -> bool:
    return item.code == _MEMORY and item.severity is Severity.ERROR

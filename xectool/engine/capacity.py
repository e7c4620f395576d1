"""What a machine can hold of a run: the rules, and where they refuse for memory the estimate, which knows the step."""

from __future__ import annotations

from collections.abc import Mapping

from xectool.config.root import RunConfig
from xectool.engine.memory_verdicts import DEFAULT_EVENTS, MemoryEstimate, verdicts
from xectool.findings import Finding, Report, Severity
from xectool.rootio.counting import count_events
from xectool.training.memory_estimate.calibration import load_calibration
from xectool.training.memory_estimate.device import Device
from xectool.training.memory_estimate.estimate import Wanted, estimate
from xectool.training.memory_estimate.host import compile_processes

_MEMORY = "CFG-20"
_NO_LIMIT = 1 << 62  # the disk has rules of its own


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


def with_estimate(rules: Report, config: RunConfig, limits: Mapping[str, int]) -> Report:
    """Return the rules on capacity with a refusal for memory as an estimate words it: what it proposes holds the step.

    Args:
        rules: What the rules on capacity found.
        config: The run, on the CPU.
        limits: What limits the memory of one rank, in bytes, by its name.

    Raises:
        XecError: The network cannot be built.
    """
    if not any(_refused(item) for item in rules):
        return rules
    amp = "off" if config.training.amp == "auto" else config.training.amp
    result = estimated(config, Device("cpu", min(limits.values()), is_gpu=False), amp, limits)
    return without_memory(rules).merged(refusals(result))


def _refused(item: Finding) -> bool:
    return item.code == _MEMORY and item.severity is Severity.ERROR

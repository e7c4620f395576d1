"""Which steps are taped for a configuration: the step itself, a larger one, and one for each remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from xectool.config.load import config_from_dict
from xectool.config.root import RunConfig
from xectool.training.memory_estimate.recording import BatchLine, Recording
from xectool.training.memory_estimate.request import StepRequest

BASE: Final = "base"
LARGER: Final = "larger"
FAR: Final = "far"
"""A batch far beyond the other two, to see whether it lies on their line."""
_FAR: Final = 64
_SAME: Final = 0.001  # mask sizes are rounded
TAPED_WINDOW: Final = 2  # from the second batch on a window repeats itself
_POOL: Final = "model.outer_fine_pool=[5,3]"
BATCH: Final = "batch"
BF16: Final = "bf16"
ACCUMULATION: Final = "accumulation"
"""Takes memory by itself: gradients of one batch are kept beside the activations of the next."""


@dataclass(frozen=True)
class Remedy:
    """A change that saves memory of the device.

    Attributes:
        title: What it does.
        settings: ``key=value`` lines of the configuration; empty where it is no setting.
        note: What it costs, or why there is nothing to save.
        key: Name of its tape; empty without one.
        without: Category of tensors that it does away with.
    """

    title: str
    settings: tuple[str, ...] = ()
    note: str = ""
    key: str = ""
    without: str = ""


@dataclass(frozen=True)
class Plan:
    """The steps to tape.

    Attributes:
        requests: By name; the first is the step itself.
        remedies: In the order in which to try them.
        windows: Batches of one optimizer step, by name of the tape.
    """

    requests: Mapping[str, StepRequest]
    remedies: tuple[Remedy, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)

    def whole(self, name: str, recording: Recording) -> Recording:
        """Return a tape with the inputs of the whole window."""
        return recording.with_more_inputs(self.windows[name] - TAPED_WINDOW)


def plan(
    config: RunConfig, amp: str, shares: tuple[float, float], larger: bool, remedies: bool, on_gpu: bool = False
) -> Plan:
    """Return what to tape.

    Args:
        config: The run.
        amp: Precision resolved for the device.
        shares: Shares of sensors with valid photons and with a valid time.
        larger: Whether other batch sizes are asked for.
        remedies: Whether remedies are.
        on_gpu: Whether the step runs on a GPU.
    """
    base = request_of(config, amp, shares, on_gpu)
    requests, windows = {BASE: base}, {BASE: config.training.grad_accum_steps}
    if larger:
        fixed = config.validation.batch_size
        for name, factor in ((LARGER, 2), (FAR, _FAR)):
            size = factor * base.batch_size
            requests[name] = replace(base, batch_size=size, validation_batch=fixed or size)
            windows[name] = windows[BASE]
    rungs = ladder(config, amp) if remedies else ()
    for remedy in rungs:
        if remedy.key:
            changed = with_settings(config, remedy.settings)
            requests[remedy.key] = request_of(changed, amp, shares, on_gpu)
            windows[remedy.key] = changed.training.grad_accum_steps
    return Plan(requests, rungs, windows)


def request_of(config: RunConfig, amp: str, shares: tuple[float, float], on_gpu: bool) -> StepRequest:
    """Return the step of a configuration; its precision goes before the one that was resolved for the device."""
    own, batch = config.training.amp, config.data.batch_size
    return StepRequest(
        config.to_dict(),
        batch,
        min(config.training.grad_accum_steps, TAPED_WINDOW),
        amp if own == "auto" else own,
        config.validation.batch_size or batch,
        *shares,
        on_gpu,
    )


def with_settings(config: RunConfig, settings: Iterable[str]) -> RunConfig:
    """Return a configuration with ``key=value`` lines as a user pastes them."""
    return config_from_dict(config.to_dict(), "memory estimate", tuple(settings))


def line(tapes: Mapping[str, Recording]) -> Callable[[int], Recording] | None:
    """Return the tape of any batch by the line through two, None where a third one far beyond is not on it."""
    found = BatchLine(tapes[BASE], tapes[LARGER])
    if not found.same_program:
        return None
    far = tapes[FAR]
    off = abs(found.at(far.batch_size).peak() / max(far.peak(), 1) - 1)
    return found.at if off <= _SAME else None


def smaller(config: RunConfig, most: int | None = None) -> tuple[str, ...]:
    """Return the settings of smaller batches with the same effective batch; empty where a batch is one event.

    Args:
        config: The run.
        most: Largest batch that fits; without, the next smaller one is taken.
    """
    batch, accum = config.data.batch_size, config.training.grad_accum_steps
    if batch == 1:
        return ()
    most = max(1, batch - 1 if most is None else most)
    parts = next(parts for parts in range(2, batch + 1) if batch % parts == 0 and batch // parts <= most)
    return (f"data.batch_size={batch // parts}", f"training.grad_accum_steps={accum * parts}")


def ladder(config: RunConfig, amp: str) -> tuple[Remedy, ...]:
    """Return the remedies in the order in which to try them."""
    training, found = config.training, list[Remedy]()
    if config.data.batch_size > 1:
        effective = config.data.batch_size * training.grad_accum_steps
        found.append(Remedy(f"smaller batches, effective batch = {effective} as before", smaller(config), key=BATCH))
    if training.activation_checkpointing == "none":
        settings = ("training.activation_checkpointing=stages",)
        found.append(Remedy("recompute activations", settings, "about a third more time", key="checkpointing"))
    if amp == "off":
        found.append(Remedy("bf16 activations", ("training.amp=bf16",), key=BF16))
    found.append(Remedy("drop references to old tensors", note="torch.cuda.empty_cache does not help this process"))
    more = f"training.grad_accum_steps={2 * training.grad_accum_steps}"
    note = "saves nothing by itself: allows smaller batches"
    taped = ACCUMULATION if training.grad_accum_steps < TAPED_WINDOW else ""  # a longer window takes what this one does
    found.append(Remedy("gradient accumulation", (more,), note, taped))
    if config.model.outer_mode == "finegrid" and config.model.outer_fine_pool is None:
        found.append(Remedy("pool the outer face", (_POOL,), "another network: train it anew", key="pool"))
    if training.ema_decay is not None:
        found.append(Remedy("no averaged weights", ("training.ema_decay=null",), without="ema"))
    found.append(Remedy("sharding of parameters and optimizer (FSDP)"))
    found.append(Remedy("export PYTORCH_ALLOC_CONF=expandable_segments:True", note="less fragmentation"))
    return tuple(found)

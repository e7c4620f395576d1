"""Which steps are taped for a configuration: the step itself, a larger one, and one for each remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
_POOL: Final = [5, 3]


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
    accum = config.training.grad_accum_steps
    base = StepRequest(
        config.to_dict(),
        config.data.batch_size,
        min(accum, TAPED_WINDOW),
        amp,
        config.validation.batch_size or config.data.batch_size,
        *shares,
        on_gpu,
    )
    requests, windows = {BASE: base}, {BASE: accum}
    if larger:
        fixed = config.validation.batch_size
        for name, factor in ((LARGER, 2), (FAR, _FAR)):
            size = factor * base.batch_size
            requests[name] = replace(base, batch_size=size, validation_batch=fixed or size)
            windows[name] = accum
    ladder = _ladder(config, amp) if remedies else ()
    for remedy in ladder:
        if remedy.key:
            requests[remedy.key], windows[remedy.key] = _changed(base, config, remedy)
    return Plan(requests, ladder, windows)


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


def _ladder(config: RunConfig, amp: str) -> tuple[Remedy, ...]:
    training, found = config.training, list[Remedy]()
    if config.data.batch_size > 1:
        effective = config.data.batch_size * training.grad_accum_steps
        found.append(Remedy(f"smaller batches, effective batch = {effective} as before", smaller(config), key="batch"))
    if training.activation_checkpointing == "none":
        settings = ("training.activation_checkpointing=stages",)
        found.append(Remedy("recompute activations", settings, "about a third more time", key="checkpointing"))
    if amp == "off":
        found.append(Remedy("bf16 activations", ("training.amp=bf16",), key="bf16"))
    found.append(Remedy("drop references to old tensors", note="torch.cuda.empty_cache does not help this process"))
    more = f"training.grad_accum_steps={2 * training.grad_accum_steps}"
    found.append(Remedy("gradient accumulation", (more,), "saves nothing by itself: allows smaller batches"))
    if config.model.outer_mode == "finegrid" and config.model.outer_fine_pool is None:
        pool = (f"model.outer_fine_pool={_POOL}".replace(" ", ""),)
        found.append(Remedy("pool the outer face", pool, "another network: train it anew", key="pool"))
    if training.ema_decay is not None:
        found.append(Remedy("no averaged weights", ("training.ema_decay=null",), without="ema"))
    found.append(Remedy("sharding of parameters and optimizer (FSDP)"))
    found.append(Remedy("export PYTORCH_ALLOC_CONF=expandable_segments:True", note="less fragmentation"))
    return tuple(found)


def _changed(base: StepRequest, config: RunConfig, remedy: Remedy) -> tuple[StepRequest, int]:
    accum = config.training.grad_accum_steps
    if remedy.key == "batch":
        values = dict(item.split("=", 1) for item in remedy.settings)
        size, window = int(values["data.batch_size"]), int(values["training.grad_accum_steps"])
        validation = config.validation.batch_size or size
        return replace(base, batch_size=size, accum=TAPED_WINDOW, validation_batch=validation), window
    if remedy.key == "bf16":
        return replace(base, amp="bf16"), accum
    section, name, value = {
        "checkpointing": ("training", "activation_checkpointing", "stages"),
        "pool": ("model", "outer_fine_pool", _POOL),
    }[remedy.key]
    changed: dict[str, Any] = {**base.config, section: {**base.config[section], name: value}}
    return replace(base, config=changed), accum

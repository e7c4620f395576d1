"""The records of a run: what the flight recorder says.

Each record is a dataclass that nobody changes. Steps are rows of numbers (`xectool.runlog.layout`), the others lines of
JSON. Fields are only ever added, each with a default, so a reader of format ``FORMAT`` reads all older records and
skips fields it does not know. In a line, non-finite floats are written as the strings ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``, which every JSON parser accepts and ``float()`` turns back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

FORMAT = 2
END_KINDS = ("finished", "failed", "interrupted")
"""Kinds of the event that says how a run ended; without one it was killed, or still runs."""
ROUTINE_KINDS = frozenset({"audit", "control_socket", "startup", "validation"})
"""Kinds of events that every sound run has; whoever shows what happened leaves them out."""
_MEASURED_KINDS = frozenset({"baseline", "input_scale", "ranks"})
NAN = math.nan


@dataclass(frozen=True)
class AttemptRecord:
    """The first line of an attempt: which process writes it.

    ``pid_start`` (clock ticks since boot) and ``boot_id`` tell a live writer from another process with the same pid.
    """

    tag: ClassVar[str] = "attempt"

    attempt: int
    time: float
    mono: float
    pid: int
    pid_start: int = 0
    boot_id: str = ""
    host: str = ""
    version: str = ""
    format: int = FORMAT


@dataclass  # frozen would cost ten times as much to make, in every step
class StepRecord:
    """One optimizer step, also where its update was skipped.

    ``step`` counts optimizer steps over the whole run from 1; a step whose update was skipped counts too, so a number
    occurs once. ``batch_start`` and ``batch_stop`` are the micro-batches of the epoch that went in (half-open); with
    ``seed`` and ``epoch`` they give back all event identities from the data plan. Times are wall seconds of the
    training thread; ``step_s`` is the whole step, waiting for data included. ``block_norms`` are the gradient norms of
    the parameter blocks before clipping; ``weight_norm`` is the L2 norm of all trained parameters, NaN on most steps.
    Memory is the last sample of a helper thread, once a second, and -1 where unknown: ``rss_bytes`` of the process and
    its children, ``own_rss_bytes`` of it alone, ``device_bytes`` allocated and ``device_reserved_bytes`` reserved on
    the accelerator. ``dropped`` counts quarantined events left out. ``rng`` is the seed of the step's stream of random
    numbers. ``checkpoint_s`` and ``log_s`` were spent on saving and on this record between the step before and this
    one. ``gradient_wait_s`` of the backward pass went by between the last gradients of this rank and those of the last
    rank, as the host sees it: a GPU waits by itself.
    """

    tag: ClassVar[str] = "step"

    epoch: int
    step: int
    time: float
    mono: float
    loss: float
    losses: Mapping[str, float] = field(default_factory=dict)
    lr: float = NAN
    grad_norm: float = NAN
    clip_coef: float = 1.0
    data_wait_s: float = 0.0
    transfer_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    step_s: float = 0.0
    num_events: int = 0
    seed: int = 0
    batch_start: int = 0
    batch_stop: int = 0
    file_index: int = -1
    entry: int = -1
    nonfinite: bool = False
    skipped: bool = False
    amp_scale: float = 1.0
    rank: int = 0
    block_norms: Mapping[str, float] = field(default_factory=dict)
    weight_norm: float = NAN
    rss_bytes: int = -1
    device_bytes: int = -1
    device_reserved_bytes: int = -1
    dropped: int = 0
    rng: int = 0
    checkpoint_s: float = 0.0
    log_s: float = 0.0
    queue_depth: int = -1
    gradient_wait_s: float = 0.0
    own_rss_bytes: int = -1


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch; ``metrics`` holds the names of the tracker, such as ``train/loss`` and ``val/loss``.

    ``epoch`` counts from 1; ``step`` is the last optimizer step of the epoch. ``events_seen`` and ``events_expected``
    are the audit of the data plan over all ranks, ``duplicates`` the events served more than once (-1: not counted).
    The ``grad_norm`` quantiles are those before clipping, to 3 %, over the steps taken; ``clipped_fraction`` is the
    share of those steps that were clipped.
    """

    tag: ClassVar[str] = "epoch"

    epoch: int
    step: int
    time: float
    mono: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    lr: float = NAN
    seconds: float = 0.0
    events_seen: int = -1
    events_expected: int = -1
    duplicates: int = -1
    grad_norm_median: float = NAN
    grad_norm_p95: float = NAN
    grad_norm_max: float = NAN
    clipped_fraction: float = NAN


@dataclass(frozen=True)
class EventRecord:
    """Something that happened once: ``checkpoint``, ``resume``, ``nonfinite_skip``, or one of `END_KINDS`.

    ``data`` holds plain JSON values. A ``resume`` event states in ``step`` the last step that still counts.
    """

    tag: ClassVar[str] = "event"

    kind: str
    time: float
    mono: float
    step: int = 0
    epoch: int = 0
    message: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def is_routine(event: EventRecord) -> bool:
    """Return whether an event tells nothing but that all is well: numbers to compare with are, unless they say more."""
    return event.kind in ROUTINE_KINDS or (event.kind in _MEASURED_KINDS and not event.message)


Record = AttemptRecord | StepRecord | EpochRecord | EventRecord

_KINDS: dict[str, type[Record]] = {kind.tag: kind for kind in (AttemptRecord, StepRecord, EpochRecord, EventRecord)}
_TYPES = {kind: {item.name: str(item.type) for item in fields(kind)} for kind in _KINDS.values()}


def _plain(value: object) -> object:
    """Return a JSON value for what is not one: numbers and arrays of NumPy or torch by content, the rest by name."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain)


def _nonfinite_as_text(value: Any) -> Any:
    """Return ``value`` with each non-finite float replaced by its JSON-safe name."""
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _nonfinite_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nonfinite_as_text(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    return _nonfinite_as_text(_plain(value))


def to_json(content: Any) -> str:
    """Return one line of standard JSON, whatever floats are in ``content``."""
    try:
        return _ENCODER.encode(content)
    except ValueError:
        # Rare by nature, so finite steps do not pay for a walk over their values.
        return _ENCODER.encode(_nonfinite_as_text(content))


def encode(record: Record, after: int = 0) -> bytes:
    """Return the line of a record, newline included; ``after`` step records were stored before it."""
    return (to_json({"r": record.tag, "n": after, **vars(record)}) + "\n").encode()


def decode(line: bytes) -> Record | None:
    """Return the record of a line, or None where its kind is unknown to this version.

    Raises:
        ValueError: The line is not JSON, or lacks what its kind must have.
    """
    return decode_content(json.loads(line))


def decode_content(content: Any) -> Record | None:
    """Return the record that parsed JSON describes, or None where its kind is unknown to this version.

    Raises:
        ValueError: It is not an object, or lacks what its kind must have.
    """
    if not isinstance(content, dict):
        raise ValueError("a record is a JSON object")
    kind = _KINDS.get(str(content.pop("r", "")))
    if kind is None:
        return None
    types = _TYPES[kind]
    try:
        return kind(**{name: _READERS[types[name]](value) for name, value in content.items() if name in types})
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no JSON object")
    return value


def _floats(value: Any) -> dict[str, float]:
    return {name: float(item) for name, item in _mapping(value).items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "Mapping[str, float]": _floats,
    "Mapping[str, Any]": _mapping,
}

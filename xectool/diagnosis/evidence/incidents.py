"""Incident folders of a run, as far as the diagnosis looks into them: names and numbers, never the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from xectool.diagnosis.evidence.files import tolerant_json

INCIDENTS_DIR: Final = "incidents"
MAX_READ: Final = 200  # folders; a run keeps far fewer


CONFIDENCES: Final = {"certain": 0.97, "likely": 0.8, "possible": 0.5}


@dataclass(frozen=True)
class Triage:
    """What an automatic look at an incident found; None or NaN where it did not look.

    Attributes:
        cause: Code the look settled on, or an empty string.
        confidence: Of that code, 0 to 1.
        input_nonfinite: Non-finite values among the inputs.
        input_absmax: Largest normalised input; NaN where only raw sizes were kept.
        events_nonfinite: Events whose own loss is not finite.
        top_share: Share of the largest single event in the sum of the per-event losses.
        top_ratio: The largest over the median of the others.
        module: First module with a non-finite output, the loss left out.
        in_loss: Whether all modules are finite and the loss is not.
        module_input_absmax: Largest input of that module.
        finite_in_float32: Whether the same batch is finite without reduced precision.
        finite_with_saved_weights: Whether it is finite with the weights of the last sound checkpoint.
        weights_finite: Whether the weights of the moment were finite.
    """

    cause: str = ""
    confidence: float = math.nan
    input_nonfinite: int = 0
    input_absmax: float = math.nan
    events_nonfinite: int = 0
    top_share: float = math.nan
    top_ratio: float = math.nan
    module: str = ""
    in_loss: bool = False
    module_input_absmax: float = math.nan
    finite_in_float32: bool | None = None
    finite_with_saved_weights: bool | None = None
    weights_finite: bool | None = None


@dataclass(frozen=True)
class Incident:
    """One incident: when, in which attempt (0: unknown), what kind, which events, and what the look at it found."""

    name: str
    kind: str
    step: int
    attempt: int = 0
    events: tuple[tuple[int, ...], ...] = ()
    suspects: tuple[tuple[int, ...], ...] = ()
    parameters: tuple[str, ...] = ()
    triage: Triage = field(default_factory=Triage)


def read_incidents(run_dir: Path) -> tuple[Incident, ...]:
    """Return the incidents of a run, oldest first; folders that are still being written are left out."""
    folders = sorted(path.parent for path in (run_dir / INCIDENTS_DIR).glob("*/incident.json"))
    found = ((folder.name, tolerant_json(folder / "incident.json")) for folder in folders[:MAX_READ])
    return tuple(_incident(name, content) for name, content in found if content)


def identities(rows: object) -> tuple[tuple[int, ...], ...]:
    """Return event identities ``(file_index, entry, run, event)`` from what a record holds; other shapes give none."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        return ()
    return tuple(
        tuple(int(value) for value in row)
        for row in rows
        if isinstance(row, Sequence) and row and all(isinstance(value, int | float) for value in row)
    )


def number(value: object) -> float:
    """Return a recorded number as a float; NaN where there is none. Non-finite numbers are recorded as text."""
    if isinstance(value, int | float):
        return float(value)
    return float(value) if value in ("NaN", "Infinity", "-Infinity") and isinstance(value, str) else math.nan


def _incident(name: str, content: Mapping[str, Any]) -> Incident:
    return Incident(
        name=name,
        kind=str(content.get("kind", "")),
        step=whole(content.get("step"), 0),
        attempt=whole(content.get("attempt"), 0),
        events=identities(content.get("events")),
        suspects=identities(content.get("suspects")),
        parameters=tuple(str(item) for item in content.get("parameters") or ()),
        triage=_triage(content.get("triage") or {}),
    )


def _triage(content: Mapping[str, Any]) -> Triage:
    inputs, losses = content.get("input") or {}, content.get("per_event_loss") or {}
    top = [number(row[-1]) for row in losses.get("top") or () if isinstance(row, Sequence) and row]
    known = sorted(value for value in top if math.isfinite(value))
    total, first = sum(known), known[-1] if known else math.nan
    others = median(known[:-1]) if len(known) > 1 else math.nan
    return Triage(
        cause=str(content.get("cause") or ""),
        confidence=confidence(content.get("confidence")),
        input_nonfinite=len(inputs.get("nonfinite") or ()),
        input_absmax=number(inputs.get("absmax")),
        events_nonfinite=whole(losses.get("nonfinite"), 0),
        top_share=first / total if total > 0 else math.nan,
        top_ratio=first / others if others > 0 else math.nan,
        module="" if _in_loss(content.get("module")) else _module_name(content.get("module")),
        in_loss=_in_loss(content.get("module")),
        module_input_absmax=number(content.get("module_input_absmax")),
        finite_in_float32=_flag(content.get("finite_in_float32")),
        finite_with_saved_weights=_flag(content.get("finite_with_saved_weights")),
        weights_finite=_flag(content.get("weights_finite")),
    )


def mapping(value: object) -> Mapping[str, Any]:
    """Return a recorded mapping, empty where there is something else."""
    return value if isinstance(value, Mapping) else {}


def whole(value: object, default: int) -> int:
    """Return a recorded number as an integer, or ``default`` where there is none."""
    found = number(value)
    return int(found) if math.isfinite(found) else default


def confidence(value: object) -> float:
    """Return how sure an automatic look was, from 0 to 1; it says so in words or as a number."""
    return CONFIDENCES.get(value, math.nan) if isinstance(value, str) else number(value)


def _in_loss(value: object) -> bool:
    return isinstance(value, Mapping) and value.get("phase") == "loss"


def _module_name(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("module") or value.get("name") or "")
    return str(value) if value else ""


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None

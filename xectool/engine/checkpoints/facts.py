"""Tables of a checkpoint: its sections, its tensors, where its weights come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xectool.checkpoint.inspection.facts import Inspected
from xectool.checkpoint.inspection.symbols import BadTensor, TensorRef, item_size
from xectool.checkpoint.inspection.values import relative_distance

_FACTS: Final = (
    "lineage", "train_files", "versions", "created", "mlflow_run_id", "num_averaged", "best_val_loss", "arch",
    "hyper_parameters", "stripped", "metadata",
)  # fmt: skip
_MANY: Final = 40


@dataclass(frozen=True)
class Section:
    """One part of a file: its tensors, their numbers, their bytes."""

    name: str
    tensors: int
    numbers: int
    bytes: int


@dataclass(frozen=True)
class TensorRow:
    """One tensor.

    Attributes:
        name: Its place in the file.
        dtype: Element type.
        shape: Its shape.
        device: Where it lay when saved.
        where: Its bytes in the file.
        minimum: Smallest finite value, NaN where it has none.
        maximum: Largest finite value, NaN where it has none.
        nonfinite: Values that are not finite.
        constant: Whether all values are the same.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    where: str
    minimum: float = math.nan
    maximum: float = math.nan
    nonfinite: int = 0
    constant: bool = False


def parameters_of(facts: Inspected) -> tuple[int, int | None]:
    """Return how many floating-point numbers of the raw weights are parameters, and how many are of buffers.

    Of a file that describes no network nobody knows which are buffers: all of them are counted, and None goes with it.
    """
    sizes = {name: value.numel() for name, value in facts.layout.main.items() if value.is_floating_point()}
    if facts.buffers is None:
        return sum(sizes.values()), None
    buffers = sum(size for name, size in sizes.items() if name in facts.buffers)
    return sum(sizes.values()) - buffers, buffers


def sections_of(facts: Inspected) -> tuple[Section, ...]:
    """Return the parts of a file by the first word of each tensor's place, or the second where there is one part."""
    refs = facts.contents.tensors
    for depth in (1, 2):
        groups: dict[str, list[TensorRef]] = {}
        for name, ref in refs.items():
            groups.setdefault(".".join(name.split(".")[:depth]), []).append(ref)
        if 1 < len(groups) <= _MANY:
            break
    return tuple(_section(name, members) for name, members in groups.items())


def _section(name: str, members: list[TensorRef]) -> Section:
    numbers = [_count(ref) for ref in members]
    size = sum(count * _size(ref) for count, ref in zip(numbers, members, strict=True))
    return Section(name, len(members), sum(numbers), size)


def tensor_rows(facts: Inspected) -> tuple[TensorRow, ...]:
    """Return every tensor with its numbers."""
    rows: list[TensorRow] = []
    for name, ref in facts.contents.tensors.items():
        where = ref.storage.where if ref.storage is not None else ""
        base = (name, ref.dtype, tuple(ref.shape), ref.device, where)
        found = facts.stats.get(name)
        numbers = () if found is None else (found.minimum, found.maximum, found.num_nonfinite, found.constant)
        rows.append(TensorRow(*base, *numbers))
    return tuple(rows)


def lineage_of(facts: Inspected) -> dict[str, Any]:
    """Return where weights come from: starting checkpoint, data, versions; devices and distance of the average."""
    layout = facts.layout
    found = {key: layout.meta[key] for key in _FACTS if layout.meta.get(key) is not None}
    section = (layout.config or {}).get("checkpoint")
    if isinstance(section, Mapping):
        found |= {key: section[key] for key in ("init_from", "resume_from") if section.get(key)}
    devices = sorted({ref.device for ref in facts.contents.tensors.values()})
    found["devices"] = devices
    model, average = layout.weights.get("model"), layout.weights.get("ema")
    if model and average:
        found["ema_distance"] = relative_distance(average, model)
    if facts.optimizer is not None:
        state = facts.optimizer
        found["optimizer"] = {
            "groups": state.num_groups,
            "parameters": state.num_parameters,
            "states": state.num_states,
            "steps": state.last_step,
            "learning_rates": state.learning_rates,
        }
    return found


def _count(ref: TensorRef) -> int:
    return ref.num_elements if all(isinstance(size, int) and size >= 0 for size in ref.shape) else 0


def _size(ref: TensorRef) -> int:
    try:
        return item_size(ref.dtype)
    except BadTensor:
        return 0

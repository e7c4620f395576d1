"""Two files tensor by tensor: what is missing, of another shape, or of other values, and by how much."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from xectool.checkpoint.inspection.layout import Layout


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that is not the same in two files.

    Attributes:
        tensor: Set of weights and name, such as ``model: heads.energy.6.weight``.
        status: ``only here``, ``only there``, ``shape``, ``dtype`` or ``values``.
        max_abs: Largest difference; NaN where there is nothing to subtract, infinity where only one is finite.
        max_rel: Largest difference over the larger magnitude of the two values.
        num_different: Values that are not equal.
        detail: Both shapes or element types.
    """

    tensor: str
    status: str
    max_abs: float = math.nan
    max_rel: float = math.nan
    num_different: int = 0
    detail: str = ""


@dataclass(frozen=True)
class PartCompared:
    """How many tensors of a part of the network there are in two files, and how many are equal bit for bit."""

    name: str
    tensors: int
    same: int


@dataclass(frozen=True)
class Comparison:
    """Two files side by side.

    Attributes:
        num_same: Tensors that are equal bit for bit.
        differences: The others.
        parts: The parts of the network, by the first word of a tensor's name.
    """

    num_same: int
    differences: tuple[TensorDifference, ...]
    parts: tuple[PartCompared, ...] = ()


def compare(here: Layout, there: Layout) -> Comparison:
    """Compare the sets of weights two files share; where they share none, the main ones."""
    shared = [role for role in here.weights if role in there.weights]
    pairs = [(role, here.weights[role], there.weights[role]) for role in shared] or [("model", here.main, there.main)]
    alone = [(role, "only here") for role in here.weights if role not in there.weights and shared]
    alone += [(role, "only there") for role in there.weights if role not in here.weights and shared]
    found = [TensorDifference(f"{role}: all weights", status) for role, status in alone]
    all_of, equal = Counter[str](), Counter[str]()
    for role, first, second in pairs:
        differing = [*_differences(role, first, second)]
        found += differing
        own = Counter(
            _part(role, name, len(pairs)) for name in (*first, *(name for name in second if name not in first))
        )
        all_of += own
        equal += own - Counter(_part(role, item.tensor.partition(": ")[2], len(pairs)) for item in differing)
    parts = tuple(PartCompared(name, number, equal[name]) for name, number in all_of.items())
    return Comparison(equal.total(), tuple(found), parts)


def _part(role: str, name: str, num_roles: int) -> str:
    """Return the part of the network a tensor belongs to, and of which weights where both files have several sets."""
    part = name.partition(".")[0]
    return part if num_roles == 1 else f"{role}: {part}"


def _differences(role: str, here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> Iterator[TensorDifference]:
    for name in here:
        label = f"{role}: {name}"
        if name not in there:
            yield TensorDifference(label, "only here", detail=str(list(here[name].shape)))
            continue
        found = _difference(label, here[name], there[name])
        if found is not None:
            yield found
    for name in there:
        if name not in here:
            yield TensorDifference(f"{role}: {name}", "only there", detail=str(list(there[name].shape)))


@torch.no_grad()
def _difference(label: str, here: Tensor, there: Tensor) -> TensorDifference | None:
    if here.shape != there.shape:
        return TensorDifference(label, "shape", detail=f"{list(here.shape)} here, {list(there.shape)} there")
    if "meta" in (here.device.type, there.device.type):
        return None
    if here.dtype != there.dtype:
        a, b = (str(value.dtype).removeprefix("torch.") for value in (here, there))
        detail = f"{a} here, {b} there"
        numbers = _numbers(here, there)
        return TensorDifference(label, "dtype", *numbers, detail=detail)
    max_abs, max_rel, count = _numbers(here, there)
    return TensorDifference(label, "values", max_abs, max_rel, count) if count else None


def _numbers(here: Tensor, there: Tensor) -> tuple[float, float, int]:
    """Return the largest absolute and relative difference, and how many values differ; two NaN are equal."""
    if not here.numel():
        return 0.0, 0.0, 0
    wide = torch.complex128 if here.is_complex() or there.is_complex() else torch.float64
    a, b = here.to(wide), there.to(wide)
    whole = not any(value.is_floating_point() or value.is_complex() for value in (here, there))
    # beyond 2^53 a float64 no longer tells neighbouring integers apart
    different = here.long() != there.long() if whole else (a != b) & ~(a.isnan() & b.isnan())
    count = int(different.sum())
    if not count:
        return 0.0, 0.0, 0
    gap = (a - b).abs()[different]
    size = torch.maximum(a.abs(), b.abs())[different]
    relative = torch.nan_to_num(gap / size, nan=math.inf)
    return float(torch.nan_to_num(gap, nan=math.inf).max()), float(relative.max()), count

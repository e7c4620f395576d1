"""Graphs of earlier steps that something still holds, and who: a loss in a list, or in a sum that goes on for ever."""

from __future__ import annotations

import gc
import sys
from collections import deque
from dataclasses import dataclass
from statistics import median
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import torch

KEPT_STEPS: Final = 10
"""More graphs than a step has of its own, even with weights that it uses several times."""
_MOST_NODES: Final = 300_000
_DEEPEST: Final = 4
_CONTAINERS: Final = (list, tuple, dict, set, deque)


@dataclass(frozen=True)
class KeptGraphs:
    """What is alive of the graphs of steps.

    Attributes:
        steps: About how many steps' graphs.
        holder: Who holds them: a variable with its file, or an attribute with its class; empty where it is not known.
    """

    steps: int = 0
    holder: str = ""


def kept_graphs() -> KeptGraphs:
    """Return what holds graphs of many steps; walks over every object of the process, so it is called once a run."""
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor) and item.grad_fn is not None]
    steps, leading = _steps([tensor.grad_fn for tensor in tensors])
    if not steps:
        return KeptGraphs()
    tensors = [tensor for tensor in tensors if tensor.grad_fn in leading]
    full = _full_container(tensors)
    # Without a container it is a sum: one tensor whose own graph is that of many steps.
    kept = full or [tensor for tensor in tensors if _steps([tensor.grad_fn])[0]]
    return KeptGraphs(steps, _holder(kept))


def _full_container(tensors: list[Any]) -> list[Any]:
    """Return the container that holds the most of the tensors, or of what holds one each; nothing where none does."""
    level = holding = tensors
    for _ in range(_DEEPEST):
        members, own = set(map(id, level)), {id(tensors), id(level), id(holding)}
        found = [item for item in gc.get_referrers(*level) if type(item) in _CONTAINERS and id(item) not in own]
        counts = {id(item): sum(id(member) in members for member in _members(item)) for item in found}
        if any(count >= KEPT_STEPS for count in counts.values()):
            return [max(found, key=lambda item: counts[id(item)])]
        holding, level = found, [item for item in found if counts[id(item)]]
        if not level:
            break
    return []


def _members(container: Any) -> list[Any]:
    return [*container.values()] if isinstance(container, dict) else [*container]


def _steps(roots: list[Any]) -> tuple[int, set[Any]]:
    """Return how often some graphs lead to one weight, and all nodes that lead to weights which are reached so often.

    It is the middle of the weights reached often: graphs of other things, which lead once to many weights, hide none.
    """
    users, left = dict[Any, list[Any]](), list(roots)
    seen = set(roots)
    while left and len(seen) < _MOST_NODES:
        node = left.pop()
        for used in (used for used, _ in node.next_functions if used is not None):
            users.setdefault(used, []).append(node)
            if used not in seen:
                seen.add(used)
                left.append(used)
    often = [node for node, by in users.items() if hasattr(node, "variable") and len(by) >= KEPT_STEPS]
    leading, left = set(often), list(often)
    while left:
        new = set(users.get(left.pop(), ())) - leading
        leading |= new
        left += new
    return round(median(len(users[node]) for node in often)) if often else 0, leading


def _holder(kept: list[Any]) -> str:
    """Return the name under which one of some objects, or what it lies in, is kept."""
    level, seen = kept, {id(kept)}
    for _ in range(_DEEPEST):
        seen |= {id(level), *map(id, level)}
        holding = [item for item in gc.get_referrers(*level) if id(item) not in seen]
        held = set(map(id, level))
        name = next((name for item in holding if (name := _name(held, item))), "") or _of_calls(held)
        if name:
            return name
        level = [item for item in holding if type(item) in _CONTAINERS]
        if not level:
            break
    return ""


def _of_calls(held: set[int]) -> str:
    """Return the variable of a call that goes on: the collector does not see these."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_filename != __file__ and (name := _key(held, frame.f_locals)):
            return f"{name} of {code.co_name} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


def _name(held: set[int], holding: Any) -> str:
    """Return what an object is called where a module, an instance or a function holds it."""
    if isinstance(holding, CellType):
        functions = (item for item in gc.get_referrers(*gc.get_referrers(holding)) if isinstance(item, FunctionType))
        return next((_of_function(item, holding) for item in functions if holding in (item.__closure__ or ())), "")
    if not isinstance(holding, dict):
        return _of_instance(held, holding)
    name = _key(held, holding)
    if "__name__" in holding and "__spec__" in holding:
        return f"{name} ({holding.get('__file__') or holding['__name__']})" if name else ""
    owners = (item for item in gc.get_referrers(holding) if getattr(item, "__dict__", None) is holding)
    return next((_attribute(item, name) for item in owners if name and not isinstance(item, ModuleType)), "")


def _of_function(function: FunctionType, cell: CellType) -> str:
    code = function.__code__
    name = code.co_freevars[(function.__closure__ or ()).index(cell)]
    return f"{name} of {function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def _of_instance(held: set[int], holding: Any) -> str:
    """Return the attribute of an object whose attributes lie in no dictionary of their own yet."""
    attributes = getattr(holding, "__dict__", None)
    if type(holding) in _CONTAINERS or not isinstance(attributes, dict) or isinstance(holding, type | torch.Tensor):
        return ""
    name = _key(held, attributes)
    return _attribute(holding, name) if name else ""


def _attribute(owner: Any, name: str) -> str:
    kind = type(owner)
    return f"{kind.__qualname__}.{name} ({getattr(sys.modules.get(kind.__module__), '__file__', kind.__module__)})"


def _key(held: set[int], names: dict[str, Any]) -> str:
    return next((str(name) for name, value in [*names.items()] if id(value) in held), "")

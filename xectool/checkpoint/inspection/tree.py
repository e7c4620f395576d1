"""Symbols to plain values with tensors in place, and the list of all tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from xectool.checkpoint.inspection.archive import Problem
from xectool.checkpoint.inspection.symbols import BadTensor, Made, StorageRef, TensorRef, Unknown, tensor

_MAX_NODES: Final = 400_000
_FLAT_SHARE: Final = 64
_MAX_DEPTH: Final = 200
_FLAT = (str, int, float, bool, bytes, type(None))
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, eq=False)
class Opaque:
    """An object of a class, as far as it can be seen without making it.

    Attributes:
        name: Its class, or the function that would make it.
        weights: Tensors in it by the names a state dict gives them.
    """

    name: str
    weights: Mapping[str, Any]


@dataclass
class Resolved:
    """A tree of plain values.

    Attributes:
        payload: Dictionaries, lists, numbers, text, and torch tensors that view the file.
        tensors: What the file says of every tensor, by dotted place in the tree.
        values: The tensors themselves, by the same name; without those that cannot be read.
        problems: What could not be resolved.
    """

    payload: Any = None
    tensors: dict[str, TensorRef] = field(default_factory=dict)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def resolve(value: Any) -> Resolved:
    """Return a tree of symbols as plain values."""
    walker = _Walker()
    payload = walker.visit(value, (), 0)
    if walker.nodes > _MAX_NODES:
        walker.out.problems.append(Problem(f"its structure repeats itself beyond {_MAX_NODES} parts", check="K01"))
    walker.out.payload = payload
    return walker.out


class _Walker:
    def __init__(self) -> None:
        self.out = Resolved()
        self.nodes = 0
        self.open: set[int] = set()

    def visit(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        self.nodes += 1
        if isinstance(value, _FLAT):
            return value
        if isinstance(value, TensorRef):
            return self.tensor(value, ".".join(path))
        if isinstance(value, StorageRef):
            return Unknown("a bare storage")
        if depth > _MAX_DEPTH or self.nodes > _MAX_NODES or id(value) in self.open:
            return Unknown("nested in itself, or too deep")
        self.open.add(id(value))
        try:
            return self.container(value, path, depth + 1)
        finally:
            self.open.discard(id(value))

    def container(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        if isinstance(value, dict):
            return {key: self.visit(item, (*path, str(key)), depth) for key, item in value.items()}
        if isinstance(value, list | tuple) and all(type(item) in _FLAT for item in value):
            self.nodes += len(value) // _FLAT_SHARE
            return value if isinstance(value, tuple) else list(value)
        if isinstance(value, list | tuple):
            items = [self.visit(item, (*path, str(index)), depth) for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, set):
            return set(value)
        if isinstance(value, Made):
            return self.object(value, path, depth)
        return Unknown(type(value).__name__)

    def tensor(self, ref: TensorRef, name: str) -> Any:
        self.out.tensors[name] = ref
        try:
            self.out.values[name] = tensor(ref)
            return self.out.values[name]
        except (BadTensor, RuntimeError) as error:
            where = ref.storage.where if ref.storage is not None else ""
            self.out.problems.append(Problem(f"tensor {name} cannot be read: {error}", where))
            return Unknown(str(error))

    def object(self, value: Made, path: tuple[str, ...], depth: int) -> Opaque:
        """Return an object with the tensors found in it; attributes that only group them leave the name out."""
        found: dict[str, Any] = {}
        for key, item in _members(value):
            seen = self.visit(item, (*path, *key), depth)
            found |= _named(key, seen)
        return Opaque(value.name, found)


def _members(value: Made) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what an object holds, with the name a state dict would give it."""
    state = value.state
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state = {**(state[0] if isinstance(state[0], dict) else {}), **state[1]}
    if isinstance(state, dict):
        for key, item in state.items():
            if key in _MODULE_PARTS and isinstance(item, dict):
                yield from (((str(name),), part) for name, part in item.items())
            else:
                yield (str(key),), item
    elif state is not None:
        yield ("state",), state
    yield from (((str(index),), item) for index, item in enumerate(_arguments(value)))
    yield from (((str(key),), item) for key, item in value.pairs if isinstance(key, str | int))
    yield from (((str(index),), item) for index, item in enumerate(value.values))


def _arguments(value: Made) -> tuple[Any, ...]:
    return value.args if isinstance(value.args, tuple) else ()


def _named(key: tuple[str, ...], seen: Any) -> dict[str, Any]:
    """Return the tensors of a member under dotted names."""
    prefix = ".".join(key)
    if isinstance(seen, Opaque):
        return {f"{prefix}.{name}": item for name, item in seen.weights.items()}
    if isinstance(seen, dict):
        inner = [_named((str(name),), item) for name, item in seen.items()]
        return {f"{prefix}.{name}": item for group in inner for name, item in group.items()}
    return {prefix: seen} if hasattr(seen, "dtype") else {}

"""A checksum of every tensor and fact, by its place: where a digest says that something changed, these say what."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

SEALS_KEY: Final = "seals"
_FACT_DEPTH: Final = 2  # of the facts, each section of the configuration has its own
DEEPEST: Final = 100
"""Levels of containers that are looked into; a checkpoint has five, a hostile one any number."""


def seals(content: Mapping[str, Any]) -> str:
    """Return checksums as JSON text by dotted place, in the order of the content.

    Args:
        content: Sections of a checkpoint; ``meta`` is JSON text.
    """
    return json.dumps(dict(_sealed(content)), separators=(",", ":"))


def broken_seals(content: Mapping[str, Any], written: object) -> tuple[str, ...]:
    """Return the places whose content is not what was sealed: changed, gone, or new; empty where nothing is sealed."""
    try:
        stored = json.loads(written) if isinstance(written, str) else None
    except (ValueError, RecursionError):
        return (SEALS_KEY,)
    if not isinstance(stored, Mapping):
        return ()
    found = dict(_sealed(content))
    garbled = "meta." if "meta" in found else "\0"  # facts that are no JSON any more are one place
    places = [*found, *(place for place in stored if place not in found and not place.startswith(garbled))]
    return tuple(place for place in places if found.get(place) != stored.get(place))


def _sealed(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if name == "meta":
            yield from _facts(value)
        else:
            yield from _parts(value, (name,))


def _facts(text: Any) -> Iterator[tuple[str, str]]:
    try:
        facts = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        facts = str(text)
    yield from _members(facts, ("meta",))


def _members(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and len(path) <= _FACT_DEPTH:
        for key, item in value.items():
            yield from _members(item, (*path, str(key)))
    else:
        yield ".".join(path), _crc(json.dumps(value, sort_keys=True).encode())


def _parts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each tensor, and all plain values that stand together as one."""
    if isinstance(value, Tensor) or len(path) > DEEPEST:
        yield ".".join(path), _of_tensor(value) if isinstance(value, Tensor) else "none"
        return
    items = _items(value)
    nested = {key: item for key, item in items.items() if isinstance(item, Tensor | Mapping | list | tuple)}
    plain = {key: item for key, item in items.items() if key not in nested}
    if plain or not items:
        yield ".".join(path), _crc(repr(sorted(plain.items()) if items else value).encode())
    for key, item in nested.items():
        yield from _parts(item, (*path, key))


def _items(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return {str(place): item for place, item in enumerate(value)} if isinstance(value, list | tuple) else {}


def is_stored(value: Tensor) -> bool:
    """Return whether a tensor has the numbers of its shape; a hostile file declares 40 TB over four bytes."""
    if value.device.type == "meta" or value.layout != torch.strided:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _of_tensor(value: Tensor) -> str:
    if not is_stored(value):
        return "none"
    flat = value.detach().cpu().contiguous()
    start = zlib.crc32(f"{flat.dtype} {tuple(flat.shape)}".encode())
    return _crc(flat.reshape(-1).view(torch.uint8).numpy().data, start) if flat.numel() else f"{start:08x}"


def _crc(content: Any, start: int = 0) -> str:
    return f"{zlib.crc32(content, start):08x}"

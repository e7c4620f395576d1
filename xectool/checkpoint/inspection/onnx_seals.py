"""A checksum of every part of an ONNX file of ours: where its digest says that something changed, these say what.

They stand in the metadata: eight digits a part in the order of the file, and eight over those digits. A weight
counts by its bytes, so moving weights to a file beside it, or back, keeps them.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from xectool.checkpoint.inspection import onnx_digest
from xectool.checkpoint.inspection.protobuf import Field, fields

SEALS_KEY: Final = "xectool.seals"
_DIGITS: Final = 8
_TITLES: Final = {1: "node", 5: "weight", 11: "input", 12: "output", 13: "shape"}
_NAMES: Final = {1: (3, 2), 5: (8,), 11: (1,), 12: (1,), 13: (1,)}
_HEADER: Final = {1: "ir_version", 2: "producer_name", 3: "producer_version", 8: "opset_import"}
_OWN: Final = (onnx_digest.KEY, SEALS_KEY)


class _Part(NamedTuple):
    label: str
    checksum: str


def seals_of(path: Path) -> str:
    """Return the checksums of a file without any, to be added to its metadata."""
    found = "".join(part.checksum for part in _parts(path, memoryview(path.read_bytes())))
    return found + _crc(found.encode())


def changed_parts(path: Path, data: memoryview) -> tuple[str, ...]:
    """Return the parts of a file that are not those that were sealed, with their bytes; empty where none is known.

    Args:
        path: The file; weights may lie beside it.
        data: Its bytes.
    """
    try:
        stored = next((value for key, value, _ in _metadata(data) if key == SEALS_KEY), "")
        found = list(_parts(path, data))
    except (OSError, LookupError, ValueError):  # cut short, or without its weights: for its readers to word
        return ()
    listed, own = stored[:-_DIGITS], stored[-_DIGITS:]
    if not listed:
        return ()
    if _crc(listed.encode("utf-8", "replace")) != own:
        return (f"metadata {SEALS_KEY}",)
    wanted = Counter(listed[at : at + _DIGITS] for at in range(0, len(listed), _DIGITS))
    changed = []
    for part in found:
        if wanted[part.checksum] > 0:
            wanted[part.checksum] -= 1
        else:
            changed.append(part.label)
    lost = max(0, sum(wanted.values()) - len(changed))
    return (*changed, f"parts that are gone ({lost})") if lost else tuple(changed) or (f"metadata {onnx_digest.KEY}",)


def _parts(path: Path, data: memoryview) -> Iterator[_Part]:
    for item in fields(data):
        content = data[item.start : item.end]
        if item.number == onnx_digest.GRAPH:
            yield from _graph_parts(path, content, item.start)
        elif item.number != onnx_digest.METADATA:
            label = f"header {_HEADER.get(item.number, f'field {item.number}')} (byte {item.start})"
            yield _Part(label, _crc(content, item.number))
    for key, _, item in _metadata(data):
        if key not in _OWN:
            content = data[item.start : item.end]
            yield _Part(f"metadata {key[:80]} (bytes {item.start} to {item.end})", _crc(content, item.number))


def _graph_parts(path: Path, graph: memoryview, start: int) -> Iterator[_Part]:
    opened: dict[str, memoryview] = {}
    for item in fields(graph):
        content = graph[item.start : item.end]
        title, place = _TITLES.get(item.number, "graph field"), f"bytes {start + item.start} to {start + item.end}"
        name = _name(content, item.number) if item.number in _NAMES else str(item.number)
        checksum = item.number
        if item.number == onnx_digest.INITIALIZER:
            for number, part in onnx_digest.weight_parts(path, content, opened):
                checksum = zlib.crc32(part, zlib.crc32(f"{number} {len(part)}".encode(), checksum))
        else:
            checksum = zlib.crc32(content, checksum)
        yield _Part(f"{title} {name[:80]} ({place})", f"{checksum:08x}")


def _name(content: memoryview, number: int) -> str:
    """Return what a part of a graph calls itself, as far as it can be read."""
    try:
        found = {
            item.number: content[item.start : item.end] for item in fields(content) if item.number in _NAMES[number]
        }
    except ValueError:
        return "whose name cannot be read"
    return next((bytes(found[key]).decode("utf-8", "replace") for key in _NAMES[number] if key in found), "")


def _metadata(data: memoryview) -> Iterator[tuple[str, str, Field]]:
    for item in fields(data):
        if item.number == onnx_digest.METADATA:
            yield (*onnx_digest.pair(data[item.start : item.end]), item)


def _crc(content: bytes | memoryview, start: int = 0) -> str:
    return f"{zlib.crc32(content, start):08x}"

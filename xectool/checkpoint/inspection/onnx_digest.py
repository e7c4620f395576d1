"""The digest that an ONNX file of ours carries over all it holds: graph, weights, description.

It stands in the metadata, and its own 64 digits count as zeros. Weights count by their bytes, so moving them to a file
beside it, or back, keeps it.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from xectool.checkpoint.inspection.protobuf import Field, fields

KEY: Final = "xectool.content_sha256"
BLANK: Final = "0" * 64
GRAPH, METADATA = 7, 14
INITIALIZER = 5
_RAW, _EXTERNAL, _LOCATION = 9, 13, 14
_KEY, _VALUE = 1, 2


def seal(path: Path) -> None:
    """Write the digest over its placeholder, the value `BLANK` of the metadata entry `KEY`."""
    data = memoryview(path.read_bytes())
    place = _place(data)
    if place is None:
        raise ValueError(f"{path} has no metadata entry {KEY} of {len(BLANK)} digits")
    found = _digest(path, data, place)
    with path.open("rb+") as stream:
        stream.seek(place.start)
        stream.write(found.encode())


def file_digest_holds(path: Path) -> bool | None:
    """Return whether a file is what was exported, as :func:`digest_holds`; None where there is no file, or no byte."""
    if not path.is_file() or not path.stat().st_size:
        return None
    with path.open("rb") as stream:
        return digest_holds(path, memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))


def digest_holds(path: Path, data: memoryview) -> bool | None:
    """Return whether an ONNX file is what was exported; None where it has no digest or is cut short.

    Args:
        path: The file; weights may lie beside it.
        data: Its bytes.
    """
    try:
        place = _place(data)
        if place is None:
            return False if _is_misspelt(data) else None
        return bytes(data[place.start : place.end]) == _digest(path, data, place).encode()
    except (OSError, LookupError, ValueError):  # cut short, or without its weights: for its readers to word
        return None


def _digest(path: Path, data: memoryview, place: Field) -> str:
    found = hashlib.sha256()
    for item in fields(data):
        content = data[item.start : item.end]
        if item.start <= place.start < item.end:
            content = memoryview(bytes(data[item.start : place.start]) + BLANK.encode() + data[place.end : item.end])
        for number, part in _parts(path, content) if item.number == GRAPH else [(item.number, content)]:
            found.update(f"{number} {len(part)} ".encode())
            found.update(part)
    return found.hexdigest()


def _parts(path: Path, graph: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield what stands in a graph; of a weight its bytes, in whichever file they lie."""
    opened: dict[str, memoryview] = {}
    for item in fields(graph):
        content = graph[item.start : item.end]
        if item.number == INITIALIZER:
            yield from weight_parts(path, content, opened)
        else:
            yield item.number, content


def weight_parts(path: Path, weight: memoryview, opened: dict[str, memoryview]) -> Iterator[tuple[int, memoryview]]:
    """Yield what stands in a weight, with its bytes in whichever file they lie.

    Args:
        path: The model.
        weight: The message that describes it.
        opened: Files beside the model by name; those that are opened are added.
    """
    inside = [(part.number, weight[part.start : part.end]) for part in fields(weight)]
    yield from ((number, part) for number, part in inside if number not in (_EXTERNAL, _LOCATION))
    told = dict(pair(part) for number, part in inside if number == _EXTERNAL)
    if told:
        whole = opened.setdefault(told["location"], _beside(path, told["location"]))
        start = int(told.get("offset", 0))
        yield _RAW, whole[start : start + int(told.get("length", len(whole)))]


def _beside(path: Path, location: str) -> memoryview:
    place = path.parent / location
    if place.name != location or not place.is_file():
        raise OSError(f"{location} is no file beside it")
    with place.open("rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def _place(data: memoryview) -> Field | None:
    """Return where the digits stand."""
    for item in fields(data):
        entry = data[item.start : item.end]
        if item.number == METADATA and pair(entry)[0] == KEY:
            value = next((part for part in fields(entry) if part.number == _VALUE), None)
            if value is not None and value.end - value.start == len(BLANK):
                return value._replace(start=item.start + value.start, end=item.start + value.end)
    return None


def _is_misspelt(data: memoryview) -> bool:
    """Return whether a key is that of the digest but for one letter: a flipped bit there must not pass for none."""
    keys = [pair(data[item.start : item.end])[0] for item in fields(data) if item.number == METADATA]
    return any(len(key) == len(KEY) and sum(map(str.__ne__, key, KEY)) == 1 for key in keys)


def pair(entry: memoryview) -> tuple[str, str]:
    """Return key and value of a message that holds one of each."""
    found = {part.number: bytes(entry[part.start : part.end]).decode(errors="replace") for part in fields(entry)}
    return found.get(_KEY, ""), found.get(_VALUE, "")

"""The fields of a protobuf message, by their place in its bytes and without a schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_MODEL_FIELDS: Final = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_GRAPH_FIELD: Final = 7
_VARINT, _FIXED64, _COUNTED, _FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a protobuf message: its number, its wire type and the bytes of its value."""

    number: int
    kind: int
    start: int
    end: int


class CutShort(ValueError):
    """A protobuf message ends inside a field."""


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a protobuf message.

    Raises:
        CutShort: It ends inside a field, or a field is of no known kind; the message says at which byte.
    """
    at = 0
    while at < len(data):
        tag, value_at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        start = value_at
        if kind == _VARINT:
            _, end = _varint(data, value_at)
        elif kind == _COUNTED:
            length, start = _varint(data, value_at)
            end = start + length
        elif kind in (_FIXED32, _FIXED64):
            end = start + (4 if kind == _FIXED32 else 8)
        else:
            raise CutShort(f"byte {at} begins no field")
        if end > len(data):
            raise CutShort(f"field {number} at byte {at} ends at byte {end}, the file at {len(data)}")
        yield Field(number, kind, start, end)
        at = end


def looks_like_onnx(data: memoryview) -> bool:
    """Return whether bytes are an ONNX model, as far as they go."""
    seen: set[int] = set()
    try:
        for item in fields(data):
            if _MODEL_FIELDS.get(item.number) != item.kind:
                return False
            seen.add(item.number)
    except CutShort:
        return len(seen) > 2 and {1, 2} <= seen
    return {1, _GRAPH_FIELD} <= seen


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if at + index >= len(data):
            raise CutShort(f"the file ends inside a number at byte {at}")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise CutShort(f"byte {at} begins no number")

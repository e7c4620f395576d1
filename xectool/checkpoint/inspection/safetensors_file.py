"""Safetensors: eight bytes of header length, a JSON header, the tensors' bytes. Nothing in it is a checksum."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from xectool.checkpoint.inspection.archive import Problem
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.symbols import MAX_RANK, StorageRef, TensorRef, item_size
from xectool.checkpoint.inspection.window import Content, unreadable

_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
_DTYPES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip


def looks_like_safetensors(head: bytes, size: int) -> bool:
    """Return whether a file begins like safetensors; its claims may still be wrong.

    The length may be that of any other format's first bytes (640 is the magic number of a pickle); the header decides.
    """
    length, opening = int.from_bytes(head[:_LENGTH_BYTES], "little"), head[_LENGTH_BYTES : _LENGTH_BYTES + 2]
    return opening == b'{"' or (opening in (b"{}", b"{ ", b"{\n") and 2 <= length < 1 << 48)


def read_safetensors(content: Content) -> Contents:
    """Read a safetensors file.

    Raises:
        CheckpointError: Its header is cut short or no header at all.
    """
    data, path = content.data, content.path
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > len(data) - _LENGTH_BYTES:
        raise unreadable(path, f"the file is truncated: its header claims {length} bytes, {len(data) - 8} are there")
    if length > _MAX_HEADER_BYTES:
        raise unreadable(path, f"its header claims {length} bytes, the format allows {_MAX_HEADER_BYTES}")
    header = _header(content, length)
    out = Contents(path, "safetensors", content.sha256, content.size_bytes)
    metadata = header.pop("__metadata__", {})
    out.facts = {"metadata": metadata if isinstance(metadata, dict) else {}}
    body, start = data[_LENGTH_BYTES + length :], _LENGTH_BYTES + length
    tree: dict[str, Any] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        _place(name, entry, body, start, tree, spans, out)
    _check_cover(spans, len(body), start, out)
    out.fill(tree)
    return out


def _header(content: Content, length: int) -> dict[str, Any]:
    raw = bytes(content.data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise unreadable(content.path, f"its header is damaged: {error}") from error
    if not isinstance(header, dict):
        raise unreadable(content.path, "its header is no object of tensors")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"'{twice[:80]}' is there twice")
    return found


def _place(  # noqa: PLR0913 - the five places an entry goes to
    name: str,
    entry: Any,
    body: memoryview,
    start: int,
    tree: dict[str, Any],
    spans: list[tuple[int, int, str]],
    out: Contents,
) -> None:
    problem = _malformed(entry)
    if problem:
        out.problems.append(Problem(f"tensor {name} is described wrongly: {problem}", "the header"))
        return
    begin, end = entry["data_offsets"]
    where = f"bytes {start + begin} to {start + end}"
    dtype, shape = _DTYPES.get(entry["dtype"]), tuple(entry["shape"])
    if dtype is None:
        out.problems.append(Problem(f"tensor {name} has the unknown dtype '{entry['dtype']}'", where, "K07"))
        return
    ref = _reference(name, dtype, shape, where)
    expected = ref.num_elements * item_size(dtype)
    if end > len(body):
        problem = f"the file is truncated: tensor {name} ends at byte {start + end}, the file at {start + len(body)}"
        out.problems.append(Problem(problem, where))
        return
    if end - begin != expected:
        out.problems.append(Problem(f"tensor {name} has {end - begin} bytes, {list(shape)} needs {expected}", where))
        return
    assert ref.storage is not None
    ref.storage.data = body[begin:end]
    spans.append((begin, end, name))
    tree[name] = ref


def _malformed(entry: Any) -> str:
    if not isinstance(entry, Mapping) or {"dtype", "shape", "data_offsets"} - entry.keys():
        return "dtype, shape or data_offsets is missing"
    offsets, shape = entry["data_offsets"], entry["shape"]
    if not (_are_counts(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):
        return f"data_offsets {str(offsets)[:60]}"
    if not _are_counts(shape) or len(shape) > MAX_RANK:
        return f"shape {str(shape[:20] if isinstance(shape, list) else shape)[:60]}"
    return "" if isinstance(entry["dtype"], str) else f"dtype {str(entry['dtype'])[:60]}"


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 60 for item in value)


def _reference(name: str, dtype: str, shape: tuple[int, ...], where: str) -> TensorRef:
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return TensorRef(StorageRef(name, dtype, "cpu", step, where=where), dtype, shape, tuple(stride))


def _check_cover(spans: list[tuple[int, int, str]], available: int, start: int, out: Contents) -> None:
    """Report tensors that share bytes, and bytes that belong to no tensor."""
    at, last = 0, ""
    for begin, end, name in sorted(spans):
        if begin < at:
            out.problems.append(Problem(f"tensor {name} overlaps tensor {last}", f"byte {start + begin}"))
        elif begin > at and not out.problems:
            out.problems.append(
                Problem(f"{begin - at} bytes before tensor {name} belong to no tensor", f"byte {start + at}")
            )
        at, last = max((at, last), (end, name))
    if at < available and not out.problems:
        out.problems.append(Problem(f"{available - at} bytes follow the last tensor", f"byte {start + at}"))

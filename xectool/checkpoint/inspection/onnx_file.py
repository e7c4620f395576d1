"""ONNX models: their weights, what they take and give, and whether all their bytes are there."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from xectool.checkpoint.inspection.archive import Problem
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.onnx_digest import KEY, digest_holds
from xectool.checkpoint.inspection.onnx_seals import SEALS_KEY, changed_parts
from xectool.checkpoint.inspection.protobuf import CutShort, fields
from xectool.checkpoint.inspection.symbols import BadTensor, StorageRef, TensorRef, item_size
from xectool.checkpoint.inspection.window import Content, unreadable

_DTYPES: Final = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn",
    18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
}  # fmt: skip
_MAX_BYTES: Final = 1 << 31  # protobuf's own limit
_DIGITS: Final = 19


def read_onnx(content: Content) -> Contents:
    """Read an ONNX model.

    Raises:
        CheckpointError: It is truncated or damaged.
    """
    if len(content.data) >= _MAX_BYTES:
        raise unreadable(content.path, f"an ONNX file of {len(content.data)} bytes is beyond the format's 2 GiB")
    try:
        for _ in fields(content.data):
            pass
        model = onnx.ModelProto.FromString(bytes(content.data))
    except (CutShort, DecodeError) as error:
        raise unreadable(content.path, f"the ONNX file is truncated or damaged: {error}") from error
    out = Contents(content.path, "onnx", content.sha256, content.size_bytes)
    external = _External(content.path, out.problems)
    tree = dict(_weights(model, external, out.problems))
    holds = digest_holds(content.path, content.data)
    if holds is not None:
        out.changed = () if holds else changed_parts(content.path, content.data) or ("content",)
    out.facts = _facts(model) | {"external_data": sorted(external.names)}
    if out.facts["producer"].startswith(KEY.partition(".")[0]) and KEY not in out.facts["metadata"]:
        what = "xectool wrote the graph, and its metadata are gone: units, normalisation and digest are unknown"
        out.problems.append(Problem(what, "metadata", "X-15"))
    out.fill(tree)
    if not external.names:
        _check(model, out)
    return out


class _External:
    """The files beside a model that hold its weights."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.folder = path.parent
        self.problems = problems
        self.names: set[str] = set()
        self.maps: dict[str, memoryview | None] = {}

    def bytes_of(self, weight: TensorProto) -> memoryview | None:
        """Return the bytes of a weight stored in another file; None where they are not there."""
        told = {item.key: item.value for item in weight.external_data}
        location = told.get("location", "")
        self.names.add(location)
        data = self._open(location)
        if data is None:
            return None
        start, length = told.get("offset", "0"), told.get("length", "")
        if not _is_count(start) or not _is_count(length or "0"):
            self.problems.append(Problem(f"weight {weight.name}: offset or length in {location} is no number"))
            return None
        end = int(start) + int(length) if length else len(data)
        if end > len(data):
            self.problems.append(
                Problem(f"{location} is truncated: weight {weight.name} ends at byte {end} of {len(data)}", location)
            )
            return None
        return data[int(start) : end]

    def _open(self, location: str) -> memoryview | None:
        if location not in self.maps:
            self.maps[location] = self._map(location)
        return self.maps[location]

    def _map(self, location: str) -> memoryview | None:
        try:
            return self._map_inside(location)
        except (OSError, ValueError) as error:  # no name of a file, or one that may not be read
            what = f"the file with its weights cannot be read: '{location[:80]}' ({str(error)[:80]})"
            self.problems.append(Problem(what))
            return None

    def _map_inside(self, location: str) -> memoryview | None:
        place = self.folder / location
        inside = bool(location) and place.resolve().parent.is_relative_to(self.folder.resolve())
        if not inside:
            self.problems.append(Problem(f"its weights are said to lie outside its folder: '{location[:80]}'"))
        elif not place.is_file():
            self.problems.append(Problem(f"the file with its weights is missing: {location}", str(place)))
        elif place.stat().st_size:
            with place.open("rb") as stream:
                return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
        return None


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < _DIGITS


def _weights(model: onnx.ModelProto, external: _External, problems: list[Problem]) -> Iterator[tuple[str, TensorRef]]:
    """Yield all weights of the graph: initializers and constants."""
    for weight in model.graph.initializer:
        yield from _weight(weight.name, weight, external, problems)
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                yield from _weight(f"constant {node.output[0] if node.output else ''}", attribute.t, external, problems)


def _weight(
    name: str, weight: TensorProto, external: _External, problems: list[Problem]
) -> Iterator[tuple[str, TensorRef]]:
    dtype, shape = _DTYPES.get(weight.data_type), tuple(weight.dims)
    if dtype is None:
        if weight.data_type not in TensorProto.DataType.values():
            problems.append(Problem(f"weight {name} has the unknown dtype {weight.data_type}", name, "K07"))
        return
    if weight.data_location == TensorProto.EXTERNAL:
        data = external.bytes_of(weight)
    else:
        data = _inline(name, weight, problems)
    ref = _reference(name, dtype, shape, data)
    if data is None or not _fits(ref, data, problems):
        return
    yield name, ref


def _inline(name: str, weight: TensorProto, problems: list[Problem]) -> memoryview | None:
    if weight.HasField("raw_data"):
        return memoryview(bytearray(weight.raw_data))
    try:
        return memoryview(bytearray(onnx.numpy_helper.to_array(weight).tobytes()))
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        problems.append(Problem(f"weight {name} cannot be read: {error}", name))
        return None


def _reference(name: str, dtype: str, shape: tuple[int, ...], data: memoryview | None) -> TensorRef:
    stride, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        stride[axis], step = step, step * max(shape[axis], 1)
    return TensorRef(StorageRef(name, dtype, "cpu", step, data, f"weight {name}"), dtype, shape, tuple(stride))


def _fits(ref: TensorRef, data: memoryview, problems: list[Problem]) -> bool:
    try:
        expected = ref.num_elements * item_size(ref.dtype)
    except BadTensor as error:
        problems.append(Problem(str(error), ref.dtype, "K07"))
        return False
    if expected != len(data) and ref.storage is not None:
        what = f"weight {ref.storage.key} has {len(data)} bytes, {ref.dtype} {list(ref.shape)} needs {expected}"
        problems.append(Problem(what, ref.storage.where))
    return expected == len(data)


def _facts(model: onnx.ModelProto) -> dict[str, Any]:
    return {
        "ir_version": model.ir_version,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opset": {item.domain or "ai.onnx": item.version for item in model.opset_import},
        "inputs": [_port(item) for item in model.graph.input],
        "outputs": [_port(item) for item in model.graph.output],
        "nodes": len(model.graph.node),
        "metadata": {item.key: item.value for item in model.metadata_props if item.key != SEALS_KEY},
    }


def _port(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    sizes = [str(axis.dim_param or axis.dim_value) for axis in kind.shape.dim]  # bytes where a name is damaged
    return f"{value.name}: {_DTYPES.get(kind.elem_type, 'unknown')} [{', '.join(sizes)}]"


def _check(model: onnx.ModelProto, out: Contents) -> None:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "unknown")
        out.problems.append(Problem(f"the graph is not valid ONNX: {first[:200]}", "graph"))

"""Archives of ``torch.export`` (``.pt2``): their weights, what xectool stored in them, and whether they are whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xectool.checkpoint.inspection.archive import Archive, Entry, Problem
from xectool.checkpoint.inspection.archive_digest import DESCRIPTION, archive_changes
from xectool.checkpoint.inspection.contents import Contents
from xectool.checkpoint.inspection.embedded import hidden_globals
from xectool.checkpoint.inspection.symbols import StorageRef, TensorRef
from xectool.checkpoint.inspection.window import Content

FORMAT: Final = "torch-export"
_MARK: Final = "archive_format"
_MAX_JSON_BYTES: Final = 1 << 26
_DTYPES: Final = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 34: "uint32", 35: "uint64",
}  # fmt: skip


def root_of(names: list[str]) -> str | None:
    """Return what stands before ``archive_format``, the folder of the archive; None of any other archive."""
    found = sorted((name for name in names if name == _MARK or name.endswith(f"/{_MARK}")), key=len)
    return found[0].removesuffix(_MARK) if found else None


def read_export(content: Content, archive: Archive, root: str) -> Contents:
    """Read a model of ``torch.export``; what is wrong with its bytes is a problem of the contents.

    Args:
        content: The file.
        archive: Its directory.
        root: As `root_of` gives it.
    """
    out = Contents(content.path, FORMAT, content.sha256, content.size_bytes)
    out.problems += [*archive.problems, *archive.verify()]
    out.checksums = f"CRC of {len(archive.entries)} entries" if archive.has_checksums else ""
    out.changed = archive_changes(archive)
    names = [entry.name.removeprefix(root) for entry in archive.entries]
    graphs = sorted(name for name in names if name.startswith("models/") and name.endswith(".json"))
    compiled = sorted(name for name in names if name.startswith("data/aotinductor/"))
    if not (graphs or compiled):
        out.problems.append(Problem("the graph is missing from the archive", f"{root}models/model.json"))
    description = archive.by_name.get(f"{root}{DESCRIPTION}")
    stored = _json(archive, description, out.problems) if description is not None else {}
    out.facts = {
        "entries": len(names), "graphs": graphs, "compiled": compiled,
        "metadata": {str(key): str(value) for key, value in stored.items()},
    }  # fmt: skip
    raw: set[str] = set()
    out.fill(dict(_tensors(archive, root, out.problems, raw)))
    for entry in archive.entries:
        if entry.name not in raw:
            out.unsafe += _hidden(archive, entry)
    return out


def _hidden(archive: Archive, entry: Entry) -> Iterator[Any]:
    """Yield the unsafe names of an entry: PyTorch unpickles the example inputs without restriction."""
    try:
        data = archive.read(entry)
    except ValueError:
        return  # verify() has said it
    yield from hidden_globals(data, entry.name, entry.start if not entry.method else None, 1)


def _tensors(archive: Archive, root: str, problems: list[Problem], raw: set[str]) -> Iterator[tuple[str, TensorRef]]:
    """Yield weights and constants by name; the entries that hold nothing but their bytes go into ``raw``."""
    for entry in archive.entries:
        folder, _, name = entry.name.rpartition("/")
        if folder not in (f"{root}data/weights", f"{root}data/constants") or not name.endswith("_config.json"):
            continue
        listed = _json(archive, entry, problems).get("config")
        for key, told in (listed if isinstance(listed, Mapping) else {}).items():
            if not isinstance(told, Mapping) or told.get("use_pickle") or not told.get("tensor_meta"):
                continue
            place = f"{folder}/{told.get('path_name')}"
            raw.add(place)
            try:
                yield str(key), _reference(archive, place, told["tensor_meta"])
            except (KeyError, TypeError, AttributeError) as error:
                problems.append(Problem(f"tensor {key} is not described: {error!r}", entry.place, "K07"))


def _reference(archive: Archive, place: str, meta: Mapping[str, Any]) -> TensorRef:
    shape, stride = (tuple(item["as_int"] for item in meta[part]) for part in ("sizes", "strides"))
    dtype, entry = _DTYPES[meta["dtype"]], archive.by_name.get(place)
    data = _bytes(archive, entry) if entry is not None else None
    where = entry.place if entry is not None else place
    first = meta["storage_offset"]["as_int"]
    storage = StorageRef(place, dtype, str(meta["device"]["type"]), -1, data, where)
    return TensorRef(storage, dtype, shape, stride, first, bool(meta.get("requires_grad")))


def _bytes(archive: Archive, entry: Entry) -> memoryview | None:
    try:
        return archive.read(entry)
    except ValueError:
        return None


def _json(archive: Archive, entry: Entry, problems: list[Problem]) -> Mapping[str, Any]:
    """Return an object of JSON; what is none is a problem, and empty."""
    data = _bytes(archive, entry) if entry.size <= _MAX_JSON_BYTES else None
    try:
        found = json.loads(bytes(data)) if data is not None else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        problems.append(Problem(f"{entry.name} is no JSON object", entry.place))
        return {}
    return found

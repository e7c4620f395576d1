"""Whether a file is a result that an earlier call wrote: that, and an empty file, is all that a result replaces."""

from __future__ import annotations

import json
import mmap
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from xectool.checkpoint.format import FORMAT_NAME
from xectool.checkpoint.inspection.onnx_digest import METADATA, pair
from xectool.checkpoint.inspection.protobuf import fields
from xectool.engine.model_files import exported_format
from xectool.errors.unreadable import ARCHIVE_ERRORS
from xectool.export.description import EXPORTED, EXTRA_FILE, PREFIX
from xectool.rootio.origin import Origin, origin_of

_PICKLES: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
"""How a file begins that older versions of torch.save wrote."""
_PAGE_HEAD: Final = 2048
_PAGE_MARK: Final = "– xectool</title>".encode()
_LENGTH_BYTES: Final = 8


def in_the_way(target: Path, kind: str) -> str:
    """Return what a file is that a result of this kind does not replace; an empty string where it may.

    Args:
        target: The file; it need not exist.
        kind: Of result: ``.onnx``, ``.torchscript``, ``.pt``, ``.pt2``, ``.safetensors``, ``.html``, or the origin of a
            ROOT file.
    """
    try:
        with target.open("rb") as stream:
            head = stream.read(_LENGTH_BYTES)
    except OSError:  # not there
        return ""
    if not head or _EARLIER[kind](target):
        return ""
    if head.startswith(b"root"):
        return f"a ROOT file that holds no {kind}" if isinstance(kind, Origin) else "a ROOT file"
    if head.startswith(_PICKLES) or "data.pkl" in _entries(target):
        return "a checkpoint"
    return f"a file that is no earlier {'.root' if isinstance(kind, Origin) else kind} of xectool's"


def _is_of(origin: Origin) -> Callable[[Path], bool]:
    return lambda path: origin_of(path) == origin


def _is_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return _PAGE_MARK in stream.read(_PAGE_HEAD)


def _is_onnx_export(path: Path) -> bool:
    with path.open("rb") as stream:
        data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        told = [data[item.start : item.end] for item in fields(data) if item.number == METADATA]
        return any(pair(entry)[0].startswith(PREFIX) for entry in told)
    except ValueError:  # no ONNX, or cut short
        return False


def _is_weights_export(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            header = json.loads(stream.read(length)) if length < path.stat().st_size else {}
        return EXPORTED in json.loads(header["__metadata__"][FORMAT_NAME])
    except (ValueError, LookupError, TypeError, RecursionError):  # no safetensors, or weights of another origin
        return False


def _is_archive_export(format_name: str) -> Callable[[Path], bool]:
    return lambda path: exported_format(path) == format_name and f"extra/{EXTRA_FILE}" in _entries(path)


def _entries(path: Path) -> set[str]:
    """Return the names in an archive, without that of its folder; none where it is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {entry.partition("/")[2] for entry in archive.namelist()}
    except ARCHIVE_ERRORS:
        return set()


_EARLIER: Final[Mapping[str, Callable[[Path], bool]]] = {
    ".onnx": _is_onnx_export,
    ".pt": _is_archive_export("torchscript"),
    ".torchscript": _is_archive_export("torchscript"),
    ".pt2": _is_archive_export("pt2"),
    ".safetensors": _is_weights_export,
    ".html": _is_page,
    **{origin: _is_of(origin) for origin in Origin},
}
"""By kind of result, what tells an earlier one."""

"""Pickles and archives inside an entry of an archive; a loader of weights never opens them, another reader may."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Final, cast

from xectool.checkpoint.inspection.archive import LOCAL_MAGIC, Archive, DamagedArchive
from xectool.checkpoint.inspection.opcodes import Pickle, read_pickle
from xectool.checkpoint.inspection.trust import Trust, UnsafeGlobal, trust_of, unsafe_globals
from xectool.checkpoint.inspection.window import XZ_MAGIC, Window, expansion_limit

_MAX_DEPTH: Final = 4
_MAX_PICKLES: Final = 100_000
_BLOB_NAME: Final = "bytes.pkl"
GZIP_MAGIC: Final = b"\x1f\x8b"
BZIP_MAGIC: Final = b"BZh"
_TAR_MARK, _TAR_AT = b"ustar", 257
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".pth", ".pt", ".bin", ".ckpt", ".joblib")
_EXPANDERS: Final[Mapping[bytes, Callable[[memoryview], IO[bytes]]]] = {
    GZIP_MAGIC: lambda data: cast("IO[bytes]", gzip.GzipFile(fileobj=io.BytesIO(data))),
    BZIP_MAGIC: lambda data: bz2.BZ2File(io.BytesIO(data)),
    XZ_MAGIC: lambda data: lzma.LZMAFile(io.BytesIO(data)),  # noqa: SIM115 - its caller closes it
}
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError, MemoryError)


def hidden_globals(
    data: memoryview, name: str, base: int | None, depth: int = 0, allowed: tuple[str, ...] = ()
) -> Iterator[UnsafeGlobal]:
    """Yield the unsafe names of all pickles in an entry, through nested archives.

    Args:
        data: Bytes of the entry.
        name: Its name, with the archives around it.
        base: Byte of the file it begins at; None inside compressed data.
        depth: Archives around it.
        allowed: Modules that mean nothing to Python.
    """
    if depth > _MAX_DEPTH or not len(data):
        return
    head = bytes(data[:8])
    if head.startswith(LOCAL_MAGIC):
        yield from _in_zip(data, name, base, depth, allowed)
    elif is_tar(data):
        yield from _in_tar(data, name, depth, allowed)
    elif expander := next((kind for magic, kind in _EXPANDERS.items() if head.startswith(magic)), None):
        try:
            with expander(data) as stream:
                inner = stream.read(expansion_limit(len(data)))
        except _DAMAGED:
            return
        yield from hidden_globals(memoryview(inner), f"{name} (expanded)", None, depth + 1, allowed)
    elif head[:1] == b"\x80" or name.lower().endswith(_PICKLE_SUFFIXES):
        for found in _pickles(data, 0):
            yield from globals_of(found, name, base, depth, allowed)


def globals_of(
    found: Pickle, name: str, base: int | None, depth: int = 0, allowed: tuple[str, ...] = ()
) -> Iterator[UnsafeGlobal]:
    """Yield the unsafe names of a pickle, and of what lies in it as byte strings."""
    yield from unsafe_globals(found.globals, name, base, allowed)
    for blob in found.blobs:
        suffix = _BLOB_NAME if blob[:1] in b"c(" else "bytes"
        yield from hidden_globals(memoryview(blob), f"{name} > {suffix}", None, depth + 1, allowed)


def globals_behind(
    data: memoryview, start: int, name: str, base: int | None, allowed: tuple[str, ...] = ()
) -> Iterator[UnsafeGlobal]:
    """Yield the unsafe names of the pickles from a byte on: no loader of weights opens them, ``pickle.load`` does.

    Other bytes look like one now and then: a pickle is what is whole, or has run code before it breaks.
    """
    for found in _pickles(data, start):
        if not found.problem or any(trust_of(item) is Trust.CODE for item in found.globals):
            yield from globals_of(found, name, base, 0, allowed)


def _pickles(data: memoryview, start: int) -> Iterator[Pickle]:
    """Yield the pickles that follow one another in some bytes, up to the first that is not whole."""
    for _ in range(_MAX_PICKLES):
        if start >= len(data):
            return
        found = read_pickle(data, start)
        yield found
        if found.problem or found.end <= start:
            return
        start = found.end


def is_tar(data: memoryview) -> bool:
    """Return whether bytes begin like a tar archive."""
    return bytes(data[_TAR_AT : _TAR_AT + len(_TAR_MARK)]) == _TAR_MARK


def _in_zip(
    data: memoryview, name: str, base: int | None, depth: int, allowed: tuple[str, ...]
) -> Iterator[UnsafeGlobal]:
    try:
        archive = Archive(data)
    except DamagedArchive:
        return
    for entry in archive.entries:
        try:
            content = archive.read(entry)
        except ValueError:
            continue
        place = None if base is None or entry.method else base + entry.start
        yield from hidden_globals(content, f"{name} > {entry.name}", place, depth + 1, allowed)


def _in_tar(data: memoryview, name: str, depth: int, allowed: tuple[str, ...]) -> Iterator[UnsafeGlobal]:
    try:
        members = tar_members(data)
    except _DAMAGED:
        return
    for member, content in members.items():
        yield from hidden_globals(content, f"{name} > {member}", None, depth + 1, allowed)


def tar_members(data: memoryview) -> dict[str, memoryview]:
    """Return the files of a tar archive as views of it.

    Raises:
        OSError, EOFError, ValueError, tarfile.TarError: It is damaged.
    """
    with tarfile.open(fileobj=cast("IO[bytes]", Window(data)), mode="r:") as archive:
        return {m.name: data[m.offset_data : m.offset_data + m.size] for m in archive if m.isreg() and not m.sparse}

"""Bytes of a file without copies: mapped, or expanded within bounds where the whole file is compressed."""

from __future__ import annotations

import hashlib
import io
import lzma
import mmap
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xectool.checkpoint.another import damaged_checkpoint
from xectool.checkpoint.names import EXPORT_AGAIN, EXPORTS, USE_ANOTHER
from xectool.errors import CheckpointError, in_shell

XZ_MAGIC: Final = b"\xfd7zXZ\x00"
_BLOCK: Final = 1 << 22
EXPANSION_LIMIT: Final = 200
"""Weights do not compress two hundredfold; what claims to is made to fill memory."""
EXPANSION_FLOOR: Final = 1 << 26


class TooLarge(ValueError):
    """Compressed data expand beyond all reason."""


def expansion_limit(compressed_bytes: int) -> int:
    """Return to how many bytes compressed data may expand."""
    return max(EXPANSION_FLOOR, min(compressed_bytes * EXPANSION_LIMIT, 1 << 35))


@dataclass(frozen=True)
class Content:
    """The bytes of one file.

    Attributes:
        path: The file.
        data: All bytes, expanded where ``packing`` says so; writable for torch's sake, the file is never changed.
        size_bytes: Size on disk.
        sha256: Digest of the file as it lies on disk.
        packing: ``xz`` where the file is compressed as a whole, else empty.
    """

    path: Path
    data: memoryview
    size_bytes: int
    sha256: str
    packing: str = ""


class Window(io.RawIOBase):
    """A seekable, read-only stream over bytes."""

    def __init__(self, data: memoryview, start: int = 0) -> None:
        self._data = data
        self._at = start

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the next byte's number."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; a place before the first byte is an error as for files."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise OSError("seek before the start")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to ``size`` bytes, fewer at the end."""
        end = len(self._data) if size is None or size < 0 else min(len(self._data), self._at + size)
        found = bytes(self._data[self._at : end])
        self._at += len(found)
        return found

    def readline(self, size: int | None = -1) -> bytes:
        """Return the bytes up to and with the next line end."""
        found = bytearray()
        while block := self.read(256):
            cut = block.find(b"\n")
            found += block if cut < 0 else block[: cut + 1]
            if cut >= 0:
                self._at -= len(block) - cut - 1
                break
        return bytes(found)


def open_content(path: Path) -> Content:
    """Map a file, and expand it where it is xz as a whole.

    Raises:
        CheckpointError: It is missing, empty, no regular file, not readable, or its xz stream is damaged.
    """
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) if size else None
    except OSError as error:
        raise unreadable(
            path, f"the file cannot be read: {error.strerror or error}", "check path and permissions"
        ) from (error)
    if mapped is None:
        raise unreadable(path, "the file is empty (0 bytes): whatever wrote it was stopped before its first byte")
    data = memoryview(mapped)
    digest = hashlib.sha256(data).hexdigest()
    if bytes(data[:6]) == XZ_MAGIC:
        return Content(path, _expanded(path, data), size, digest, "xz")
    return Content(path, data, size, digest)


def _expanded(path: Path, data: memoryview) -> memoryview:
    limit = expansion_limit(len(data))
    engine, found, start = lzma.LZMADecompressor(memlimit=1 << 30), bytearray(), 0
    try:
        for start in range(0, len(data), _BLOCK):
            found += engine.decompress(data[start : start + _BLOCK], max_length=limit - len(found))
            if len(found) >= limit:
                raise TooLarge(f"it expands beyond {limit} bytes")
            if engine.eof:
                break
    except (lzma.LZMAError, TooLarge, EOFError) as error:
        place = f"bytes {start} to {min(start + _BLOCK, len(data))} of {len(data)}"
        raise unreadable(path, f"the xz compression around it is damaged in {place}: {error}") from error
    if not engine.eof:
        raise unreadable(path, f"the xz compression around it is truncated after {len(data)} bytes")
    return memoryview(found)


def unreadable(path: Path, problem: str, fix: str = "", code: str = "XT-CKPT-CORRUPT") -> CheckpointError:
    """Return the error for a file that holds no readable checkpoint; ``FILE`` in the fix becomes its path."""
    if not fix and code == "XT-CKPT-CORRUPT" and path.suffix.lower() not in EXPORTS:
        return damaged_checkpoint(path, problem)
    fix = fix or (EXPORT_AGAIN if path.suffix.lower() in EXPORTS else USE_ANOTHER)
    # As a word of its own: a path in the fix may hold it.
    fix = re.sub(r"(?<!\S)FILE(?!\S)", lambda _: in_shell(path), fix)
    return CheckpointError(problem, where=str(path), fix=fix, code=code)

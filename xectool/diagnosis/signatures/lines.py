"""Any file as clean lines: compressed or not, of any size, with colours, progress bars and bytes that are no text."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Final

from xectool.errors import UsageError, in_shell

CHUNK_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 1 << 16  # a longer line is looked at in pieces of this size
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_UTF16: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_OPENERS: Final[dict[bytes, Callable[[BufferedReader], gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers; what a progress bar overwrites counts to the same line.

    Memory stays bounded whatever the size of the file or of a line. A compressed file that was cut short gives what it
    has.

    Raises:
        UsageError: The file cannot be read, or is compressed in a way this Python cannot undo.
    """
    number = 1
    for newlines, piece in _pieces(_chunks(path)):
        text = _clean(piece)
        if text:
            yield number, text
        number += newlines


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:  # once: a pipe gives what it holds to the first who asks
            head = file.peek(8)[:8]
            if head.startswith(_ZSTD):
                raise UsageError("the log is compressed with zstd", where=str(path), fix=f"zstd -d {in_shell(path)}")
            opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
            yield from _utf8(opener(file) if opener else file, _UTF16.get(head[:2], ""))
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
        return  # cut short while it was compressed: what came before is all there is
    except OSError as error:
        raise UsageError(
            f"the log cannot be read: {error.strerror or error}", where=str(path), fix=f"ls -l {in_shell(path)}"
        ) from None


def _utf8(stream: BufferedReader | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace") if encoding else None
    while chunk := stream.read1(CHUNK_BYTES):  # read() would lose what precedes a cut
        yield decoder.decode(chunk).encode() if decoder else chunk


def _pieces(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (1 where a line ends here, piece of a line); newlines, carriage returns and the size limit end a piece."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        held = b"\r" if rest.endswith(b"\r") else b""  # its newline may come with the next chunk
        lines = rest[: len(rest) - len(held)].replace(b"\r\n", b"\n").split(b"\n")
        for line in lines[:-1]:
            yield from _cut(line, newline=1)
        rest = lines[-1] + held
        if len(rest) > MAX_LINE_BYTES:
            *done, rest = re.split(b"\r", rest)
            for piece in done:
                yield from _cut(piece, newline=0)
            while len(rest) > MAX_LINE_BYTES:
                yield 0, rest[:MAX_LINE_BYTES]
                rest = rest[MAX_LINE_BYTES:]
    yield from _cut(rest, newline=0)


def _cut(line: bytes, newline: int) -> Iterator[tuple[int, bytes]]:
    parts = [
        part[start : start + MAX_LINE_BYTES]
        for part in line.split(b"\r")
        for start in range(0, max(1, len(part)), MAX_LINE_BYTES)
    ]
    for part in parts[:-1]:
        yield 0, part
    yield newline, parts[-1]


def _clean(piece: bytes) -> str:
    text = piece.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text).rstrip()

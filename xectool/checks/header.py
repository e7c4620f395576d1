"""The header of a ROOT file, held against what lies at the places in the file that it names."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from xectool.checks.facts import Trouble
from xectool.rootio.files import open_errors
from xectool.rootio.source import LocalSource

_COPY: Final = "copy the file again and compare its checksum, or take it out of the list"
_APART: Final = "hadd -f WHOLE.root FIRST.root SECOND.root   # from the files it was made of"
_HEAD_BYTES: Final = 75
_FRIEND: Final = b"TFriendElement\0"
_BEFORE_NAME: Final = 22  # byte counts and versions of TFriendElement and TNamed, a TObject
_BEFORE_CLASS: Final = 12
_NEW_CLASS, _COUNTED, _LONG = 0xFFFFFFFF, 0x40000000, 255
_BIG_FILE, _BIG_KEY = 1_000_000, 1000


class Header(NamedTuple):
    """Places of a ROOT file, in bytes from its start.

    Attributes:
        end: One past the last byte in use.
        free: The list of free places.
        free_bytes: Its length with its key.
        info: The descriptions of the classes; 0 where there are none.
        info_bytes: Their length with their key.
        has_units: Whether places are said to have 8 bytes, or 4 in a small file (8 in one that was once beyond 2 GB).
    """

    end: int
    free: int
    free_bytes: int
    info: int
    info_bytes: int
    has_units: bool


def read_header(head: bytes) -> Header:
    """Return the places that the first bytes of a file name."""
    (version,) = struct.unpack_from(">i", head, 4)
    wide = ">qqi8xBiqi" if version >= _BIG_FILE else ">iii8xBiii"
    end, free, free_bytes, units, _compression, info, info_bytes = struct.unpack_from(wide, head, 12)
    return Header(end, free, free_bytes, info, info_bytes, units == 8 or (units == 4 and version < _BIG_FILE))


def is_unclosed(path: str) -> bool:
    """Say whether a local ROOT file was never closed: ROOT writes the list of free places when it closes one."""
    source = LocalSource(path)
    try:
        head = source.read(0, _HEAD_BYTES)
    except open_errors():
        return False
    finally:
        source.close()
    return len(head) == _HEAD_BYTES and head.startswith(b"root") and not read_header(head).free


def friends_of(tree: Any) -> tuple[str, ...]:
    """Return the friends of a TTree with their files, none without one; by their bytes, uproot passes over them."""
    try:
        data = bytes(tree.parent.get_uncompressed_chunk_cursor()[0].raw_data)
    except open_errors():
        return ()
    first = data.find(_FRIEND)
    # ROOT writes the name of the class once: before it the number of friends, bytes of the object, a mark.
    return tuple(_friends(data, first - _BEFORE_CLASS)) if first >= _BEFORE_CLASS else ()


def _friends(data: bytes, at: int) -> Iterator[str]:
    """Yield the elements of a list of friends, which begins with how many they are.

    Each is its length, its class (a name or where that stands), a TFriendElement, and an option of the list.
    """
    (number,) = struct.unpack_from(">i", data, at)
    at += 4
    for _ in range(number):
        if at + 8 > len(data):
            return
        length, mark = struct.unpack_from(">II", data, at)
        body = at + 8 + (len(_FRIEND) if mark == _NEW_CLASS else 0)
        name, after = _text(data, body + _BEFORE_NAME)
        title, _ = _text(data, after)
        yield f"'{name}' of {title}" if title else f"'{name}'"
        _, at = _text(data, at + 4 + (length & ~_COUNTED))


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Return a text as ROOT writes it, a byte of length before it or five for a long one, and where it ends."""
    length = data[at] if at < len(data) else 0
    if length == _LONG and at + 5 <= len(data):
        (length,) = struct.unpack_from(">I", data, at + 1)
        at += 4
    end = at + 1 + length
    return data[at + 1 : end].decode("utf-8", "replace"), end


def header_troubles(path: str, where: str, size: int, opened: Any) -> tuple[list[Trouble], list[Trouble]]:
    """Return what is wrong with the header of a local file, and what is only unusual.

    Args:
        path: The file.
        where: File and tree, as messages name them.
        size: Bytes of the file.
        opened: uproot's file, which reads the descriptions of the classes.
    """
    source = LocalSource(path)
    try:
        header = read_header(source.read(0, min(size, _HEAD_BYTES)).ljust(_HEAD_BYTES, b"\0"))
        reasons = [
            f"byte {place} does not begin the {what} that the header names there"
            for what, place, num_bytes in (
                ("list of free places", header.free, header.free_bytes),
                ("descriptions of the classes (streamer info)", header.info, header.info_bytes),
            )
            if place and not _is_key(source, place, num_bytes, header.end)
        ]
        behind = source.read(header.end, min(4, size - header.end)) if 0 < header.end < size else b""
    finally:
        source.close()
    if not header.has_units:
        reasons.append("its header says that places in it have other sizes than its version has")
    if not reasons and header.info:
        reasons += _unreadable(opened, header.info)
    troubles = [_damaged(path, where, reason, _COPY) for reason in reasons]
    if behind == b"root":
        reason = f"a second ROOT file begins at byte {header.end}; of files put together by cat only the first is read"
        return [*troubles, _damaged(path, where, reason, _APART)], []
    problem = (
        f"'{path}' goes on for {size - header.end} bytes after the end that its header names: ROOT leaves such where "
        "something was deleted; otherwise something was added to the file"
    )
    return troubles, [Trouble("DAT-02", "XT-DATA-DAMAGED", problem, where, _COPY)] if behind else []


def _is_key(source: LocalSource, place: int, num_bytes: int, end: int) -> bool:
    """Say whether a key of this length lies there, says so itself, and ends inside of the file."""
    if place + num_bytes > end or num_bytes < 26:
        return False
    key = source.read(place, 26)
    stored, version = struct.unpack_from(">ih", key)
    (own_place,) = struct.unpack_from(">q" if version > _BIG_KEY else ">i", key, 18)
    return bool(stored == num_bytes and own_place == place)


def _unreadable(opened: Any, place: int) -> list[str]:
    try:
        len(opened.streamers)
    except open_errors() as error:
        return [f"the descriptions of the classes (streamer info) at byte {place} cannot be read ({_short(error)})"]
    return []


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:120]


def _damaged(path: str, where: str, reason: str, fix: str) -> Trouble:
    return Trouble("DAT-02", "XT-DATA-DAMAGED", f"'{path}' is damaged: {reason}", where, fix)

"""Reads every basket and page of a file: its header, its size, its checksum, its decompression and its entry count.

A flipped bit in a basket that is stored plainly, or by ZSTD, breaks none of these; what finds it are values out of the
physical range and the recorded hashes of :mod:`xectool.checks.digest`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import xxhash

from xectool.checks.facts import BranchFacts, FileFacts, Trouble
from xectool.config.inputs import is_remote
from xectool.rootio.columns import READ_ERRORS
from xectool.rootio.inflate import BLOCK_BYTES, HEADER_BYTES, inflate_range, packed_bytes
from xectool.rootio.source import LocalSource

_COPY = "copy the file again and compare its checksum, or take it out of the list"
_CHECKSUM_BYTES = 8
_KEY = struct.Struct(">ihiIhh")
_BASKET = struct.Struct(">Hii")
_ENTRIES = struct.Struct(">ii")
_BIG_KEY, _NEWEST_KEY, _LONG = 1000, 9, 255
_NAMES_BYTES = 1024
_METHODS = (b"ZL\x08", b"CS\x08", b"XZ\0", b"L4\x01", b"ZS\x01")
_LARGEST_UNIT_BYTES = 2**31


def damaged_units(
    facts: FileFacts, read_anyway: Collection[str] = (), advanced: Callable[[int], None] = lambda _: None
) -> Iterator[Trouble]:
    """Yield every basket and page that is not what the tree says.

    Args:
        facts: The file.
        read_anyway: Branches whose values are read in full elsewhere; here only their headers are looked at.
        advanced: Told of the bytes that were read.
    """
    if is_remote(facts.path) or not facts.opened:
        return
    units = [(branch, row) for branch in facts.branches.values() for row in range(len(branch.units))]
    source = LocalSource(facts.path)
    try:
        for branch, row in units:
            reason = _unit_reason(source, facts, branch, row, branch.name not in read_anyway)
            advanced(int(branch.units.num_bytes[row]))
            if reason:
                yield _trouble(facts, branch, row, reason)
        if facts.kind != "RNTuple":
            yield from _strangers(source, facts)
    finally:
        source.close()


def _unit_reason(source: LocalSource, facts: FileFacts, branch: BranchFacts, row: int, inflate: bool) -> str:
    units = branch.units
    offset, num_bytes = int(units.offset[row]), int(units.num_bytes[row])
    if not 0 < num_bytes < _LARGEST_UNIT_BYTES or offset + num_bytes > facts.size_bytes:
        return ""  # the layout has said so
    check = check_page if facts.kind == "RNTuple" else check_basket
    try:
        return check(source.read(offset, num_bytes), branch, row, inflate)
    except READ_ERRORS as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _strangers(source: LocalSource, facts: FileFacts) -> Iterator[Trouble]:
    """Yield the baskets of another name than their branch where others of it have its name: a branch can be renamed."""
    branches = {name.rpartition("/")[2].encode() for name in facts.branches}
    for branch in facts.branches.values():
        units = branch.units
        there = (units.offset >= 0) & (units.num_bytes > 0) & (units.offset + units.num_bytes <= facts.size_bytes)
        inside = np.flatnonzero(there)
        starts = [(int(units.offset[row]), min(int(units.num_bytes[row]), _NAMES_BYTES)) for row in inside]
        names = [_key_names(source.read(*start))[0][1] for start in starts]
        own, counts = branch.name.rpartition("/")[2].encode(), Counter(names)
        odd = {name for name in counts if name in branches or not _was_its_name(name, own, counts[name])}
        for row, name in zip(inside, names, strict=True):
            if name != own and name in odd and own in counts:
                yield _trouble(facts, branch, int(row), f"the basket says it is of {name!r}")


def _was_its_name(name: bytes, own: bytes, num_baskets: int) -> bool:
    """Say whether a branch had this name once: ROOT goes on under the new one; damage is of one basket, and of a byte.

    >>> _was_its_name(b"light", b"npho", 1), _was_its_name(b"npha", b"npho", 2), _was_its_name(b"npha", b"npho", 1)
    (True, True, False)
    >>> _was_its_name(b"E", b"energy", 1), _was_its_name(b"", b"npho", 2)
    (True, False)
    """
    num_changed = 2 if len(name) != len(own) else sum(a != b for a, b in zip(name, own, strict=True))
    return bool(name) and name.isascii() and name.decode().isprintable() and (num_baskets > 1 or num_changed > 1)


def _key_names(raw: bytes) -> tuple[tuple[bytes, ...], int]:
    """Return class, name and title of a key from its first bytes, empty where these end early, and where they end."""
    (version,) = struct.unpack_from(">h", raw.ljust(_KEY.size, b"\0"), 4)
    place, found = _KEY.size + (16 if version > _BIG_KEY else 8), []
    for _ in range(3):
        length, begin = raw[place] if place < len(raw) else 0, place + 1
        if length == _LONG:
            length, begin = int.from_bytes(raw[begin : begin + 4], "big"), begin + 4
        found.append(raw[begin : begin + length])
        place = begin + length
    return tuple(found), place


def _trouble(facts: FileFacts, branch: BranchFacts, row: int, reason: str) -> Trouble:
    start, stop = int(branch.units.start[row]), int(branch.units.stop[row])
    return Trouble(
        "DAT-02",
        "XT-DATA-DAMAGED",
        f"'{facts.path}' is damaged: branch '{branch.name}', entries {start} to {stop} cannot be read ({reason})",
        f"{facts.where} branch {branch.name} entries [{start}, {stop})",
        _COPY,
    )


def check_page(raw: bytes, branch: BranchFacts, row: int, inflate: bool) -> str:
    """Return what is wrong with a page, empty where nothing is."""
    view = memoryview(raw)
    if branch.checksums:
        view, stored = view[:-_CHECKSUM_BYTES], view[-_CHECKSUM_BYTES:]
        if xxhash.xxh3_64_intdigest(view) != int.from_bytes(stored, "little"):
            return "the checksum of the page does not match"
    expected = int(branch.units.raw_bytes[row])
    if reason := _blocks_reason(view, expected):
        return reason
    if inflate and len(view) < expected:
        found = memoryview(inflate_range(view, 0, expected)).nbytes
        return "" if found == expected else f"the page holds {found} bytes where its metadata say {expected}"
    return ""


def check_basket(raw: bytes, branch: BranchFacts, row: int, inflate: bool) -> str:
    """Return what is wrong with a basket, empty where nothing is."""
    stored, version, object_bytes, _date, key_bytes, _cycle = _KEY.unpack_from(raw, 0)
    if stored != len(raw) or not _KEY.size < key_bytes <= len(raw) or object_bytes < 0:
        return "the header of the basket does not agree with the tree"
    (own_place,) = struct.unpack_from(">q" if version > _BIG_KEY else ">i", raw, _KEY.size)
    if own_place != branch.units.offset[row]:
        return f"the basket belongs at byte {own_place} of the file, not at {branch.units.offset[row]}: it is of others"
    names, place = _key_names(raw)
    if version % _BIG_KEY > _NEWEST_KEY or version > 2 * _BIG_KEY or names[0] != b"TBasket":
        return f"the header of the basket says it is a {names[0]!r}, version {version}"
    capacity = _BASKET.unpack_from(raw, place)[2]
    # A negative capacity says that a byte of flags follows.
    num_entries, last = _ENTRIES.unpack_from(raw, place + _BASKET.size + (capacity < 0))
    expected = int(branch.units.stop[row] - branch.units.start[row])
    if num_entries != expected:
        return f"the basket says it holds {num_entries} entries, the tree says {expected}"
    data_bytes = last - key_bytes
    if data_bytes < 0 or data_bytes > object_bytes:
        return "the basket says that its data end outside of it"
    if branch.value_bytes and data_bytes != num_entries * branch.value_bytes:
        return f"the basket holds {data_bytes} bytes for {num_entries} entries of {branch.value_bytes} bytes"
    body = memoryview(raw)[key_bytes:]
    reason = _blocks_reason(body, object_bytes)
    if reason or not inflate:
        return reason
    end = min(object_bytes, data_bytes + 4 * (num_entries + 1))
    if len(body) == object_bytes:
        return _offsets_reason(body[data_bytes:end], data_bytes, num_entries, key_bytes)
    for start in range(0, object_bytes, BLOCK_BYTES):  # not at once: a few bytes may claim to be gigabytes
        inflate_range(body, start, min(start + BLOCK_BYTES, object_bytes))
    tail = memoryview(inflate_range(body, data_bytes, end)).cast("B")
    return _offsets_reason(tail, data_bytes, num_entries, key_bytes)


def _blocks_reason(body: memoryview, num_bytes: int) -> str:
    """Return what is wrong with the headers of blocks that should hold so many bytes; nothing is inflated."""
    position = offset = 0
    while len(body) < num_bytes and position < num_bytes:
        header = bytes(body[offset : offset + HEADER_BYTES])
        packed, size = packed_bytes(header)
        if header[:3] not in _METHODS:
            return f"a compressed block begins with {header[:3]!r}, which ROOT does not read"
        offset, position = offset + packed, position + size
    if position > num_bytes:
        return f"its compressed blocks hold {position} bytes where its header says {num_bytes}"
    return "its compressed blocks end outside of it" if offset > len(body) else ""


def _offsets_reason(tail: memoryview, data_bytes: int, num_entries: int, key_bytes: int) -> str:
    """Return what is wrong with the table of entry offsets that follows entries of varying length."""
    if len(tail) < 4 * (num_entries + 1):
        return ""
    words: np.ndarray[Any, Any] = np.frombuffer(tail[: len(tail) // 4 * 4], ">i4")
    if int(words[0]) != num_entries + 1:
        return ""
    starts = words[1 : num_entries + 1].astype(np.int64) - key_bytes
    if num_entries and (starts[0] < 0 or (np.diff(starts) < 0).any() or starts[-1] > data_bytes):
        return "the offsets of its entries go backwards or outside of the basket"
    return ""

"""The bytes of a zip archive that belong to no entry: headers, padding, descriptors, gaps.

Readers skip most of them, so damage there loads silently; it still says that the file is not as it was written.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_ZIP64_END = struct.Struct("<4sQ2H2I4Q")
_ZIP64_LOCATOR = struct.Struct("<4sIQI")
END_MAGIC: Final = b"PK\x05\x06"
_ZIP64_END_MAGIC: Final = b"PK\x06\x06"
_ZIP64_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_ZIP64_VERSION, _NEWEST_VERSION, _LAST_SYSTEM = 45, 63, 20
CENTRAL_MAGIC: Final = b"PK\x01\x02"
_DESCRIPTOR_MAGIC: Final = b"PK\x07\x08"
_TORCH_PADDING: Final = b"FB"
_ZIP64_EXTRA: Final = 1
_FOUR_GIB: Final = 0xFFFFFFFF
_HAS_DESCRIPTOR: Final = 0x8
_FEWEST: Final = 3
_OTHER_PROGRAM: Final = 3  # so many fields differ where another program added an entry


class Central(NamedTuple):
    """One record of the directory, as it stands in the file."""

    name: bytes
    made_by: int
    needed: int
    flags: int
    method: int
    time: int
    date: int
    crc: int
    stored: int
    size: int
    disk: int
    internal: int
    external: int
    offset: int
    length: int


class Span(NamedTuple):
    """An entry's place: its header from ``header``, its bytes from ``start`` to ``end``, and the record of it."""

    header: int
    start: int
    end: int
    size: int
    record: Central


def central_records(data: memoryview, at: int) -> list[Central]:
    """Return the records of the directory that begins at a byte, as far as they go."""
    found: list[Central] = []
    while at + CENTRAL.size <= len(data) and bytes(data[at : at + 4]) == CENTRAL_MAGIC:
        part = CENTRAL.unpack_from(data, at)
        name_end = at + CENTRAL.size + part[10]
        end = name_end + part[11] + part[12]
        name = bytes(data[at + CENTRAL.size : name_end])
        found.append(Central._make((name, *part[1:10], *part[13:17], end - at)))
        at = end
    return found


def end_problems(data: memoryview, directory: int) -> Iterator[tuple[str, int]]:
    """Yield what is wrong with the records that close an archive.

    Args:
        data: The archive.
        directory: First byte of its directory.
    """
    records = central_records(data, directory)
    end = directory + sum(record.length for record in records)
    told = (len(records), len(records), end - directory, directory)
    at = end
    if bytes(data[at : at + 4]) == _ZIP64_END_MAGIC and at + _ZIP64_END.size + _ZIP64_LOCATOR.size <= len(data):
        if not _wide_end_fits(data, at, told):
            yield "the wide record that closes the archive is damaged", at
        at += _ZIP64_END.size + _ZIP64_LOCATOR.size
    if at + _END.size > len(data):
        yield "the directory's records reach over the end of the file", end
        return
    last = _END.unpack_from(data, at)
    limits = (0xFFFF, 0xFFFF, _FOUR_GIB, _FOUR_GIB)
    fitting = tuple(min(number, limit) for number, limit in zip(told, limits, strict=True))
    agrees = last[3:7] in (fitting, limits)
    if last[0] != END_MAGIC or last[1:3] not in ((0, 0), (0xFFFF, 0xFFFF)) or not agrees:
        yield "the record that closes the archive contradicts its directory", at
    elif at + _END.size + last[7] != len(data):
        yield f"{len(data) - at - _END.size - last[7]} bytes follow the end of the archive", at + _END.size


def _wide_end_fits(data: memoryview, at: int, told: tuple[int, ...]) -> bool:
    wide = _ZIP64_END.unpack_from(data, at)
    place = _ZIP64_LOCATOR.unpack_from(data, at + _ZIP64_END.size)
    versions = wide[3] == _ZIP64_VERSION and wide[2] & 0xFF <= _NEWEST_VERSION and wide[2] >> 8 <= _LAST_SYSTEM
    sizes = wide[1] == _ZIP64_END.size - 12 and wide[4:6] == (0, 0) and wide[6:] == told
    return versions and sizes and place[0] == _ZIP64_LOCATOR_MAGIC and place[1:] == (0, at, 1)


def header_problems(data: memoryview, spans: Sequence[Span], directory: int) -> Iterator[tuple[str, int]]:
    """Yield what is wrong outside the entries' own bytes, and at which byte.

    Args:
        data: The archive.
        spans: Its entries.
        directory: First byte of its directory.
    """
    ordered = sorted(spans, key=lambda span: span.header)
    at = 0
    for span in ordered:
        if span.header > at:
            yield f"{span.header - at} bytes belong to no entry", at
        yield from _local_problems(data, span)
        end, problem = _after(data, span)
        if problem:
            yield problem, span.end
        at = max(at, end)
    if at < directory:
        yield f"{directory - at} bytes before the directory belong to no entry", at
    yield from _odd_ones(spans)


def _local_problems(data: memoryview, span: Span) -> Iterator[tuple[str, int]]:
    """Compare an entry's own header with its record in the directory."""
    _, needed, flags, method, time, date, crc, stored, size, name_length, _ = LOCAL.unpack_from(data, span.header)
    record, name = span.record, span.record.name.decode("utf-8", "replace")
    fixed = (needed, flags, method, time, date)
    if fixed != (record.needed, record.flags, record.method, record.time, record.date):
        yield f"the header of entry {name} and the directory tell different versions, flags or times", span.header
    told = {(record.crc, record.stored, record.size), (record.crc, _FOUR_GIB, _FOUR_GIB)}
    if flags & _HAS_DESCRIPTOR:  # they stand behind the entry
        told |= {(0, 0, 0), (0, _FOUR_GIB, _FOUR_GIB)}
    if (crc, stored, size) not in told:
        yield f"the header of entry {name} and the directory tell different sizes or checksums", span.header
    extra = bytes(data[span.header + LOCAL.size + name_length : span.start])
    if not _is_well_formed(extra):
        yield f"the padding before entry {name} is damaged", span.start - len(extra)


def _is_well_formed(extra: bytes) -> bool:
    """Return whether an extra field is a chain of records; torch pads with one of the letter Z."""
    while extra:
        if len(extra) < 4:
            return False
        length = int.from_bytes(extra[2:4], "little")
        body = extra[4 : 4 + length]
        if len(body) < length or (extra[:2] == _TORCH_PADDING and body.strip(b"Z")):
            return False
        known = extra[:2] == _TORCH_PADDING or int.from_bytes(extra[:2], "little") == _ZIP64_EXTRA
        if not known and set(body) == {ord("Z")}:
            return False
        extra = extra[4 + length :]
    return True


def _after(data: memoryview, span: Span) -> tuple[int, str]:
    """Return the byte after an entry and its descriptor, and what is wrong with the descriptor."""
    if not span.record.flags & _HAS_DESCRIPTOR:
        return span.end, ""
    width = 8 if max(span.record.stored, span.record.size) == _FOUR_GIB else 4
    stored = span.end - span.start
    for wide in (width, 8):
        told = (
            span.record.crc.to_bytes(4, "little") + stored.to_bytes(wide, "little") + span.size.to_bytes(wide, "little")
        )
        for expected in (_DESCRIPTOR_MAGIC + told, told):
            if bytes(data[span.end : span.end + len(expected)]) == expected:
                return span.end + len(expected), ""
    name = span.record.name.decode("utf-8", "replace")
    return span.end + 8 + 2 * width, f"the descriptor after entry {name} is damaged"


def _odd_ones(spans: Sequence[Span]) -> Iterator[tuple[str, int]]:
    """Yield the records that alone differ in fields that one program writes the same for all."""
    if len(spans) < _FEWEST:
        return
    found: dict[Span, list[str]] = {}
    for field in ("made_by", "needed", "disk", "internal", "external", "date", "time"):
        counts = Counter(getattr(span.record, field) for span in spans)
        common, count = counts.most_common(1)[0]
        if len(spans) - 1 == count:
            odd = next(span for span in spans if getattr(span.record, field) != common)
            found.setdefault(odd, []).append(field.replace("_", " "))
    for odd, fields in found.items():
        name, added = odd.record.name.decode("utf-8", "replace"), len(fields) >= _OTHER_PROGRAM
        cause = ": another program added it" if added else ""
        yield f"the directory's record of entry {name} alone has another {', '.join(fields)}{cause}", odd.header

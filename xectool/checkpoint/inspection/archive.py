"""A zip archive, entry by entry, with checksums; what zip readers may disagree about is a problem of its own."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import IO, Final, NamedTuple, cast

from xectool.checkpoint.inspection.window import TooLarge, Window, expansion_limit
from xectool.checkpoint.inspection.zip_headers import (
    CENTRAL_MAGIC,
    END_MAGIC,
    LOCAL,
    Central,
    Span,
    central_records,
    end_problems,
    header_problems,
)
from xectool.errors.unreadable import ARCHIVE_ERRORS

LOCAL_MAGIC: Final = b"PK\x03\x04"
_END_BYTES: Final = 22
_ENCRYPTED: Final = 0x1
_NEAR: Final = 1 << 12
_MAX_ENTRIES: Final = 1_000_000
_OUTSIDE: Final = re.compile(r"^([A-Za-z]:)?[/\\]|(^|[/\\])\.\.([/\\]|$)")  # from the root, of a drive, or upwards


class Problem(NamedTuple):
    """Something wrong with the bytes.

    Attributes:
        what: One sentence.
        where: Entry and byte range.
        check: Which check found it, as a finding code.
    """

    what: str
    where: str = ""
    check: str = "K02"


class DamagedArchive(ValueError):
    """The archive has no readable directory."""


@dataclass(frozen=True)
class Entry:
    """One entry: ``stored`` bytes of the file from ``start``, ``size`` bytes when expanded."""

    name: str
    start: int
    stored: int
    size: int
    crc: int
    method: int

    @property
    def place(self) -> str:
        """Entry and byte range, for messages."""
        return f"{self.name}, bytes {self.start} to {self.start + self.stored}"


class Archive:
    """The directory of a zip archive over bytes.

    Args:
        data: The archive.

    Raises:
        DamagedArchive: No directory can be read; the message says what is left.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.problems: list[Problem] = []
        self.entries: list[Entry] = []
        try:
            with zipfile.ZipFile(cast("IO[bytes]", Window(data))) as directory:
                infos, start = directory.infolist(), directory.start_dir
        except ARCHIVE_ERRORS as error:
            raise DamagedArchive(_damage(data, error)) from error
        if len(infos) > _MAX_ENTRIES:
            raise DamagedArchive(f"its directory lists {len(infos)} entries")
        records = central_records(data, start)
        if held := _held_by(data, infos, records):
            raise DamagedArchive(_cut(data, held))
        spans = [self._add(info, record) for info, record in zip(infos, records, strict=False)]
        self._find_ambiguity()
        if not self.problems:
            found = [
                *header_problems(data, [span for span in spans if span is not None], start),
                *end_problems(data, start),
            ]
            self.problems += [Problem(what, f"byte {at}") for what, at in found]

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        """Entries by name; of two with one name the last, as readers take it."""
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def has_checksums(self) -> bool:
        """Whether entries carry their CRC; torch can be told to leave it out, which writes zeros everywhere."""
        return any(entry.crc for entry in self.entries) or not any(entry.size for entry in self.entries)

    def read(self, entry: Entry) -> memoryview:
        """Return the bytes of an entry, a view of the file where it is stored as it is.

        Raises:
            ValueError: It is compressed in an unknown way, damaged, or expands beyond all reason.
        """
        raw = self.data[entry.start : entry.start + entry.stored]
        if entry.method == zipfile.ZIP_STORED:
            return raw
        if entry.method != zipfile.ZIP_DEFLATED:
            raise ValueError(f"compression method {entry.method} is not one checkpoints use")
        limit = min(entry.size, expansion_limit(entry.stored))
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = engine.decompress(raw, limit + 1)
        except zlib.error as error:
            raise ValueError(f"the compressed bytes are damaged ({error})") from error
        if len(found) > limit:
            raise TooLarge(f"it expands beyond {limit} bytes")
        if not engine.eof:
            raise ValueError(f"the compressed bytes do not end after {entry.stored}, where those of the entry do")
        if engine.unused_data:
            raise ValueError(f"the compressed bytes end {len(engine.unused_data)} before those of the entry")
        return memoryview(bytearray(found))

    def verify(self) -> Iterator[Problem]:
        """Yield each entry whose bytes are not those that were written."""
        for entry in self.entries:
            try:
                content = self.read(entry)
            except ValueError as error:
                yield Problem(f"entry {entry.name} cannot be read: {error}", entry.place)
                continue
            if len(content) != entry.size:
                yield Problem(f"entry {entry.name} has {len(content)} of {entry.size} bytes", entry.place)
            elif self.has_checksums and zlib.crc32(content) != entry.crc:
                problem = f"CRC mismatch in {entry.name}: {zlib.crc32(content):08x}, written as {entry.crc:08x}"
                yield Problem(problem, entry.place)

    def _add(self, info: zipfile.ZipInfo, record: Central) -> Span | None:
        """Take an entry over; return its place, None where it has none in the file."""
        at = info.header_offset
        if not 0 <= at <= len(self.data) - LOCAL.size:
            self.problems.append(Problem(f"entry {info.filename} lies outside the file", f"byte {at}"))
            return None
        header = LOCAL.unpack_from(self.data, at)
        start = at + LOCAL.size + header[9] + header[10]
        local_name = bytes(self.data[at + LOCAL.size : at + LOCAL.size + header[9]])
        if header[0] != LOCAL_MAGIC or local_name != record.name:
            shown = local_name.decode("utf-8", "replace")[:80]
            problem = f"the header of entry {info.filename} is damaged: it reads '{shown}'"
            self.problems.append(Problem(problem, f"byte {at}"))
        end = start + info.compress_size
        if end > len(self.data):
            problem = f"entry {info.filename} ends at byte {end}, after the end of the file"
            self.problems.append(Problem(problem, f"byte {start}"))
            return None
        if info.flag_bits & _ENCRYPTED:
            self.problems.append(Problem(f"entry {info.filename} is encrypted", f"byte {at}"))
            return None
        entry = Entry(info.filename, start, info.compress_size, info.file_size, info.CRC, info.compress_type)
        if _OUTSIDE.search(entry.name):
            what = f"entry {entry.name} would be unpacked outside of the archive's folder: not written by torch"
            self.problems.append(Problem(what, entry.place))
        if not entry.name.endswith("/"):
            self.entries.append(entry)
        return Span(at, start, end, info.file_size, record)

    def _find_ambiguity(self) -> None:
        for name, count in Counter(entry.name for entry in self.entries).items():
            if count > 1:
                what = f"{count} entries are called {name}; which of them is read depends on the reader"
                self.problems.append(Problem(what, name))
        if bytes(self.data[:4]) != LOCAL_MAGIC:
            first = min((entry.start for entry in self.entries), default=0)
            self.problems.append(Problem("other bytes stand before the archive", f"bytes 0 to {first}"))
        ordered = sorted(self.entries, key=lambda entry: entry.start)
        for one, two in pairwise(ordered):
            if one.start + one.stored > two.start and one.stored and two.stored:
                self.problems.append(Problem(f"entries {one.name} and {two.name} overlap", two.place))


def _held_by(data: memoryview, infos: Sequence[zipfile.ZipInfo], records: Sequence[Central]) -> str:
    """Return what holds an archive that is an entry of another one, of which the end is gone; else nothing."""
    if not (infos and records):
        return ""
    first = infos[0].header_offset
    before = first - records[0].offset  # bytes that its own directory does not know of
    is_whole = bytes(data[max(before, 0) : before + 4]) == bytes(data[first : first + 4]) == LOCAL_MAGIC
    if before <= 0 or not is_whole or bytes(data[:4]) != LOCAL_MAGIC:
        return ""
    if bytes(data[max(0, before - _END_BYTES) : before]).startswith(END_MAGIC):
        return ""  # one archive after the other
    near = max(0, before - _NEAR)
    at = near + bytes(data[near:before]).rfind(LOCAL_MAGIC)
    name = bytes(data[at + LOCAL.size : before])[: LOCAL.unpack_from(data, at)[9]] if at >= near else b""
    return f"entry {name.decode('utf-8', 'replace')} at byte {before}" if name else f"the entry at byte {before}"


def _cut(data: memoryview, held: str = "") -> str:
    inner = f" or cut; the one that is there is of {held}, an archive itself" if held else ""
    return f"truncated after {len(data)} bytes: the archive's directory, its last part, is missing{inner}"


def _damage(data: memoryview, error: Exception) -> str:
    """Say what is left of an archive without a readable directory."""
    tail = bytes(data[-(1 << 16) - 22 :])
    if END_MAGIC not in tail and CENTRAL_MAGIC not in tail:
        return _cut(data)
    if END_MAGIC not in tail:
        return f"truncated after {len(data)} bytes, inside the archive's directory, or overwritten there"
    if tail.rfind(END_MAGIC) > len(tail) - _END_BYTES:
        return f"truncated after {len(data)} bytes, inside the record that closes the archive"
    return f"the archive's directory is damaged ({error})"

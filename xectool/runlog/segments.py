"""Files of step records that a training process maps into memory and any other process reads at the same time.

A segment is made at its full size, so a store into it cannot hit a full disk. A record is stored first and counted
after, in the head word; what a killed process had counted is in the page cache, which is the kernel's.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from xectool.runlog.layout import MAPS, Layout, MissingWordError, RowWriter, StepBlock, checked_rows
from xectool.runlog.preallocate import create_preallocated
from xectool.runlog.records import StepRecord

RAW_SUFFIX: Final = ".seg"
_PAGE: Final = 4096
_MAGIC: Final = int.from_bytes(b"XECSTEPS", "little")
_HEAD: Final = 1  # place of the count of whole records in the header
_WORDS: Final = struct.Struct("=8q")  # magic, head, version, header bytes, row bytes, capacity, first seq, text bytes
_VERSION: Final = 1


class SegmentFull(Exception):
    """The records of a segment need another one."""


class Segment:
    """One file that is being written.

    Args:
        path: File to create.
        first: Sequence number of its first record.
        num_bytes: Size of the file.
        names: Names that are known to occur in maps, beside those of the first record.

    Raises:
        OSError: The disk refuses; nothing is left behind.
    """

    def __init__(self, path: Path, first: int, num_bytes: int, names: Mapping[str, Sequence[str]]) -> None:
        fd = create_preallocated(path, num_bytes)
        try:
            self._map = mmap.mmap(fd, num_bytes)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("q")
        self._writer: RowWriter | None = None
        self._offset = self._row_bytes = self._capacity = 0
        self.path, self.first, self.count = path, first, 0
        self._names = names

    def append(self, record: StepRecord) -> None:
        """Store a record.

        Raises:
            SegmentFull: There is no room, or no place for one of its names; nothing is stored.
        """
        if self._writer is None:
            maps = {key: (*self._names.get(key, ()), *getattr(record, key)) for key in MAPS}
            self._describe(Layout.of({key: tuple(dict.fromkeys(names)) for key, names in maps.items()}))
        assert self._writer is not None
        if self.count >= self._capacity:
            raise SegmentFull
        try:
            row = self._writer.row(record, self.first + self.count)
        except MissingWordError:
            raise SegmentFull from None
        start = self._offset + self.count * self._row_bytes
        self._map[start : start + self._row_bytes] = row
        self.count += 1
        self._words[_HEAD] = self.count

    def close(self) -> None:
        """Release the mapping."""
        self._words.release()
        self._map.close()

    def _describe(self, layout: Layout) -> None:
        """Write the header; the magic number comes last, so a file without it has no records."""
        text = json.dumps(layout.to_json(), separators=(",", ":")).encode()
        self._offset = -(-(_WORDS.size + len(text)) // _PAGE) * _PAGE
        self._row_bytes = layout.row_bytes
        self._capacity = (len(self._map) - self._offset) // self._row_bytes
        if self._capacity < 1:
            raise SegmentFull
        self._writer = RowWriter(layout)
        self._map[_WORDS.size : _WORDS.size + len(text)] = text
        numbers = (0, 0, _VERSION, self._offset, self._row_bytes, self._capacity, self.first, len(text))
        self._map[: _WORDS.size] = _WORDS.pack(*numbers)
        self._words[0] = _MAGIC


@dataclass(frozen=True)
class RawSegment:
    """The reading side of a segment.

    Attributes:
        path: The file.
        layout: Names of its words.
        first: Sequence number of its first record.
        stop: Sequence number after its last whole record.
        offset: Byte of its first record.
    """

    path: Path
    layout: Layout
    first: int
    stop: int
    offset: int

    @classmethod
    def open(cls, path: Path) -> RawSegment | None:
        """Return the segment as it is now, or None where it has no records yet.

        Raises:
            FileNotFoundError: It has been compacted.
        """
        with path.open("rb") as stream:
            head = stream.read(_WORDS.size)
            if len(head) < _WORDS.size:
                return None
            magic, count, version, offset, row_bytes, capacity, first, text_bytes = _WORDS.unpack(head)
            size = os.fstat(stream.fileno()).st_size
            if magic != _MAGIC or version > _VERSION or not 0 <= text_bytes <= size:
                return None
            try:
                layout = Layout.from_json(json.loads(stream.read(text_bytes)))
            except (ValueError, RecursionError):  # damaged
                return None
        if layout.row_bytes != row_bytes or first < 0 or not 0 <= offset <= size or capacity * row_bytes > size:
            return None
        return cls(path, layout, first, first + min(max(count, 0), capacity), offset)

    def load(self, start: int, stop: int) -> StepBlock:
        """Return the records with a sequence number in the half-open range.

        Raises:
            FileNotFoundError: The file has been compacted since.
        """
        low, high = max(start, self.first), min(stop, self.stop)
        size = self.layout.row_bytes
        if low >= high:
            return StepBlock(self.layout, np.empty((0, self.layout.num_words), np.int64))
        with self.path.open("rb") as stream:
            stream.seek(self.offset + (low - self.first) * size)
            return checked_rows(self.layout, stream.read((high - low) * size))

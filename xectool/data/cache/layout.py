"""The layout of a cache file: a header, one section a column with one row an event, and what checks them.

Header and sections start at multiples of 4096 bytes. Every row has a checksum, and a further one covers the tables of
checksums and exceptions; a file whose header is not whole was never finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from xectool.data.cache.codec import CHANNELS
from xectool.detector.constants import NUM_SENSORS

MAGIC: Final = b"XECCACHE"
SCHEMA: Final = 1
HEADER_BYTES: Final = 16_384
_ALIGNMENT: Final = 4096
CHECKSUMS, NUMBERS, TRUTH = "checksums", "numbers", "truth"
# Parts of an event that have a checksum of their own: photons, times, and the rest.
CHECKED_PARTS: Final = 3


class DamagedCacheError(Exception):
    """A cache file is not what was written; it is thrown away and built again."""


@dataclass(frozen=True)
class Section:
    """Rows of one column.

    Attributes:
        offset: First byte in the file.
        dtype: Type of a number.
        width: Numbers of an event.
    """

    offset: int
    dtype: str
    width: int

    @property
    def row_bytes(self) -> int:
        """Bytes of an event."""
        return int(np.dtype(self.dtype).itemsize) * self.width


@dataclass(frozen=True)
class CacheLayout:
    """Where everything of a cache file lies.

    Attributes:
        num_events: Events.
        sections: By name: photons, times, truth of all tasks, run and event numbers, checksums.
        end: Where the exceptions begin.
    """

    num_events: int
    sections: Mapping[str, Section]
    end: int

    @classmethod
    def of(cls, num_events: int, dtype: np.dtype[Any], truth_width: int) -> CacheLayout:
        """Return the layout for events whose readings are stored as ``dtype``."""
        columns = [(name, dtype.str, NUM_SENSORS) for name in CHANNELS]
        columns += [(TRUTH, "<f4", truth_width), (NUMBERS, "<i8", 2), (CHECKSUMS, "<u8", CHECKED_PARTS)]
        sections, offset = {}, HEADER_BYTES
        for name, kind, width in columns:
            sections[name] = Section(offset, kind, width)
            offset += -(-sections[name].row_bytes * num_events // _ALIGNMENT) * _ALIGNMENT
        return cls(num_events, sections, offset)

    def arrays(self, buffer: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the sections of a mapped file, each of shape (N, width)."""
        return {
            name: np.ndarray((self.num_events, part.width), part.dtype, buffer, part.offset)
            for name, part in self.sections.items()
        }


def cache_bytes(num_events: int, itemsize: int, truth_width: int) -> int:
    """Return the bytes of a cache file without exceptions.

    >>> cache_bytes(1000, 4, 7), cache_bytes(1000, 2, 7)
    (38170624, 19132416)
    """
    return CacheLayout.of(num_events, np.dtype(f"<{'f' if itemsize == 4 else 'i'}{itemsize}"), truth_width).end


def pack_header(facts: Mapping[str, Any]) -> bytes:
    """Return the header with ``facts``, its own checksum, and the file's magic.

    Raises:
        ValueError: The facts do not fit.
    """
    body = json.dumps(facts, sort_keys=True).encode()
    head = MAGIC + len(body).to_bytes(4, "little") + xxhash.xxh3_64_digest(body)
    if len(head) + len(body) > HEADER_BYTES:
        raise ValueError(f"the facts of a cache file take {len(body)} bytes")
    return (head + body).ljust(HEADER_BYTES, b"\0")


def unpack_header(raw: bytes) -> dict[str, Any]:
    """Return the facts of a header.

    Raises:
        DamagedCacheError: It was not finished, or is not what was written.
    """
    size = int.from_bytes(raw[8:12], "little")
    body = raw[20 : 20 + size]
    if not raw.startswith(MAGIC) or len(body) != size or xxhash.xxh3_64_digest(body) != raw[12:20]:
        raise DamagedCacheError("its header is not what was written")
    facts: dict[str, Any] = json.loads(body)
    if facts["schema"] != SCHEMA:
        raise DamagedCacheError(f"its layout is number {facts['schema']}, this version reads {SCHEMA}")
    return facts


def row_checksums(parts: Mapping[str, np.ndarray[Any, Any]], row: int) -> tuple[int, int, int]:
    """Return the checksums of the photons, the times and the rest of one event."""
    rest = xxhash.xxh3_64_intdigest(parts[NUMBERS][row].tobytes() + parts[TRUTH][row].tobytes())
    npho, time = (xxhash.xxh3_64_intdigest(parts[name][row]) for name in CHANNELS)
    return npho, time, rest

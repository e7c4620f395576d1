"""Finished segments, packed: the same numbers column by column, and in the end fewer of them.

Integers are stored as differences, all words byte plane by byte plane, then compressed with zstd. When the packed files
exceed their budget, records are thinned: of the file whose age is largest for its density, every second record goes.
Old times keep a record every 2, 4, 8 … steps, the newest keep all; steps that were not finite are never thinned out
as long as they are few.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cramjam
import numpy as np

from xectool.runlog.layout import Layout, Rows, StepBlock
from xectool.runlog.segments import RAW_SUFFIX, RawSegment

PACKED_SUFFIX: Final = ".zst"
_MAGIC: Final = b"XECPACK1"
_CHECKSUM: Final = "crc32"
_HEADER: Final = struct.Struct("=8sq")
_LEVEL: Final = 3
_MOST_ROWS: Final = 1 << 20  # a segment has 4 MiB and a row at least 8 words
_MOST_SPECIAL: Final = 0.25  # share of non-finite steps up to which all of them are kept


@dataclass(frozen=True)
class PackedSegment:
    """A packed file.

    Attributes:
        path: The file.
        layout: Names of its words.
        first: Sequence number of the first record of the segment it was made from.
        stop: Sequence number after the last one.
        count: Records it holds.
        stride: One of how many records is left.
        damaged: Records that could not be read when it was made.
        offset: Byte at which the numbers begin.
        checksum: CRC-32 of description and numbers; None in files that older versions made.
        described: CRC-32 of the description alone.
    """

    path: Path
    layout: Layout
    first: int
    stop: int
    count: int
    stride: int
    damaged: int
    offset: int
    checksum: int | None
    described: int

    @classmethod
    def open(cls, path: Path) -> PackedSegment:
        """Return the file's description.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It is not a packed segment, or its description is damaged.
        """
        with path.open("rb") as stream:
            head = stream.read(_HEADER.size)
            size = _HEADER.unpack(head)[1] if len(head) == _HEADER.size and head.startswith(_MAGIC) else -1
            if not 0 <= size <= os.fstat(stream.fileno()).st_size:
                raise ValueError(f"{path} is damaged: it does not begin as a file of steps")
            text = stream.read(size)
        try:
            facts = json.loads(text)
            checksum = facts.pop(_CHECKSUM, None)
            layout = Layout.from_json(facts["layout"])
            first, stop, count, stride, damaged = (
                int(facts[name]) for name in ("first", "stop", "count", "stride", "damaged")
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: the description of its steps cannot be read") from error
        if not (0 <= first <= stop and 0 <= count <= min(stop - first, _MOST_ROWS)) or stride < 1:
            raise ValueError(f"{path} counts its records wrongly: {first} to {stop}, {count} of them")
        offset, described = _HEADER.size + size, zlib.crc32(_text(facts))
        return cls(path, layout, first, stop, count, stride, damaged, offset, checksum, described)

    def load(self, start: int, stop: int) -> StepBlock:
        """Return the records with a sequence number in the half-open range.

        Raises:
            FileNotFoundError: There is no file any more.
            ValueError: It is damaged.
        """
        planes = bytearray(self.count * self.layout.row_bytes)
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            content = stream.read()
        if self.checksum is not None and zlib.crc32(content, self.described) != self.checksum:
            raise ValueError(f"{self.path} is damaged: its checksum differs")
        try:
            written = cramjam.zstd.decompress_into(content, planes)
        except cramjam.DecompressionError as error:
            raise ValueError(f"{self.path} is damaged: {error}") from error
        if written != len(planes):
            raise ValueError(f"{self.path} is damaged: {written} bytes of {len(planes)}")
        rows = _unpacked(np.frombuffer(planes, np.uint8), self.count, self.layout)
        low, high = np.searchsorted(rows[:, 0], [start, stop])
        return StepBlock(self.layout, rows[low:high])


def compact(path: Path) -> Path | None:
    """Pack a finished segment and remove it; returns the packed file, or None where it held no records.

    Raises:
        OSError: The disk refuses; the segment is as it was.
    """
    raw = RawSegment.open(path)
    packed = None
    if raw is not None and raw.stop > raw.first:
        block = raw.load(raw.first, raw.stop)
        packed = path.with_suffix(PACKED_SUFFIX)
        _write(packed, block, (raw.first, raw.stop), 1, block.damaged)
    path.unlink()
    return packed


def thin(path: Path) -> None:
    """Drop every second record of a packed file.

    Raises:
        OSError: The disk refuses; the file is as it was.
    """
    packed = PackedSegment.open(path)
    block, stride = packed.load(packed.first, packed.stop), 2 * packed.stride
    special = block.column("nonfinite")
    kept = block.seqs % stride == 0
    if special.mean() < _MOST_SPECIAL:
        kept |= special
    kept[0] |= not kept.any()
    _write(path, block.select(kept), (packed.first, packed.stop), stride, packed.damaged)


def keep_within(directories: Sequence[Path], budget_bytes: int) -> None:
    """Thin the packed files of a run until they fit.

    Args:
        directories: Attempts of the run, oldest first.
        budget_bytes: Most bytes of all packed files together.

    Raises:
        OSError: The disk refuses.
    """
    paths = [path for directory in directories for path in sorted(directory.glob(f"*{PACKED_SUFFIX}"))]
    sizes = {path: path.stat().st_size for path in paths}
    if sum(sizes.values()) <= budget_bytes:
        return
    strides, counts = {}, {}
    for path in paths:
        with contextlib.suppress(ValueError):  # damaged: stays as it is
            found = PackedSegment.open(path)
            strides[path], counts[path] = found.stride, found.count
    while sum(sizes.values()) > budget_bytes:
        thinnable = [path for path in paths if counts.get(path, 0) > 1]
        if not thinnable:
            return
        age = {path: len(paths) - number for number, path in enumerate(paths)}
        path = max(thinnable, key=lambda one: age[one] / strides[one])
        try:
            thin(path)
        except ValueError:  # its numbers are damaged: stays as it is
            counts[path] = 0
            continue
        found = PackedSegment.open(path)
        sizes[path], strides[path], counts[path] = path.stat().st_size, found.stride, found.count


def leftovers(directory: Path) -> list[Path]:
    """Return the segments of an attempt that are not packed, oldest first."""
    return sorted(directory.glob(f"*{RAW_SUFFIX}"))


def _write(path: Path, block: StepBlock, bounds: tuple[int, int], stride: int, damaged: int) -> None:
    facts = {
        "layout": block.layout.to_json(),
        "first": bounds[0],
        "stop": bounds[1],
        "count": len(block.rows),
        "stride": stride,
        "damaged": damaged,
    }
    content = bytes(cramjam.zstd.compress(_packed(block.rows, block.layout), level=_LEVEL))
    text = _text({**facts, _CHECKSUM: zlib.crc32(content, zlib.crc32(_text(facts)))})
    temporary = path.with_name(f".{path.name}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(_HEADER.pack(_MAGIC, len(text)) + text + content)
            stream.flush()
            os.fsync(stream.fileno())  # what it was made from is removed next
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _text(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()


def _packed(rows: Rows, layout: Layout) -> bytes:
    columns = rows.T.copy()
    columns[-1] = 0  # the file has one checksum for all its rows
    for word in range(layout.num_words):
        if layout.is_int(word):
            columns[word, 1:] = rows[1:, word] - rows[:-1, word]
    planes = columns.astype("<i8").view(np.uint8).reshape(layout.num_words, len(rows), 8)
    return planes.transpose(0, 2, 1).tobytes()


def _unpacked(planes: np.typing.NDArray[np.uint8], count: int, layout: Layout) -> Rows:
    words = planes.reshape(layout.num_words, 8, count).transpose(0, 2, 1).copy()
    columns = words.view("<i8").reshape(layout.num_words, count)
    for word in range(layout.num_words):
        if layout.is_int(word):
            np.cumsum(columns[word], out=columns[word])
    return np.ascontiguousarray(columns.T)

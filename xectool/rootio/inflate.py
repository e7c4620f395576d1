"""Decompresses ROOT's blocks, and of a large basket only those that are needed.

A compressed ROOT object is a row of blocks of at most 16 MiB, each with a 9-byte header: two letters for the
algorithm, one byte for its version, three bytes each for the compressed and uncompressed size, little endian.
"""

from __future__ import annotations

import lzma
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import cramjam
import deflate
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

_HEADER = struct.Struct("<2sxHBHB")  # the two sizes as 16 and 8 bits each
HEADER_BYTES = _HEADER.size
# ROOT cuts what it compresses into blocks of so many bytes; only the last one is shorter.
BLOCK_BYTES = 0xFFFFFF
# What XZ may take for its dictionary; that of its highest level is half as large.
_XZ_BYTES = 1 << 27
# Of a block of which less is wanted only the beginning is inflated, which is slower for each byte.
_PREFIX_SHARE = 0.4

# What is too much for the few bytes it is claimed of, and how much a byte can become at most.
_LARGEST_BYTES, _LARGEST_RATIO = 1 << 28, 1000
_GROWTH = {b"ZL": 1032, b"XZ": 7100, b"ZS": 33_000}
MOST_GROWTH = 33_000
"""Bytes that one byte becomes at most, whatever the algorithm."""

_own = threading.local()

# What a broken byte can raise on its way through the decompressors and the header arithmetic.
INFLATE_ERRORS = (
    ValueError,
    EOFError,
    zlib.error,
    deflate.DeflateError,
    lzma.LZMAError,
    cramjam.DecompressionError,
    zstandard.ZstdError,
)


def inflate_range(data: Any, start: int, stop: int, *, out: npt.NDArray[np.uint8] | None = None) -> Any:
    """Return the uncompressed bytes ``[start, stop)`` of a row of compressed blocks as a flat byte buffer.

    Blocks that lie outside of the range are stepped over, so memory is bounded by the range plus one block.

    Args:
        data: The blocks.
        start: First byte.
        stop: End of the bytes.
        out: Room for the bytes, into which several blocks are joined; without it that is a buffer of the calling
            thread, which its next call writes over. Those of a single block come in memory of their own; only an LZ4
            block that is wanted whole is inflated into the room, where there is some.

    Raises:
        ValueError: A block header is not one of ROOT's, or the blocks end early.
    """
    wanted = [found for found in _blocks_until(memoryview(data), stop) if found[0] + found[3] > start]
    if not wanted:
        return b""
    # A single block that is wanted whole: LZ4 is faster into the caller's memory, ZSTD (by a tenth) into its own.
    in_place = out is not None and wanted[0][1] == b"L4" and wanted[0][3] == stop - start
    if len(wanted) == 1 and not in_place:
        return _part(wanted[0], start, stop)
    if out is None:
        out = _thread_buffer(stop - start)
    for block in wanted:
        position, algorithm, packed, size = block
        if start <= position and position + size <= stop:
            _inflate_into(algorithm, packed, out[position - start : position - start + size])
        else:
            part = np.frombuffer(_part(block, start, stop), np.uint8)
            low = max(position - start, 0)
            out[low : low + len(part)] = part
    return out.data


def _part(block: tuple[int, bytes, memoryview, int], start: int, stop: int) -> memoryview:
    """Return those bytes of a block that lie in ``[start, stop)``."""
    position, algorithm, packed, size = block
    content = _inflate_block(algorithm, packed, size, min(stop - position, size))
    return memoryview(content)[max(start - position, 0) : stop - position]


def _thread_buffer(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return memory of this thread: touching fresh pages for each basket costs as much as inflating LZ4."""
    buffer: npt.NDArray[np.uint8] | None = getattr(_own, "buffer", None)
    if buffer is None or len(buffer) < num_bytes:
        buffer = _own.buffer = np.empty(num_bytes, np.uint8)
    return buffer[:num_bytes]


def inflated_bytes(data: Any, start: int, stop: int) -> int:
    """Return how many bytes `inflate_range` inflates for the bytes ``[start, stop)``."""
    blocks = _blocks_until(memoryview(data), stop)
    return sum(
        stop - position if _is_cut_short(algorithm, size, stop - position) else size
        for position, algorithm, _, size in blocks
        if position + size > start
    )


def packed_bytes(header: bytes) -> tuple[int, int]:
    """Return the bytes of a block, its header included, and the bytes it inflates to, from its header.

    Raises:
        ValueError: The header is not one of ROOT's.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError("a compressed block has no header of ROOT's")
    _, packed, packed_high, size, size_high = _HEADER.unpack_from(header)
    if size == size_high == 0:
        raise ValueError("a compressed block has no header of ROOT's")
    return HEADER_BYTES + packed + (packed_high << 16), size + (size_high << 16)


def require_bounded(view: memoryview, num_bytes: int) -> None:
    """Check that a row of compressed blocks inflates to what it says, before a library that does not ask inflates it.

    Args:
        view: The blocks.
        num_bytes: What they should inflate to together.

    Raises:
        ValueError: One inflates to something else, or a few bytes claim to be very many.
    """
    if num_bytes > _LARGEST_BYTES and num_bytes > _LARGEST_RATIO * len(view):
        raise ValueError(f"{len(view)} compressed bytes claim to hold {num_bytes}")
    offset = 0
    while offset < len(view):
        algorithm, packed, size = _block_header(view, offset)
        offset += HEADER_BYTES
        if packed * _GROWTH.get(algorithm, 1) > _LARGEST_BYTES:
            _inflate_block(algorithm, view[offset : offset + packed], size, size)
        offset += packed


def _blocks_until(view: memoryview, stop: int) -> Iterator[tuple[int, bytes, memoryview, int]]:
    """Yield the blocks before ``stop``: first uncompressed byte, algorithm, compressed bytes, uncompressed size."""
    position = offset = 0
    while position < stop:
        algorithm, packed, size = _block_header(view, offset)
        offset += HEADER_BYTES
        yield position, algorithm, view[offset : offset + packed], size
        offset += packed
        position += size


def _block_header(view: memoryview, offset: int) -> tuple[bytes, int, int]:
    if len(view) - offset < HEADER_BYTES:
        raise EOFError("the compressed data ends early")
    algorithm, packed, packed_high, unpacked, unpacked_high = _HEADER.unpack_from(view, offset)
    packed, unpacked = packed + (packed_high << 16), unpacked + (unpacked_high << 16)
    if offset + HEADER_BYTES + packed > len(view) or unpacked == 0:
        raise ValueError("a compressed block says it is longer than its data")
    return algorithm, packed, unpacked


def _is_cut_short(algorithm: bytes, size: int, wanted: int) -> bool:
    return algorithm == b"ZL" and wanted < _PREFIX_SHARE * size


def _inflate_block(algorithm: bytes, data: memoryview, size: int, wanted: int) -> Any:
    """Return the bytes of a block, or at least its first ``wanted`` ones."""
    if _is_cut_short(algorithm, size, wanted):
        beginning = zlib.decompressobj().decompress(data, wanted)
        if len(beginning) != wanted:
            raise ValueError(f"a compressed block ends after {len(beginning)} bytes where its header says {size}")
        return beginning
    if algorithm == b"ZL":
        block: Any = deflate.zlib_decompress(data, size)
    elif algorithm == b"L4":
        block = _inflate_lz4(data, size)
    elif algorithm == b"ZS":
        block = np.empty(size, np.uint8)
        _inflate_into(algorithm, data, block)
    elif algorithm == b"XZ":
        block = _inflate_xz(data, size)
    elif algorithm == b"CS":
        block = deflate.deflate_decompress(data, size)
    else:
        raise ValueError(f"a compressed block starts with {algorithm!r}, which is no algorithm of ROOT")
    if len(block) != size:
        raise ValueError(f"a compressed block holds {len(block)} bytes where its header says {size}")
    return block


def _inflate_into(algorithm: bytes, data: memoryview, out: npt.NDArray[np.uint8]) -> None:
    """Fill ``out``, as long as the block, with its bytes."""
    if algorithm == b"L4":
        _check_lz4(data)
        found = cramjam.lz4.decompress_block_into(data[8:], out.data)
    elif algorithm == b"ZS":
        found = _inflate_zstd_into(data, out)
    else:
        out[:] = np.frombuffer(_inflate_block(algorithm, data, len(out), len(out)), np.uint8)
        return
    if found != len(out):
        raise ValueError(f"a compressed block holds {found} bytes where its header says {len(out)}")


def _inflate_zstd_into(data: memoryview, out: npt.NDArray[np.uint8]) -> int:
    """Fill ``out`` and return how many bytes there were, one more than its length where there are more.

    With room for the whole block zstd inflates it in place, in a context that the thread keeps: without the window and
    the copy that a stream has, in 0.84 of its time.
    """
    context: zstandard.ZstdDecompressor | None = getattr(_own, "zstd", None)
    if context is None:
        context = _own.zstd = zstandard.ZstdDecompressor()
    with context.stream_reader(data, read_across_frames=True) as reader:
        return reader.readinto(out.data) + len(reader.read(1))


def _inflate_xz(data: memoryview, size: int) -> bytes:
    """Return at most one byte more than ``size``, whatever the data inflate to."""
    decoder = lzma.LZMADecompressor(memlimit=_XZ_BYTES)
    block = decoder.decompress(data, size + 1)
    if len(block) == size and not decoder.eof:
        raise EOFError("the compressed data ends early")
    return block


def _check_lz4(data: memoryview) -> None:
    if xxhash.xxh64_intdigest(data[8:]) != int.from_bytes(data[:8], "big"):
        raise ValueError("the checksum of an LZ4 block does not match")


def _inflate_lz4(data: memoryview, size: int) -> Any:
    _check_lz4(data)
    return cramjam.lz4.decompress_block(data[8:], output_len=size)

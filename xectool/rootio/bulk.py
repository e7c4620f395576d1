"""Small baskets that lie near each other in a file, read together."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from xectool.rootio.source import ByteSource
from xectool.rootio.stages import READ, timed

# Between two baskets of a branch lie those of the others: read along where they are this share of what one read gets.
_BETWEEN = 1 / 16


class NearbyBaskets:
    """Bytes of a branch's baskets, of which those that follow each other come with one read.

    ROOT starts a file with baskets of one event, of some kB, and each that is read by itself costs a system call, or
    through a network a round trip. Memory is bounded by ``source.bulk_bytes`` or one basket, twice that for a row.

    Args:
        source: The bytes of the file.
        seeks: Where each basket starts in the file.
        sizes: Its bytes there.
        first: Number of the first of these baskets.
    """

    def __init__(self, source: ByteSource, seeks: list[int], sizes: list[int], first: int) -> None:
        self._source, self._seeks, self._sizes = source, seeks, sizes
        self._first = first
        self._begin, self._bytes = 0, memoryview(b"")

    def read(self, basket: int) -> memoryview:
        """Return the bytes of a basket, which are not written over later.

        Raises:
            EOFError: The file ends before.
        """
        start, size = self._seeks[basket - self._first], self._sizes[basket - self._first]
        low = start - self._begin
        if not 0 <= low <= low + size <= len(self._bytes):
            self._begin, self._bytes = start, self._from(basket - self._first)
            low = 0
        return self._bytes[low : low + size]

    def joined(self, first: int, count: int) -> bytes:
        """Return the bytes of baskets in a row, of ``bulk_bytes`` at most, without what lies between them.

        Raises:
            EOFError: The file ends before.
        """
        these = slice(first - self._first, first - self._first + count)
        seeks, sizes = self._seeks[these], self._sizes[these]
        gaps = np.diff(seeks) - sizes[:-1]
        if self._are_near(gaps).any():  # copied, so that what lies between them is given back
            return b"".join([bytes(self.read(number)) for number in range(first, first + count)])
        return b"".join([timed(READ, self._source.read, *place) for place in zip(seeks, sizes, strict=True)])

    def _are_near(self, gaps: Any) -> Any:
        return (gaps >= 0) & (gaps <= _BETWEEN * self._source.bulk_bytes)

    def _from(self, number: int) -> memoryview:
        """Return the bytes from a basket on to the end of the last one that lies near; of it alone where that fails."""
        start, size = self._seeks[number], self._sizes[number]
        num_bytes = self._end(number) - start
        if num_bytes > size:
            with suppress(OSError, EOFError):  # which basket is at fault shows when it is read by itself
                return memoryview(timed(READ, self._source.read, start, num_bytes))
        return memoryview(timed(READ, self._source.read, start, size))

    def _end(self, number: int) -> int:
        start = self._seeks[number]
        end = start + self._sizes[number]
        for later in range(number + 1, len(self._seeks)):
            seek, size = self._seeks[later], self._sizes[later]
            if not self._are_near(seek - end) or seek + size - start > self._source.bulk_bytes:
                break
            end = seek + size
        return end

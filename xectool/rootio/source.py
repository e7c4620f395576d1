"""Reads byte ranges of one file: by ``pread`` where it is local, through uproot's source where it is not.

Local files are not memory-mapped: mapped pages count as resident memory, and a file that shrinks under a map
kills the process where a short read is an ordinary error.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol


def client_errors() -> tuple[type[Exception], ...]:
    """Return what the client of ``https://`` raises: its package is loaded, in 0.13 s, by who reaches such a url."""
    client = sys.modules.get("aiohttp")
    return () if client is None else (client.ClientError,)


class ByteSource(Protocol):
    """Abstract source of bytes; safe to use from several threads.

    Attributes:
        bulk_bytes: What one read gets at most of small pieces that lie near each other.
    """

    bulk_bytes: int

    def read(self, start: int, num_bytes: int) -> Any:
        """Return ``num_bytes`` bytes from ``start``; raises ``EOFError`` where the file ends before."""
        ...

    def close(self) -> None:
        """Give the file handle back."""
        ...


class LocalSource:
    """Bytes of a file on this machine."""

    bulk_bytes = 1 << 18  # 16 pairs of baskets of one event; more gets no faster, as it leaves the processor's cache

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return ``num_bytes`` bytes from ``start``; raises ``EOFError`` where the file ends before."""
        data = os.pread(self._descriptor, num_bytes, start)
        if len(data) != num_bytes:
            raise EOFError(f"the file ends {num_bytes - len(data)} bytes early")
        return data

    def close(self) -> None:
        """Give the file handle back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class RemoteSource:
    """Bytes of a file that uproot reaches through fsspec (``root://``, ``https://``)."""

    bulk_bytes = 1 << 22  # a round trip costs as much as getting about so many

    def __init__(self, source: Any) -> None:
        self._source = source

    def read(self, start: int, num_bytes: int) -> Any:
        """Return ``num_bytes`` bytes from ``start``; raises ``EOFError`` where the file ends before."""
        try:
            data = self._source.chunk(start, start + num_bytes).raw_data
        except client_errors() as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        if len(data) != num_bytes:
            raise EOFError(f"the file ends {num_bytes - len(data)} bytes early")
        return data

    def close(self) -> None:
        """Close uproot's source."""
        self._source.close()

"""Give freed memory back to the system during long passes over data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Batch = TypeVar("Batch")


def trimmed(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches and after each return freed pages of the heap to the system.

    The C library keeps what batches free between small objects that live on, and the holes grow: 20 % more resident
    memory after 37 000 events than after 2000. (Fixing the threshold of its own mappings instead cost 65 % more time.)
    Trimmed when nothing of a batch is left, each one starts from the same heap and needs the same peak: so no consumer
    may hold a batch while it asks for the next. C libraries without ``malloc_trim`` are left alone.
    """
    trim = _malloc_trim()
    for batch in batches:
        yield batch
        del batch
        trim(0)


def _malloc_trim() -> Callable[[int], int]:
    found: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda padding: 0)
    return found

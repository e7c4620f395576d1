"""Give freed memory back to the system during long passes over data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

TRIM_EVERY = 4
"""Batches between two trims; one takes milliseconds, the page faults after it are spread over as many batches."""
Batch = TypeVar("Batch")


def trimmed(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches and every so often return freed pages of the heap to the system.

    The C library keeps what batches free between small objects that live on, and the holes grow: 20 % more resident
    memory after 37 000 events than after 2000. (Fixing the threshold of its own mappings instead
    cost 65 % more time.) C libraries without ``malloc_trim`` are left alone.
    """
    trim = _malloc_trim()
    for number, batch in enumerate(batches, start=1):
        yield batch
        if number % TRIM_EVERY == 0:
            trim(0)


def _malloc_trim() -> Callable[[int], int]:
    found: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda padding: 0)
    return found

"""One column of numbers as both kinds of tree offer it, and what can be wrong with it."""

from __future__ import annotations

import struct
from typing import Any, Protocol

import numpy as np
import uproot

from xectool.rootio.inflate import INFLATE_ERRORS

Array = np.ndarray[Any, Any]

# A broken byte in a basket, its key or a page reaches one of these.
READ_ERRORS = (
    *INFLATE_ERRORS,
    OSError,
    IndexError,
    KeyError,
    TypeError,
    AssertionError,
    OverflowError,
    struct.error,
    uproot.DeserializationError,
)


class DamagedRangeError(Exception):
    """Entries ``[start, stop)`` of a column cannot be read; the reader adds file, tree and branch."""

    def __init__(self, start: int, stop: int, reason: str) -> None:
        super().__init__(f"entries {start} to {stop}: {reason}")
        self.start, self.stop, self.reason = start, stop, reason


class WrongLengthError(Exception):
    """An entry of a variable-length column has another length than the caller's array."""

    def __init__(self, entry: int, found: int, expected: int) -> None:
        super().__init__(f"entry {entry} holds {found} values, expected {expected}")
        self.entry, self.found, self.expected = entry, found, expected


class Column(Protocol):
    """Abstract column: numbers of one branch, the same count in every entry or a variable one."""

    dtype: np.dtype[Any]
    #: Numbers in an entry; None where each entry has its own count.
    width: int | None

    def boundaries(self) -> list[int]:
        """Return the entries at which storage units start, and the end."""
        ...

    def read_starts(self) -> list[int]:
        """Return the entries at which reading can start without decompressing what lies before them."""
        ...

    def read(self, start: int, stop: int, out: Array) -> None:
        """Fill ``out``, shape (stop - start, width), with the entries ``[start, stop)``, cast to its type."""
        ...

    def first_width(self) -> int:
        """Return the count of numbers in the first entry."""
        ...


def check_lengths(counts: Array, first_entry: int, expected: int) -> None:
    """Check that every entry of a variable-length column has the expected count of numbers.

    Raises:
        WrongLengthError: One has not; names the first.
    """
    wrong = np.flatnonzero(counts != expected)
    if len(wrong):
        raise WrongLengthError(first_entry + int(wrong[0]), int(counts[wrong[0]]), expected)

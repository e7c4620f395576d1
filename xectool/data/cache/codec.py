"""How readings lie in the cache: as they are, or as 16-bit codes far finer than a sensor resolves.

Axes: N events, S sensors (4760).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xectool.detector.constants import DEAD_VALUE

Array = npt.NDArray[Any]

NPHO, TIME = "npho", "time"
CHANNELS: Final = (NPHO, TIME)
# Codes that are no values: 1e10, "no reading", and a value that is kept as it is in a list of exceptions.
_NO_READING: Final = np.int16(-32768)
_EXCEPTION: Final = np.int16(-32767)
_LARGEST_CODE: Final = 32766
# Codes a square root of a photon: the step is at most 0.24 % of the photon statistics sqrt(8.3 n), and the edge between
# two codes lies on 100 photons (10 x 145.05 = 1450.5), the usual threshold for a time.
_CODES_PER_ROOT: Final = 145.05
_TIME_STEP_S: Final = 5e-12
# Events of a block while codes are turned into numbers: what is made on the way stays in the processor's cache.
BLOCK_ROWS: Final = 8
_PHOTONS_PER_SQUARE, _STEP_S = np.float32(_CODES_PER_ROOT**-2), np.float32(_TIME_STEP_S)
_FIRST_VALUE, _DEAD = np.float32(_EXCEPTION), np.float32(DEAD_VALUE)
_NO_EXCEPTIONS: Final = np.empty((0, 3), np.int64)


@dataclass(frozen=True)
class Encoded:
    """Readings of one channel as they are stored.

    Attributes:
        stored: Numbers or codes, shape (N, S).
        exceptions: Row, sensor and the bits of each float32 that no code carries, shape (n, 3), ascending.
    """

    stored: Array
    exceptions: npt.NDArray[np.int64]


class Codec(ABC):
    """Abstract: turns readings into what is stored, and back.

    Attributes:
        name: As headers of cache files give it.
        dtype: Type of a stored number.
    """

    name: str
    dtype: np.dtype[Any]

    @abstractmethod
    def encode(self, channel: str, values: npt.NDArray[np.float32]) -> Encoded:
        """Return readings of a channel, shape (N, S), as they are stored."""

    @abstractmethod
    def decode(self, channel: str, stored: Array, out: npt.NDArray[np.float32]) -> None:
        """Fill ``out``, shape (N, S), with what ``stored`` means; exceptions remain to be filled in."""

    def round_trip(self, channel: str, values: npt.NDArray[np.float32]) -> None:
        """Replace readings, shape (N, S), by what they are after they were stored."""
        encoded = self.encode(channel, values)
        self.decode(channel, encoded.stored, values)
        fill_in(values, encoded.exceptions)


class Lossless(Codec):
    """Readings as they are: float32, every bit kept."""

    name = "lossless"
    dtype = np.dtype(np.float32)

    def encode(self, channel: str, values: npt.NDArray[np.float32]) -> Encoded:
        """Return the readings themselves."""
        return Encoded(values, _NO_EXCEPTIONS)

    def decode(self, channel: str, stored: Array, out: npt.NDArray[np.float32]) -> None:
        """Copy the readings."""
        np.copyto(out, stored)

    def round_trip(self, channel: str, values: npt.NDArray[np.float32]) -> None:
        """Leave the readings as they are."""


class Compact(Codec):
    """Signed 16-bit codes: the square root of the photons in steps of 1/145.05, the time in steps of 5 ps.

    1e10, "no reading", has a code of its own. Whatever a code does not carry is an exception and stays the float32 it
    was: NaN, infinity, readings beyond ±51 000 photons or ±164 ns, and those that a code would move across a threshold.

    Args:
        thresholds: Photon numbers that readings are compared with.
    """

    name = "compact"
    dtype = np.dtype(np.int16)

    def __init__(self, thresholds: Sequence[float] = ()) -> None:
        self.thresholds = tuple(sorted({0.0, *(float(value) for value in thresholds)}))

    def encode(self, channel: str, values: npt.NDArray[np.float32]) -> Encoded:
        """Return codes, and the readings that no code carries."""
        stored, found = np.empty(values.shape, np.int16), [_NO_EXCEPTIONS]
        for start in range(0, len(values), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            exceptions = self._encode_block(channel, values[rows], stored[rows])
            exceptions[:, 0] += start
            found.append(exceptions)
        return Encoded(stored, np.concatenate(found))

    def _encode_block(self, channel: str, values: Array, stored: Array) -> npt.NDArray[np.int64]:
        with np.errstate(invalid="ignore", over="ignore"):
            if channel == NPHO:
                scaled = np.copysign(np.sqrt(np.abs(values)) * np.float32(_CODES_PER_ROOT), values)
            else:
                scaled = values / np.float32(_TIME_STEP_S)
            carried = np.abs(scaled) <= _LARGEST_CODE  # NaN compares false
            np.copyto(stored, np.rint(scaled, out=scaled), casting="unsafe")
        if channel == NPHO:
            carried &= self._on_the_same_side(values, stored)
        unknown = values == np.float32(DEAD_VALUE)
        stored[~carried] = _EXCEPTION
        stored[unknown] = _NO_READING
        row, sensor = np.nonzero(~(carried | unknown))
        bits = values[row, sensor].view(np.uint32).astype(np.int64)
        return np.stack([row, sensor, bits], axis=1).astype(np.int64)

    def decode(self, channel: str, stored: Array, out: npt.NDArray[np.float32]) -> None:
        """Turn codes into readings, some events at a time."""
        scratch = block_scratch(stored.shape[1])
        for start in range(0, len(stored), BLOCK_ROWS):
            decode_block(channel, stored[start : start + BLOCK_ROWS], scratch, out[start : start + BLOCK_ROWS])

    def _on_the_same_side(self, values: Array, stored: Array) -> npt.NDArray[np.bool_]:
        """Return where a reading and its code are on the same side of every threshold."""
        decoded = np.empty(values.shape, np.float32)
        self.decode(NPHO, stored, decoded)
        same = np.ones(values.shape, np.bool_)
        with np.errstate(invalid="ignore"):
            for threshold in self.thresholds:
                same &= (values >= np.float32(threshold)) == (decoded >= np.float32(threshold))
        return same


def fill_in(out: npt.NDArray[np.float32], exceptions: npt.NDArray[np.int64]) -> None:
    """Put exceptions, shape (n, 3), into readings, shape (N, S)."""
    if len(exceptions):
        out[exceptions[:, 0], exceptions[:, 1]] = exceptions[:, 2].astype(np.uint32).view(np.float32)


def block_scratch(num_sensors: int) -> Array:
    """Return the memory that `decode_block` needs; touching it afresh for each block would cost a tenth."""
    return np.empty((2, BLOCK_ROWS, num_sensors), np.float32)


def decode_block(channel: str, codes: Array, scratch: Array, out: npt.NDArray[np.float32]) -> None:
    """Turn compact codes of up to `BLOCK_ROWS` events, shape (N, S), into readings; exceptions remain to be filled in.

    All are passes that the processor makes several numbers at a time: none of them chooses.
    """
    numbers, values = scratch[:, : len(codes)]
    np.copyto(numbers, codes)
    if channel == NPHO:
        np.abs(numbers, out=values)
        np.multiply(values, _PHOTONS_PER_SQUARE, out=values)
        np.multiply(values, numbers, out=values)
    else:
        np.multiply(numbers, _STEP_S, out=values)
    # 1e10 for "no reading", 0 for an exception, and beyond -1e10 for every value, which is larger.
    np.subtract(_FIRST_VALUE, numbers, out=numbers)
    np.multiply(numbers, _DEAD, out=numbers)
    np.maximum(values, numbers, out=out)

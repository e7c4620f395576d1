"""Baskets of a few numbers, all alike and not compressed, decoded together.

ROOT starts a file with baskets of one event: of a truth or a run number that is a header of 80 bytes for each 4, and
decoding one alone costs as much as copying 20 kB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Fewer baskets are not worth the arrays, and in larger ones a copy more costs what is won.
FEWEST, LARGEST_BYTES = 8, 1 << 12

# The beginning of a basket: bytes of it in the file, version, bytes of its content, of its header, its own place.
_KEY = np.dtype(
    {
        "names": ["stored", "version", "object", "key", "place", "far_place"],
        "formats": [">i4", ">u2", ">i4", ">u2", ">i4", ">i8"],
        "offsets": [0, 4, 6, 14, 18, 18],
        "itemsize": 26,
    }
)
BIG_KEY = 1000  # a key of a higher version has places of 64 bits


def count_alike(edges: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], entry_bytes: int, most_bytes: int) -> int:
    """Return how many baskets from the first on are alike and may be decoded together; 0 where that is not worth it.

    Args:
        edges: First entries of the baskets and the end, shape (N + 1,).
        sizes: Bytes of the baskets in the file, shape (N,) or less.
        entry_bytes: Bytes of an entry.
        most_bytes: Bytes that they may be together.
    """
    if not len(sizes) or not _KEY.itemsize < sizes[0] <= LARGEST_BYTES:
        return 0
    most = min(int(most_bytes // sizes[0]), len(sizes))
    counts, sizes = np.diff(edges[: most + 1]), sizes[:most]
    if most < FEWEST or not 0 < counts[0] * entry_bytes <= sizes[0] - _KEY.itemsize:
        return 0
    others = np.flatnonzero((counts != counts[0]) | (sizes != sizes[0]))
    found = int(others[0]) if len(others) else most
    return found if found >= FEWEST else 0


def decode_alike(data: Any, seeks: npt.NDArray[np.integer[Any]], num_bytes: int) -> npt.NDArray[np.uint8] | None:
    """Return the entries of baskets that follow each other in ``data``, shape (N, num_bytes), without a copy.

    None where a header is not as it should be, or its basket compressed: each by itself then tells what it is.

    Args:
        data: The baskets, N of equal size.
        seeks: Where each starts in the file, shape (N,).
        num_bytes: Bytes of the entries of one.
    """
    baskets = np.frombuffer(data, np.uint8).reshape(len(seeks), -1)
    size = baskets.shape[1]
    keys = np.ndarray(len(seeks), _KEY, baskets, strides=(size,))
    key_bytes = int(keys["key"][0])
    place = np.where(keys["version"] > BIG_KEY, keys["far_place"], keys["place"])
    is_plain = (keys["stored"] == size) & (keys["key"] == key_bytes) & (keys["object"] == size - key_bytes)
    if not (is_plain & (place == seeks)).all() or key_bytes < _KEY.itemsize or num_bytes > size - key_bytes:
        return None
    return baskets[:, key_bytes : key_bytes + num_bytes]

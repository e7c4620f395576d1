"""Digests of the signs of weights, as the run records them."""

from __future__ import annotations

from typing import Final

COPY: Final = 0.9  # of the signs of weights; other precision of a file may turn those of the smallest


def same_signs(saved: object, loaded: object) -> float:
    """Return the share of signs that two digests agree on, 1 where they cannot be compared."""
    if not (isinstance(saved, str) and isinstance(loaded, str) and saved and len(saved) == len(loaded)):
        return 1.0
    return 1.0 - (int(saved, 16) ^ int(loaded, 16)).bit_count() / (4 * len(saved))

"""Find the events that make a test fail, with far fewer trials than events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

MOST_TOGETHER: Final = 8  # parts of many rows that are each needed: then it is the rows as a whole

Predicate = Callable[[Sequence[int]], bool]


def bisect_events(predicate: Predicate, n: int, limit: int | None = None) -> list[int]:
    """Return the rows that make ``predicate`` true, ascending.

    Every row that is bad by itself is found, in about k log2(n / k) trials for k of them. Where rows are bad only
    together, a smallest such group is returned: without any one of its rows the predicate is false.

    Args:
        predicate: Says whether the events at these rows, given ascending, show the fault.
        n: Number of events.
        limit: Give up and return nothing once more rows than this are bad: then it is not the events.
    """
    found: list[int] = []
    if n and predicate(range(n)):
        _search(predicate, list(range(n)), found, n if limit is None else limit)
    return [] if limit is not None and len(found) > limit else sorted(found)


def _search(predicate: Predicate, rows: list[int], found: list[int], limit: int) -> None:
    """Add the bad rows among ``rows``, which are known to show the fault together."""
    if len(found) > limit:
        return
    if len(rows) == 1:
        found.append(rows[0])
        return
    half = len(rows) // 2
    parts = [part for part in (rows[:half], rows[half:]) if predicate(part)]
    for part in parts:
        _search(predicate, part, found, limit)
    if not parts:
        found += _smallest(predicate, rows, limit)


def _smallest(predicate: Predicate, rows: list[int], limit: int) -> list[int]:
    """Return a group of rows that shows the fault while no part of it with one row less does.

    More than ``limit`` rows, and not a smallest group, where each of `MOST_TOGETHER` parts of so many holds one that is
    needed: to find which would take as many trials as the square of their number.

    Source: the minimising delta debugging algorithm, Zeller and Hildebrandt 2002, doi:10.1109/32.988498.
    """
    parts = 2
    while len(rows) > 1:
        size = -(-len(rows) // parts)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        smaller = next((chunk for chunk in chunks if len(chunk) < len(rows) and predicate(chunk)), None)
        if smaller is not None:
            rows, parts = smaller, 2
            continue
        rests = ([row for row in rows if row not in chunk] for chunk in map(set, chunks))
        rest = next((rest for rest in rests if rest and predicate(rest)), None)
        if rest is not None:
            rows, parts = rest, max(parts - 1, 2)
        elif parts >= len(rows) or (parts >= MOST_TOGETHER and len(rows) > limit):
            break
        else:
            parts = min(2 * parts, len(rows))
    return rows

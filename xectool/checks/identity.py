"""Which events a sample holds: numbers that occur twice, events that two samples share, numbers that stand out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Hashes = npt.NDArray[np.uint64]

# Hashes compared at once; larger samples are compared in several passes, so memory stays at 8 bytes x this, thrice.
MAX_HASHES = 20_000_000
KEPT_PAIRS = 10


@dataclass(frozen=True)
class SameEvent:
    """Two places that hold the same event; run and event -1 where only the readings are equal."""

    first_path: str
    first_entry: int
    path: str
    entry: int
    run: int
    event: int


@dataclass(frozen=True)
class IdentityBlock:
    """Hashes of the identity of some entries of a file, shape (n,), and the numbers they were made of."""

    path: str
    entries: Array
    runs: Array
    events: Array
    hashes: Hashes


@dataclass(frozen=True)
class Repeated:
    """How many events occur again, and the first of them."""

    count: int
    pairs: tuple[SameEvent, ...] = ()


Stream = Callable[[], Iterator[IdentityBlock]]


def hash_numbers(runs: Array, events: Array) -> Hashes:
    """Return a 64-bit hash of each run and event number, shape (n,); equal numbers have equal hashes."""
    mixed = _mix(runs.astype(np.int64).view(np.uint64))
    return _mix(mixed ^ events.astype(np.int64).view(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """The finaliser of splitmix64 (G. Steele et al., OOPSLA 2014): a bijection without visible structure."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def find_repeated(stream: Stream, num_events: int) -> Repeated:
    """Return the events of a stream that occurred before in it."""
    count, pairs = 0, list[SameEvent]()
    passes = _passes(num_events)
    for turn in range(passes):
        hashes = _collect(stream, turn, passes)
        hashes.sort()
        again = hashes[1:] == hashes[:-1]
        count += int(np.count_nonzero(again))
        wanted = np.unique(hashes[1:][again][: KEPT_PAIRS - len(pairs)])
        if len(wanted):
            pairs += _locate(stream, stream, wanted, same=True)
    return Repeated(count, tuple(pairs[:KEPT_PAIRS]))


def find_shared(first: Stream, second: Stream, num_events: int) -> Repeated:
    """Return the events of the second stream that are in the first."""
    count, pairs = 0, list[SameEvent]()
    passes = _passes(num_events)
    for turn in range(passes):
        known = np.unique(_collect(first, turn, passes))
        if not len(known):
            continue
        hit = list[Hashes]()
        for block in second():
            mine = _of_pass(block.hashes, turn, passes)
            at = np.minimum(np.searchsorted(known, mine), len(known) - 1)
            found = mine[known[at] == mine]
            count += len(found)
            hit.append(found[:KEPT_PAIRS])
        wanted = np.unique(np.concatenate(hit))[: KEPT_PAIRS - len(pairs)] if hit else np.empty(0, np.uint64)
        if len(wanted):
            pairs += _locate(first, second, wanted, same=False)
    return Repeated(count, tuple(pairs[:KEPT_PAIRS]))


def _passes(num_events: int) -> int:
    return max(1, -(-num_events // MAX_HASHES))


def _collect(stream: Stream, turn: int, passes: int) -> Hashes:
    parts = [_of_pass(block.hashes, turn, passes) for block in stream()]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _of_pass(hashes: Hashes, turn: int, passes: int) -> Hashes:
    return hashes[hashes % np.uint64(passes) == np.uint64(turn)] if passes > 1 else hashes


def _locate(first: Stream, second: Stream, wanted: Hashes, *, same: bool) -> list[SameEvent]:
    """Return places of wanted events, at most `KEPT_PAIRS`: all entries may be the same event."""
    seen: dict[int, tuple[str, int]] = {}
    pairs = list[SameEvent]()
    for path, row, key, block in _hits(first, wanted):
        if key not in seen:
            seen[key] = (path, int(block.entries[row]))
        elif same:
            pairs.append(_pair(seen[key], block, row))
        if len(pairs) == KEPT_PAIRS or (not same and len(seen) == len(wanted)):
            break
    if not same:
        again = (_pair(seen[key], block, row) for _, row, key, block in _hits(second, wanted) if key in seen)
        pairs += islice(again, KEPT_PAIRS)
    return pairs


def _hits(stream: Stream, wanted: Hashes) -> Iterator[tuple[str, int, int, IdentityBlock]]:
    """Yield file, row, hash and block of every wanted event of a stream."""
    for block in stream():
        for row in np.flatnonzero(np.isin(block.hashes, wanted)):
            yield block.path, int(row), int(block.hashes[row]), block


def _pair(first: tuple[str, int], block: IdentityBlock, row: int) -> SameEvent:
    return SameEvent(*first, block.path, int(block.entries[row]), int(block.runs[row]), int(block.events[row]))


def lonely_numbers(runs: Array) -> Array:
    """Return the rows whose run number differs from both neighbours, which agree: a damaged number, shape (n,)."""
    if len(runs) < 3:
        return np.empty(0, np.int64)
    apart = (runs[1:-1] != runs[:-2]) & (runs[:-2] == runs[2:])
    return np.flatnonzero(apart) + 1

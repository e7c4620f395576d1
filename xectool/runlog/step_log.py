"""The steps of one attempt: segments in a row, the finished ones packed in the background."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from xectool.runlog.compact import PACKED_SUFFIX, PackedSegment, compact, keep_within, leftovers
from xectool.runlog.layout import StepBlock
from xectool.runlog.records import StepRecord
from xectool.runlog.segments import RAW_SUFFIX, RawSegment, Segment, SegmentFull

_LOG = logging.getLogger(__name__)
_FIRST_BYTES: Final = 1 << 19  # a short run takes no more; each further segment is twice as large
_MOST_DOUBLINGS: Final = 20
_RETRY_STEPS: Final = 64  # a full disk is asked again after so many lost steps


@dataclass(frozen=True)
class Limits:
    """Sizes of the step records.

    Attributes:
        segment_bytes: Size of a segment, taken from the disk when it is made; the first ones are smaller.
        packed_bytes: Most bytes of all packed segments of a run together; beyond it old steps are thinned.
    """

    segment_bytes: int = 4 << 20
    packed_bytes: int = 256 << 20


class StepWriter:
    """Stores the steps of one rank of an attempt.

    Args:
        directory: Directory of the attempt.
        rank: Rank of this process.
        limits: Sizes.
        attempts: Directories of all attempts of the run, oldest first; they share the budget.

    Attributes:
        count: Records stored; the sequence number of the next.
        dropped: Records the disk refused.

    Raises:
        OSError: The disk refuses the first segment; nothing is left behind.
    """

    def __init__(self, directory: Path, rank: int, limits: Limits, attempts: Sequence[Path]) -> None:
        self._directory, self._rank, self._limits = directory, rank, limits
        # One process thins the files of all ranks; two that choose the same one would spoil it.
        self._packer = Packer(attempts if rank == 0 else (), limits.packed_bytes)
        self._names: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self.count = self.dropped = self._wait = self._segments = 0
        self._segment: Segment | None = self._new_segment()
        for path in (path for attempt in attempts if attempt != directory for path in leftovers(attempt)):
            self._packer.submit(path)

    def append(self, record: StepRecord) -> bool:
        """Store a record; returns whether the disk took it."""
        if self._wait > 0:
            self._wait -= 1
            self.dropped += 1
            return False
        try:
            self._store(record)
        except (OSError, SegmentFull) as error:
            if not self.dropped:
                text = "the run record in %s cannot grow: %s; training continues without it"
                _LOG.warning(text, self._directory, getattr(error, "strerror", None) or "a step has too many values")
            self._wait = _RETRY_STEPS
            self.dropped += 1
            return False
        return True

    def close(self) -> None:
        """Pack what is there and release everything."""
        if self._segment is not None:
            self._retire(self._segment)
            self._segment = None
        self._packer.close()

    def _store(self, record: StepRecord) -> None:
        self._segment = self._segment or self._new_segment()
        try:
            self._segment.append(record)
        except SegmentFull:
            self._retire(self._segment)
            self._segment = None
            for known, values in zip(self._names, (record.losses, record.block_norms), strict=True):
                known |= dict.fromkeys(values)
            self._segment = self._new_segment()
            self._segment.append(record)
        self.count += 1

    def _retire(self, segment: Segment) -> None:
        segment.close()
        self._packer.submit(segment.path)

    def _new_segment(self) -> Segment:
        name = f"rank{self._rank:04d}.steps-{self.count:012d}{RAW_SUFFIX}"
        names = {"losses": list(self._names[0]), "block_norms": list(self._names[1])}
        size = min(_FIRST_BYTES << self._segments, self._limits.segment_bytes)
        segment = Segment(self._directory / name, self.count, size, names)
        self._segments = min(self._segments + 1, _MOST_DOUBLINGS)
        return segment


class Packer:
    """Packs finished segments in a thread of its own, which begins with the first of them.

    Args:
        attempts: Directories of all attempts of the run, oldest first; none are thinned where none are given.
        budget_bytes: Most bytes of their packed segments together.
    """

    def __init__(self, attempts: Sequence[Path], budget_bytes: int) -> None:
        self._attempts, self._budget = attempts, budget_bytes
        self._queue: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, path: Path) -> None:
        """Have a segment packed that nobody writes any more."""
        self._queue.put(path)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="xectool-pack", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait until all that was submitted is packed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (path := self._queue.get()) is not None:
            try:
                compact(path)
                keep_within(self._attempts, self._budget)
            except OSError as error:  # a full or vanished disk: the segment stays as it is
                _LOG.warning("steps are kept unpacked in %s: %s", path, os.strerror(error.errno or 0))
            except ValueError as error:  # an older segment is damaged
                _LOG.warning("steps are kept as they are: %s", error)


class StepFiles:
    """Reads the steps of one rank of an attempt, also while they are written and packed.

    Args:
        directory: Directory of the attempt.
        rank: Rank of the writer.
    """

    def __init__(self, directory: Path, rank: int = 0) -> None:
        self._directory, self._prefix = directory, f"rank{rank:04d}.steps-"

    def stop(self) -> int:
        """Return the sequence number after the last whole record."""
        for name in reversed(self._names()):
            found = self._open(name)
            if found is not None:
                return found.stop
        return 0

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StepBlock]:
        """Yield the records with a sequence number in the half-open range, a block a file, none empty."""
        stop = self.stop() if stop is None else stop
        names = self._names()
        firsts = [self._first(name) for name in names]
        for name, first, after in zip(names, firsts, [*firsts, stop][1:], strict=True):
            if first < stop and after > start:
                block = self._load(name, start, stop)
                if block is not None and len(block.rows):
                    yield block

    def tail(self, count: int) -> Iterator[StepBlock]:
        """Yield blocks from the newest file to the oldest, none empty; of one that is not packed the last ``count``."""
        for name in reversed(self._names()):
            found = self._open(name)
            if found is None:
                continue
            start = max(found.first, found.stop - count) if isinstance(found, RawSegment) else found.first
            block = self._load(name, start, found.stop)
            if block is not None and len(block.rows):
                yield block

    def at(self, seq: int) -> StepBlock | None:
        """Return the first record with at least this sequence number, or None."""
        block = next(self.blocks(seq), None)
        return None if block is None else block.select(slice(0, 1))

    def last(self) -> StepBlock | None:
        """Return the last record, or None."""
        for name in reversed(self._names()):
            found = self._open(name)
            block = None if found is None else self._load(name, found.first, found.stop)
            if block is not None and len(block.rows):
                return block.select(slice(-1, None))
        return None

    def damaged(self) -> int:
        """Return how many records cannot be read, as far as files say so or are not packed yet."""
        total = 0
        for name in self._names():
            found = self._open(name)
            if isinstance(found, PackedSegment):
                total += found.damaged
            elif found is not None and (block := self._load(name, found.first, found.stop)) is not None:
                total += block.damaged  # 0 where it was packed in between, and the next look says how many
        return total

    def _names(self) -> list[str]:
        """Return the names of the segments without suffix, oldest first."""
        return sorted(
            {path.stem for path in self._directory.glob(f"{self._prefix}[0-9]*") if not path.name.endswith(".part")}
        )

    def _first(self, name: str) -> int:
        return int(name.rpartition("-")[2])

    def _open(self, name: str) -> RawSegment | PackedSegment | None:
        raw, packed = self._directory / (name + RAW_SUFFIX), self._directory / (name + PACKED_SUFFIX)
        # The packed file is whole before the raw one goes, so one of the two is always there.
        try:
            return RawSegment.open(raw)
        except FileNotFoundError:
            return self._packed(packed)

    def _packed(self, path: Path) -> PackedSegment | None:
        try:
            return PackedSegment.open(path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            _say_once(f"steps are missing: {error}")
            return None

    def _load(self, name: str, start: int, stop: int) -> StepBlock | None:
        for _ in range(2):  # once more if it was packed in between
            found = self._open(name)
            if found is None:
                return None
            try:
                return found.load(start, stop)
            except FileNotFoundError:
                continue
            except ValueError as error:
                _say_once(f"steps are missing: {error}")
                return None
        return None


@lru_cache(maxsize=1024)
def _say_once(text: str) -> None:
    """Warn of something that every look at the same file would say again."""
    _LOG.warning(text)

"""Where records lie: one directory an attempt, behind two small protocols.

The writer knows only `RecordSink`, the reader only `RecordSource`; another format is another pair, chosen in
`open_sink` and `open_source`, and neither the training loop nor the mirrors notice. Steps lie in segments (`step_log`),
everything else in lines (`json_lines`) that say how many steps were stored before them: both are one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from xectool.runlog.json_lines import DISK, NO_LINES, Lines, LineWriter, all_lines, read_lines
from xectool.runlog.layout import StepBlock, block_of
from xectool.runlog.records import END_KINDS, EventRecord, Record, StepRecord
from xectool.runlog.step_log import Limits, StepFiles, StepWriter

RECORD_DIR: Final = "rec"
LINES_FILE: Final = "events.jsonl"
OLD_FILE: Final = "record.jsonl"  # steps and all of runs of format 1
_STEP_BITS: Final = 48  # of a place in the record; the bits above are the byte in the lines


class RecordSink(Protocol):
    """Takes the records of one attempt; never raises for a failing disk."""

    @property
    def dropped(self) -> int:
        """Number of records the disk refused."""

    def append(self, record: Record) -> None:
        """Store one record so that a killed process does not lose it."""

    def close(self) -> None:
        """Release the files; later records are refused."""


@dataclass(frozen=True)
class Chunk:
    """Whole records from ``offset`` on, the offset after them, and the number of records that could not be read."""

    records: tuple[Record, ...]
    offset: int
    damaged: int


class RecordSource(Protocol):
    """Reads the records of one attempt, also while they are written."""

    def read(self, offset: int, limit_bytes: int) -> Chunk:
        """Return the whole records in about ``limit_bytes`` from ``offset``; an unfinished tail is left for later."""

    def others(self) -> Chunk:
        """Return all records but the steps."""

    def step_blocks(self) -> Iterator[StepBlock]:
        """Yield the steps as columns."""

    def step_tail(self, count: int) -> Iterator[StepBlock]:
        """Yield the steps as columns, the newest block first; of one that is being written the last ``count``."""

    def first_step_after(self, num_steps: int) -> StepRecord | None:
        """Return the first step stored after so many others, or None."""

    def last_step(self) -> StepRecord | None:
        """Return the last step, or None."""

    def damaged_steps(self) -> int:
        """Return how many steps cannot be read."""

    def rewinds(self) -> list[int]:
        """Return for each ``rewind`` event how many steps were stored before it."""


class AttemptSink:
    """Stores steps in segments and everything else in lines.

    Args:
        directory: Directory of the attempt.
        limits: Sizes of the step records.
        earlier: Directories of the earlier attempts, oldest first.
        rank: Rank of the writer.

    Raises:
        OSError: The disk refuses.
    """

    def __init__(self, directory: Path, limits: Limits, earlier: tuple[Path, ...], rank: int = 0) -> None:
        self._lines = LineWriter(directory / (f"rank{rank:04d}.{LINES_FILE}" if rank else LINES_FILE))
        self._steps = StepWriter(directory, rank, limits, (*earlier, directory))
        self._gap = 0

    @property
    def dropped(self) -> int:
        """Number of records the disk refused."""
        return self._steps.dropped + self._lines.dropped

    def append(self, record: Record) -> None:
        """Store one record."""
        if not isinstance(record, StepRecord):
            if self._gap and isinstance(record, EventRecord) and record.kind in END_KINDS:
                self._close_gap(record)  # no step will come to say it
            self._lines.append(record, self._steps.count)
        elif not self._steps.append(record):
            self._gap += 1
        elif self._gap:
            self._close_gap(record)

    def close(self) -> None:
        """Release the files; what was stored is packed."""
        self._steps.close()
        self._lines.close()

    def _close_gap(self, record: StepRecord | EventRecord) -> None:
        text = f"steps lost, refused by the disk: {self._gap}"
        data = {"lost": self._gap, "reason": DISK}
        event = EventRecord("recorder_gap", record.time, record.mono, record.step, record.epoch, text, data)
        self._lines.append(event, self._steps.count)
        self._gap = 0


class AttemptSource:
    """Reads what an `AttemptSink` wrote; lines that it has read it does not read again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LINES_FILE
        self._steps = StepFiles(directory)
        self._lines = NO_LINES

    def read(self, offset: int, limit_bytes: int) -> Chunk:
        """Return the whole records in about ``limit_bytes`` from ``offset``."""
        start, seq = offset >> _STEP_BITS, offset & ((1 << _STEP_BITS) - 1)
        # The count of steps first: a line that is not there yet then comes after all of them.
        stop = self._steps.stop()
        lines = read_lines(self._path, start, limit_bytes)
        merge = _Merge(self._steps, seq, limit_bytes)
        for line in lines.lines:
            if line.after > stop or not merge.steps_before(line.after):
                return merge.chunk(start, 0)
            merge.records.append(line.record)
            start = line.stop
        if lines.complete:
            merge.steps_before(stop)
        return merge.chunk(lines.stop, lines.damaged)

    def others(self) -> Chunk:
        """Return all records but the steps."""
        return _chunk(self._all_lines())

    def step_blocks(self) -> Iterator[StepBlock]:
        """Yield the steps as columns."""
        return self._steps.blocks()

    def step_tail(self, count: int) -> Iterator[StepBlock]:
        """Yield the steps as columns, the newest block first."""
        return self._steps.tail(count)

    def first_step_after(self, num_steps: int) -> StepRecord | None:
        """Return the first step stored after so many others, or None."""
        return _only(self._steps.at(num_steps))

    def last_step(self) -> StepRecord | None:
        """Return the last step, or None."""
        return _only(self._steps.last())

    def damaged_steps(self) -> int:
        """Return how many steps cannot be read."""
        return self._steps.damaged()

    def rewinds(self) -> list[int]:
        """Return for each ``rewind`` event how many steps were stored before it."""
        lines = self._all_lines().lines
        return [line.after for line in lines if isinstance(line.record, EventRecord) and line.record.kind == "rewind"]

    def _all_lines(self) -> Lines:
        self._lines = all_lines(self._path, self._lines)
        return self._lines


class OldSource:
    """Reads the one file of an attempt of format 1."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, offset: int, limit_bytes: int) -> Chunk:
        """Return the whole records in about ``limit_bytes`` from ``offset``."""
        return _chunk(read_lines(self._path, offset, limit_bytes))

    def others(self) -> Chunk:
        """Return all records but the steps."""
        found = _chunk(all_lines(self._path))
        kept = tuple(record for record in found.records if not isinstance(record, StepRecord))
        return Chunk(kept, found.offset, found.damaged)

    def step_blocks(self) -> Iterator[StepBlock]:
        """Yield the steps as columns."""
        records = [record for record in _chunk(all_lines(self._path)).records if isinstance(record, StepRecord)]
        if records:
            yield block_of(records)

    def step_tail(self, count: int) -> Iterator[StepBlock]:
        """Yield the steps as columns."""
        return self.step_blocks()

    def first_step_after(self, num_steps: int) -> StepRecord | None:
        """Return the first step stored after so many others, or None."""
        steps = [record for record in _chunk(all_lines(self._path)).records if isinstance(record, StepRecord)]
        return next(iter(steps[num_steps:]), None)

    def last_step(self) -> StepRecord | None:
        """Return the last step, or None."""
        steps = [record for record in _chunk(all_lines(self._path)).records if isinstance(record, StepRecord)]
        return steps[-1] if steps else None

    def damaged_steps(self) -> int:
        """Return 0: damaged lines are counted with the others."""
        return 0

    def rewinds(self) -> list[int]:
        """Return nothing: runs of format 1 knew no rewind."""
        return []


class _Merge:
    """Collects steps up to given sequence numbers, not many more bytes than a limit."""

    def __init__(self, steps: StepFiles, seq: int, limit_bytes: int) -> None:
        self._steps, self._seq, self._left = steps, seq, limit_bytes
        self.records: list[Record] = []
        self._damaged = 0

    def steps_before(self, seq: int) -> bool:
        """Collect the steps before ``seq``; returns False where the limit came first."""
        while self._seq < seq and self._left > 0:
            block = next(self._steps.blocks(self._seq, seq), None)
            if block is None:
                self._seq = seq
                break
            most = max(1, self._left // block.layout.row_bytes)
            taken = block.select(slice(0, most))
            self.records += taken.records()
            self._left -= len(taken.rows) * block.layout.row_bytes
            if len(taken.rows) < len(block.rows):
                self._seq = int(taken.seqs[-1]) + 1
                return False
            self._seq = int(block.seqs[-1]) + 1
            self._damaged += block.damaged
        return self._seq >= seq

    def chunk(self, start: int, damaged: int) -> Chunk:
        return Chunk(tuple(self.records), (start << _STEP_BITS) | self._seq, self._damaged + damaged)


def _chunk(lines: Lines) -> Chunk:
    return Chunk(tuple(line.record for line in lines.lines), lines.stop, lines.damaged)


def _only(block: StepBlock | None) -> StepRecord | None:
    return block.records()[0] if block is not None and len(block.rows) else None


def attempt_dir(run_dir: Path, attempt: int) -> Path:
    """Return the directory of an attempt; attempts count from 1."""
    return run_dir / RECORD_DIR / f"a{attempt:04d}"


def attempts(run_dir: Path) -> list[int]:
    """Return the numbers of the recorded attempts, oldest first."""
    names = (path.name for path in (run_dir / RECORD_DIR).glob("a[0-9]*") if path.is_dir())
    return sorted(int(name[1:]) for name in names if name[1:].isdigit())


def status_path(directory: Path, rank: int = 0) -> Path:
    """Return the status page of a rank of the attempt in ``directory``."""
    return directory / f"rank{rank:04d}.status"


def slots_path(directory: Path, rank: int = 0) -> Path:
    """Return the slots of the reading threads of a rank of the attempt in ``directory``."""
    return directory / f"rank{rank:04d}.workers"


def open_sink(directory: Path, limits: Limits | None = None, rank: int = 0) -> RecordSink:
    """Return the sink of a rank for a new attempt in ``directory``; the first rank looks after earlier attempts too.

    Raises:
        OSError: The disk refuses.
    """
    root, number = directory.parent.parent, int(directory.name[1:])
    earlier = tuple(attempt_dir(root, attempt) for attempt in attempts(root) if attempt < number and not rank)
    return AttemptSink(directory, limits or Limits(), earlier, rank)


def open_source(directory: Path) -> RecordSource:
    """Return the source that reads the attempt in ``directory``."""
    old = directory / OLD_FILE
    return OldSource(old) if old.exists() else AttemptSource(directory)

"""The reading side of the flight recorder: live, whole, cut-short and resumed runs alike."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from xectool.errors import UsageError
from xectool.runlog.json_lines import all_lines
from xectool.runlog.layout import StepBlock
from xectool.runlog.process import boot_id
from xectool.runlog.records import FORMAT, AttemptRecord, EpochRecord, EventRecord, Record, StepRecord
from xectool.runlog.run_dirs import original_of, require_record
from xectool.runlog.run_status import REFUSED_END, SILENT_END, RunStatus, Tally
from xectool.runlog.status_page import PageView, read_page
from xectool.runlog.step_log import StepFiles
from xectool.runlog.storage import LINES_FILE, RecordSource, attempt_dir, attempts, open_source
from xectool.runlog.worker_slots import SlotView, read_slots

__all__ = ["Position", "RunReader", "RunStatus"]

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Position:
    """A place in the record of a run; pass it back to `RunReader.follow`, and store it as two integers."""

    attempt: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Lineage:
    """Which part of each attempt a run stands on; what a later attempt took again was given up.

    Attributes:
        limits: Last step that counts, by attempt: infinite for the last one, 0 where nothing of it counts.
    """

    limits: Mapping[int, float]

    def counts(self, attempt: int, step: int) -> bool:
        """Return whether what an attempt recorded at a step counts; what names no known attempt does."""
        limit = self.limits.get(attempt, math.inf)
        return 0 < limit >= step


class RunReader:
    """Reads the record of a run; a second call sees what was written since, and reads no event a second time.

    When an attempt resumes after step ``s``, what earlier attempts recorded beyond ``s`` no longer counts: steps and
    epochs come out once each and in order.

    Raises:
        UsageError: The directory holds no run record, one of a newer format, or one that only another user may read.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        self._sources: dict[int, RecordSource] = {}
        require_record(self.run_dir)

    def steps(self) -> Iterator[StepRecord]:
        """Yield the steps that count, in order."""
        for attempt, limit in self._limits(attempts(self.run_dir)).items():
            stands = _Standing(self._source(attempt), limit)
            records = (record for record in self._records(attempt) if stands.counts(record))
            yield from (record for record in records if isinstance(record, StepRecord))

    def epochs(self) -> list[EpochRecord]:
        """Return the epochs that count, one each, in order."""
        # A checkpoint may lie between the last step of an epoch and its validation, which then runs twice.
        found: dict[int, EpochRecord] = {}
        for attempt, limit in self._limits(attempts(self.run_dir)).items():
            source = self._source(attempt)
            stands, others = _Standing(source, limit), source.others()
            _require_known_format(others.records, self.run_dir)
            counting = (record for record in others.records if stands.counts(record))
            found |= {record.epoch: record for record in counting if isinstance(record, EpochRecord)}
        return [found[epoch] for epoch in sorted(found)]

    def events(self) -> list[EventRecord]:
        """Return all events of all attempts in the order they happened."""
        return [event for _, event in self.tagged_events()]

    def tagged_events(self) -> list[tuple[int, EventRecord]]:
        """Return all events in the order they happened, each with its attempt."""
        return [(attempt, event) for attempt in attempts(self.run_dir) for event in self._events(attempt)]

    def lineage(self) -> Lineage:
        """Return which part of each attempt counts."""
        return Lineage(self._limits(attempts(self.run_dir)))

    def last_events(self) -> list[EventRecord]:
        """Return the events of the last attempt."""
        return self._events(attempts(self.run_dir)[-1])

    def follow(self, position: Position | None = None) -> tuple[list[Record], Position]:
        """Return about a megabyte of records from ``position`` on that count as of now, and the position after them.

        An empty list with an unchanged position means that nothing has been written since.
        """
        known = attempts(self.run_dir)
        position = position or Position(known[0], 0)
        known = [number for number in known if number >= position.attempt]
        limits = self._limits(known)
        for attempt in known:
            offset = position.offset if attempt == position.attempt else 0
            chunk = open_source(attempt_dir(self.run_dir, attempt)).read(offset, _BLOCK_BYTES)
            if chunk.offset > offset:
                _require_known_format(chunk.records, self.run_dir)
                kept = [record for record in chunk.records if _counts(record, limits[attempt])]
                return kept, Position(attempt, chunk.offset)
            position = Position(attempt, offset)
        return [], position

    def status(self) -> RunStatus:
        """Return the state of the run as the record and the process table show it; the steps are not gone through."""
        tally = Tally()
        limits = self._limits(attempts(self.run_dir))
        for attempt, limit in limits.items():
            source = self._source(attempt)
            others, last = source.others(), source.last_step()
            _require_known_format(others.records, self.run_dir)
            tally.damaged += others.damaged + source.damaged_steps()
            for record in others.records:
                tally.add(record, limit)
            if last is not None:
                tally.add(last, limit)
        status = tally.status(len(limits))
        ended = next((page for page in self.live() if page.rank == 0 and page.phase == "done"), None)
        if status.state == "killed" and status.pid and ended is not None:
            state, message = ("failed", REFUSED_END) if ended.dropped else ("ended", SILENT_END)
            return replace(status, state=state, message=message, unwritten=True)
        original = original_of(self.run_dir, status.pid) if status.state == "running" else None
        return replace(status, state="unknown", original=str(original)) if original is not None else status

    def live(self) -> list[PageView]:
        """Return the status pages of the last attempt, one a rank; empty for runs of format 1."""
        boot = boot_id()
        pages = [read_page(path, boot) for path in sorted(self._last_dir().glob("rank*.status"))]
        return [page for page in pages if page is not None]

    def of_other_ranks(self) -> list[EventRecord]:
        """Return what happened on the other ranks of the last attempt, rank by rank."""
        files = sorted(self._last_dir().glob(f"rank*.{LINES_FILE}"))
        return [line.record for file in files for line in all_lines(file).lines if isinstance(line.record, EventRecord)]

    def last_blocks_by_rank(self, count: int) -> dict[int, list[StepBlock]]:
        """Return at least the last ``count`` steps of each rank of the last attempt, as columns, in order."""
        found: dict[int, list[StepBlock]] = {}
        for page in self.live():
            kept = found.setdefault(page.rank, [])
            for block in StepFiles(self._last_dir(), page.rank).tail(count):
                kept.insert(0, block)
                if sum(len(item.rows) for item in kept) >= count:
                    break
        return found

    def workers(self) -> list[SlotView]:
        """Return what the reading threads of the last attempt do or last did."""
        return [slot for path in sorted(self._last_dir().glob("rank*.workers")) for slot in read_slots(path)]

    def step_blocks(self) -> Iterator[tuple[int, StepBlock]]:
        """Yield attempt and steps as columns, those that count."""
        for attempt, limit in self._limits(attempts(self.run_dir)).items():
            source = self._source(attempt)
            stands = _Standing(source, limit)
            for block in source.step_blocks():
                kept = block.select(stands.mask(block))
                if len(kept.rows):
                    yield attempt, kept

    def rank_blocks(self) -> Iterator[tuple[int, StepBlock]]:
        """Yield attempt and steps as columns, those of every rank that later attempts left standing."""
        for attempt, limit in self._limits(attempts(self.run_dir)).items():
            directory = attempt_dir(self.run_dir, attempt)
            ranks = sorted({int(path.name[4:8]) for path in directory.glob("rank[0-9][0-9][0-9][0-9].steps-*")})
            blocks = (block for rank in ranks for block in StepFiles(directory, rank).blocks())
            kept = (block.select(block.column("step") <= limit) for block in blocks)
            yield from ((attempt, block) for block in kept if len(block.rows))

    def last_blocks(self, count: int) -> list[StepBlock]:
        """Return at least the last ``count`` steps that count, as columns, in order; older ones are hardly touched."""
        kept: list[StepBlock] = []
        for attempt, limit in reversed(self._limits(attempts(self.run_dir)).items()):
            source = self._source(attempt)
            stands = _Standing(source, limit)
            # What was taken back lies before older steps of the same file, which then is read as a whole.
            most = count if stands.is_whole else sys.maxsize
            for block in source.step_tail(most):
                kept.insert(0, block.select(stands.mask(block)))
                if sum(len(block.rows) for block in kept) >= count:
                    return kept
        return kept

    def _events(self, attempt: int) -> list[EventRecord]:
        return [record for record in self._source(attempt).others().records if isinstance(record, EventRecord)]

    def _last_dir(self) -> Path:
        return attempt_dir(self.run_dir, attempts(self.run_dir)[-1])

    def _source(self, attempt: int) -> RecordSource:
        if attempt not in self._sources:
            self._sources[attempt] = open_source(attempt_dir(self.run_dir, attempt))
        return self._sources[attempt]

    def _records(self, attempt: int) -> Iterator[Record]:
        source, offset = self._source(attempt), 0
        while True:
            chunk = source.read(offset, _BLOCK_BYTES)
            if chunk.offset == offset:
                return
            _require_known_format(chunk.records, self.run_dir)
            offset = chunk.offset
            yield from chunk.records

    def _limits(self, known: list[int]) -> dict[int, float]:
        """Return for each attempt the last step of it that later attempts left standing."""
        limits = dict.fromkeys(known, math.inf)
        for earlier, later in reversed(list(pairwise(known))):
            limits[earlier] = min(limits[later], self._first_step(later) - 1)
        return limits

    def _first_step(self, attempt: int) -> float:
        source = self._source(attempt)
        first = source.first_step_after(0)
        resumed = next((r for r in source.others().records if isinstance(r, EventRecord) and r.kind == "resume"), None)
        if resumed is not None:
            return resumed.step + 1
        return math.inf if first is None else first.step


class _Standing:
    """Says which records of an attempt count: those not taken back by a later attempt or a later rewind.

    Args:
        source: Records of the attempt.
        limit: Last step that later attempts left standing.
    """

    def __init__(self, source: RecordSource, limit: float) -> None:
        # A rewind takes back what was stored before it from the first step on that was stored after it.
        self._rewinds: list[tuple[int, float]] = []
        for after in source.rewinds():
            first = source.first_step_after(after)
            self._rewinds.append((after, math.inf if first is None else first.step - 1))
        self._limit = limit
        self._passed = 0

    @property
    def is_whole(self) -> bool:
        """Whether all steps of the attempt count."""
        return not self._rewinds and self._limit == math.inf

    def counts(self, record: Record) -> bool:
        """Say whether the next record of the attempt counts; to be asked for all of them in their order."""
        if isinstance(record, EventRecord) and record.kind == "rewind":
            self._passed += 1
        if not isinstance(record, StepRecord | EpochRecord):
            return True
        return record.step <= min([self._limit, *(limit for _, limit in self._rewinds[self._passed :])])

    def mask(self, block: StepBlock) -> Any:
        """Return which rows of a block count, shape (n,)."""
        steps = block.column("step")
        kept = steps <= self._limit
        for after, limit in self._rewinds:
            kept &= (block.seqs >= after) | (steps <= limit)
        return kept


def _counts(record: Record, limit: float) -> bool:
    return not isinstance(record, StepRecord | EpochRecord) or record.step <= limit


def _require_known_format(records: Iterable[Record], run_dir: Path) -> None:
    for record in records:
        if isinstance(record, AttemptRecord) and record.format > FORMAT:
            raise UsageError(
                f"the run record has format {record.format}; this xectool reads up to {FORMAT}",
                where=str(run_dir),
                fix="pip install --upgrade xectool",
            )

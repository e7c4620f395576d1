"""The reading side of the flight recorder: live, whole, cut-short and resumed runs alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from xectool.errors import UsageError
from xectool.runlog.process import ProcessIdentity, is_alive
from xectool.runlog.records import END_KINDS, FORMAT, AttemptRecord, EpochRecord, EventRecord, Record, StepRecord
from xectool.runlog.storage import attempt_dir, attempts, open_source

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 1 << 13


@dataclass(frozen=True)
class Position:
    """A place in the record of a run; pass it back to `RunReader.follow`, and store it as two integers."""

    attempt: int = 0
    offset: int = 0


@dataclass(frozen=True)
class RunStatus:
    """State of a run: ``running``, ``finished``, ``failed``, ``interrupted``, ``killed`` (ended without a word) or
    ``unknown`` (written on another host, which cannot be asked).

    ``damaged`` counts lines that cannot be read, ``lost`` records that the disk refused; both are 0 on a healthy run.
    """

    state: str
    attempts: int
    epoch: int
    step: int
    started: float
    updated: float
    pid: int
    host: str
    message: str
    damaged: int
    lost: int

    @property
    def seconds(self) -> float:
        """Return the wall time from the first to the last record."""
        return max(0.0, self.updated - self.started)


class RunReader:
    """Reads the record of a run; nothing is cached, so a second call sees what was written since.

    When an attempt resumes after step ``s``, what earlier attempts recorded beyond ``s`` no longer counts: steps and
    epochs come out once each and in order.

    Raises:
        UsageError: The directory holds no run record, or one of a newer format.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        if not attempts(self.run_dir):
            raise UsageError(
                "this directory holds no run record",
                where=str(self.run_dir),
                fix="name the directory of a run; `xectool runs` lists them",
            )

    def steps(self) -> Iterator[StepRecord]:
        """Yield the steps that count, in order."""
        yield from (record for record in self._effective() if isinstance(record, StepRecord))

    def epochs(self) -> list[EpochRecord]:
        """Return the epochs that count, one each, in order."""
        # A checkpoint may lie between the last step of an epoch and its validation, which then runs twice.
        found = {record.epoch: record for record in self._effective() if isinstance(record, EpochRecord)}
        return [found[epoch] for epoch in sorted(found)]

    def events(self) -> list[EventRecord]:
        """Return all events of all attempts in the order they happened."""
        return [record for _, record in self._all() if isinstance(record, EventRecord)]

    def follow(self, position: Position | None = None) -> tuple[list[Record], Position]:
        """Return about a megabyte of records from ``position`` on that count as of now, and the position after them.

        An empty list with an unchanged position means that nothing has been written since.
        """
        known = attempts(self.run_dir)
        position = position or Position(known[0], 0)
        limits = self._limits(known)
        for attempt in (number for number in known if number >= position.attempt):
            offset = position.offset if attempt == position.attempt else 0
            chunk = open_source(attempt_dir(self.run_dir, attempt)).read(offset, _BLOCK_BYTES)
            if chunk.offset > offset:
                _require_known_format(chunk.records, self.run_dir)
                kept = [record for record in chunk.records if _counts(record, limits[attempt])]
                return kept, Position(attempt, chunk.offset)
            position = Position(attempt, offset)
        return [], position

    def status(self) -> RunStatus:
        """Return the state of the run as the record and the process table show it."""
        last = _Tally()
        known = attempts(self.run_dir)
        limits = self._limits(known)
        for attempt in known:
            for chunk_damage, record in self._records(attempt):
                last.damaged += chunk_damage
                if record is not None:
                    last.add(record, _counts(record, limits[attempt]))
        return last.status(len(known))

    def _effective(self) -> Iterator[Record]:
        known = attempts(self.run_dir)
        limits = self._limits(known)
        return (record for attempt, record in self._all() if _counts(record, limits.get(attempt, math.inf)))

    def _all(self) -> Iterator[tuple[int, Record]]:
        for attempt in attempts(self.run_dir):
            yield from ((attempt, record) for _, record in self._records(attempt) if record is not None)

    def _records(self, attempt: int, block_bytes: int = _BLOCK_BYTES) -> Iterator[tuple[int, Record | None]]:
        source = open_source(attempt_dir(self.run_dir, attempt))
        offset = 0
        while True:
            chunk = source.read(offset, block_bytes)
            if chunk.offset == offset:
                return
            _require_known_format(chunk.records, self.run_dir)
            offset = chunk.offset
            yield chunk.damaged, None
            yield from ((0, record) for record in chunk.records)

    def _limits(self, known: list[int]) -> dict[int, float]:
        """Return for each attempt the last step of it that later attempts left standing."""
        limits: dict[int, float] = {}
        limit = math.inf
        for attempt in reversed(known):
            limits[attempt] = limit
            limit = min(limit, self._first_step(attempt) - 1)
        return limits

    def _first_step(self, attempt: int) -> float:
        for _, record in self._records(attempt, _HEAD_BYTES):
            if isinstance(record, EventRecord) and record.kind == "resume":
                return record.step + 1
            if isinstance(record, StepRecord):
                return record.step
        return math.inf


class _Tally:
    """Collects what `RunStatus` shows from the records of a run in order."""

    def __init__(self) -> None:
        self.writer: AttemptRecord | None = None
        self.end: EventRecord | None = None
        self.epoch = self.step = self.damaged = self.lost = 0
        self.started = self.updated = 0.0

    def add(self, record: Record, counts: bool) -> None:
        self.started = self.started or record.time
        self.updated = max(self.updated, record.time)
        if isinstance(record, AttemptRecord):
            self.writer, self.end = record, None
        elif isinstance(record, EventRecord):
            self._add_event(record)
        elif counts:
            self.epoch = max(self.epoch, record.epoch)
            self.step = max(self.step, record.step)

    def _add_event(self, event: EventRecord) -> None:
        if event.kind in END_KINDS:
            self.end = event
        elif event.kind == "recorder_gap":
            self.lost += int(event.data.get("lost", 0))

    def status(self, num_attempts: int) -> RunStatus:
        return RunStatus(
            state=self._state(),
            attempts=num_attempts,
            epoch=self.epoch,
            step=self.step,
            started=self.started,
            updated=self.updated,
            pid=self.writer.pid if self.writer else 0,
            host=self.writer.host if self.writer else "",
            message=self.end.message if self.end else "",
            damaged=self.damaged,
            lost=self.lost,
        )

    def _state(self) -> str:
        if self.end is not None:
            return self.end.kind
        if self.writer is None:
            return "killed"
        writer = self.writer
        alive = is_alive(ProcessIdentity(writer.pid, writer.pid_start, writer.boot_id, writer.host))
        return {True: "running", False: "killed", None: "unknown"}[alive]


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

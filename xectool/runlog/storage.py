"""Where records lie: one directory an attempt, behind two small protocols.

The writer knows only `RecordSink`, the reader only `RecordSource`; another format is another pair, chosen in
`open_sink` and `open_source`, and neither the training loop nor the mirrors notice.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from xectool.runlog.records import EventRecord, Record, decode, encode

_LOG = logging.getLogger(__name__)
RECORD_DIR: Final = "rec"
RECORD_FILE: Final = "record.jsonl"


class RecordSink(Protocol):
    """Takes the records of one attempt; never raises for a failing disk."""

    @property
    def dropped(self) -> int:
        """Number of records the disk refused."""

    def append(self, record: Record) -> None:
        """Store one record so that a killed process does not lose it."""

    def close(self) -> None:
        """Release the file; later records are refused."""


@dataclass(frozen=True)
class Chunk:
    """Whole records from ``offset`` on, the offset after them, and the number of lines that could not be read."""

    records: tuple[Record, ...]
    offset: int
    damaged: int


class RecordSource(Protocol):
    """Reads the records of one attempt, also while they are written."""

    def read(self, offset: int, limit_bytes: int) -> Chunk:
        """Return the whole records in about ``limit_bytes`` from ``offset``; an unfinished tail is left for later."""


class JsonLinesSink:
    """Appends one line a record with a single ``os.write``, so the kernel holds it when the process dies.

    A write the disk refuses is undone, counted and reported once; the first write that succeeds again is preceded by
    a ``recorder_gap`` event with the number of lost records. Training is never stopped from here: a checkpoint that
    does not fit on the disk does that, with a message.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._size = 0
        self._gap = 0
        self._lock = threading.Lock()
        self.dropped = 0

    def append(self, record: Record) -> None:
        """Store one record."""
        line = encode(record)
        with self._lock:
            if self._gap:
                line = encode(self._gap_event(record)) + line
            if self._write(line):
                self._gap = 0
            else:
                self._gap += 1
                self.dropped += 1

    def _write(self, line: bytes) -> bool:
        try:
            written = os.write(self._fd, line)
            if written == len(line):
                self._size += written
                return True
            # A short write is how a nearly full disk answers; half a line must not stay before the next one.
            os.ftruncate(self._fd, self._size)
            reason = "the disk is full or over quota"
        except OSError as error:
            reason = os.strerror(error.errno or 0)
        if not self.dropped:
            _LOG.warning("the run record %s cannot grow: %s; training continues without it", self._path, reason)
        return False

    def _gap_event(self, record: Record) -> EventRecord:
        step = getattr(record, "step", 0)
        text = f"{self._gap} records were lost: the disk refused them"
        return EventRecord("recorder_gap", record.time, record.mono, step, message=text, data={"lost": self._gap})

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class JsonLinesSource:
    """Reads what a `JsonLinesSink` wrote; a line without its newline is still being written, or torn by a kill."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, offset: int, limit_bytes: int) -> Chunk:
        """Return the whole records in about ``limit_bytes`` from ``offset``."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(offset)
                block = stream.read(limit_bytes)
                if block and not block.endswith(b"\n"):
                    block += stream.readline()
        except FileNotFoundError:
            return Chunk((), offset, 0)
        end = block.rfind(b"\n") + 1
        records: list[Record] = []
        damaged = 0
        for line in block[:end].splitlines():
            try:
                record = decode(line)
            except ValueError:
                damaged += 1
                continue
            if record is not None:
                records.append(record)
        return Chunk(tuple(records), offset + end, damaged)


def attempt_dir(run_dir: Path, attempt: int) -> Path:
    """Return the directory of an attempt; attempts count from 1."""
    return run_dir / RECORD_DIR / f"a{attempt:04d}"


def attempts(run_dir: Path) -> list[int]:
    """Return the numbers of the recorded attempts, oldest first."""
    names = (path.name for path in (run_dir / RECORD_DIR).glob("a[0-9]*") if path.is_dir())
    return sorted(int(name[1:]) for name in names if name[1:].isdigit())


def open_sink(directory: Path) -> RecordSink:
    """Return the sink for a new attempt in ``directory``."""
    return JsonLinesSink(directory / RECORD_FILE)


def open_source(directory: Path) -> RecordSource:
    """Return the source that reads the attempt in ``directory``."""
    return JsonLinesSource(directory / RECORD_FILE)

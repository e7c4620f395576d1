"""Records as lines of JSON: epochs and events of every run, and the steps of runs of format 1."""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from xectool.errors import counted
from xectool.runlog.records import END_KINDS, EventRecord, Record, decode_content, encode

_LOG = logging.getLogger(__name__)
LIMIT_BYTES: Final = 64 << 20
"""Size from which on events are no longer taken; attempts, epochs and the last word always are."""
DISK, LIMIT = "disk", "limit"
"""Why records were lost: the ``reason`` of a ``recorder_gap``."""
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Line:
    """A record and what its line says besides.

    Attributes:
        record: The record.
        after: Number of step records stored before it.
        stop: Byte after the line.
    """

    record: Record
    after: int
    stop: int


@dataclass(frozen=True)
class Lines:
    """Whole lines from a place in a file on.

    Attributes:
        lines: Those that could be read.
        stop: Byte after the last whole line.
        damaged: Lines that could not be read.
        complete: Whether they reach to the end of what is written.
    """

    lines: tuple[Line, ...]
    stop: int
    damaged: int
    complete: bool


NO_LINES: Final = Lines((), 0, 0, True)


class LineWriter:
    """Appends one line a record with a single ``os.write``, so the kernel holds it when the process dies.

    A write the disk refuses is undone, counted and reported once; the first write that succeeds again is preceded by
    a ``recorder_gap`` event with the number of lost records.

    Args:
        path: File to create.
        limit_bytes: Size from which on events are refused.

    Raises:
        OSError: The file exists, or the disk refuses.
    """

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit = limit_bytes
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._gap = 0
        self._reason = DISK
        self._lock = threading.Lock()
        self.dropped = 0

    def append(self, record: Record, after: int) -> None:
        """Store a record that comes after so many steps."""
        with self._lock:
            line = encode(record, after)
            if self._gap:
                line = encode(self._gap_event(record), after) + line
            has_room = self._has_room(record)
            if has_room and self._write(line):
                self._gap, self._reason = 0, DISK
                return
            self._reason = DISK if has_room else LIMIT
            self._gap += 1
            self.dropped += 1

    def lost(self, count: int) -> None:
        """Take note of records that another file could not take; the next line says so."""
        with self._lock:
            self._gap += count

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _has_room(self, record: Record) -> bool:
        optional = isinstance(record, EventRecord) and record.kind not in (*END_KINDS, "resume", "rewind")
        return self._size < self._limit or not optional

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
        limit = f"the events of an attempt have taken their {self._limit >> 20} MiB"
        text = f"{counted(self._gap, 'record')} lost: {limit if self._reason == LIMIT else 'refused by the disk'}"
        data = {"lost": self._gap, "reason": self._reason}
        return EventRecord("recorder_gap", record.time, record.mono, step, message=text, data=data)


def read_lines(path: Path, start: int, limit_bytes: int) -> Lines:
    """Return the whole lines in about ``limit_bytes`` from ``start`` on.

    A line without its newline is still being written, or was torn by a kill; it is left for later.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            block = stream.read(limit_bytes)
            if block and not block.endswith(b"\n"):
                block += stream.readline()
            complete = not stream.read(1)
    except FileNotFoundError:
        return Lines((), start, 0, True)
    found: list[Line] = []
    stop, damaged = start, 0
    for text in block[: block.rfind(b"\n") + 1].splitlines(keepends=True):
        stop += len(text)
        try:
            content = json.loads(text)
            after = int(content.get("n", 0)) if isinstance(content, dict) else 0
            record = decode_content(content)
        except (ValueError, TypeError, OverflowError, RecursionError):
            damaged += 1
            continue
        if record is not None:
            found.append(Line(record, after, stop))
    return Lines(tuple(found), stop, damaged, complete)


def all_lines(path: Path, known: Lines = NO_LINES) -> Lines:
    """Return all whole lines of a file; those that are known from an earlier call are not read again."""
    lines: list[Line] = []
    stop, damaged = known.stop, known.damaged
    while True:
        found = read_lines(path, stop, _BLOCK_BYTES)
        lines += found.lines
        stop, damaged = found.stop, damaged + found.damaged
        if found.complete:
            return (
                Lines((*known.lines, *lines), stop, damaged, True)
                if lines
                else replace(known, stop=stop, damaged=damaged)
            )

"""What each reading thread of the data loaders is doing: one 256-byte slot a thread, written by the thread itself.

A reader that hangs on a file cannot say so any more; its slot still names the file, the entries and since when.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from xectool.runlog.preallocate import create_preallocated
from xectool.runlog.process import start_ticks

SLOT_BYTES: Final = 256
_WORDS: Final = SLOT_BYTES // 8
STATES: Final = ("unused", "idle", "read", "exit")
"""``read`` is opening, reading and decompressing one run of entries; only ever added to, at the end."""


class SlotWord(IntEnum):
    """Places in a slot; only ever added to, at the end. ``SINCE_NS`` is of the monotonic clock."""

    STATE = 0
    SINCE_NS = 1
    PID = 2
    PID_START = 3
    LOADER = 4
    FILE_INDEX = 5
    ENTRY_START = 6
    ENTRY_STOP = 7
    READS = 8
    RSS_BYTES = 9
    TID = 10


@dataclass(frozen=True)
class SlotRange:
    """Slots of one loader in a file.

    Attributes:
        path: File of the slots.
        first: Number of the loader's first slot.
        count: Slots of the loader.
        loader: 0 for training events, 1 for validation events.
    """

    path: Path
    first: int
    count: int
    loader: int

    def part(self, index: int, count: int) -> SlotRange:
        """Return the slots of worker ``index`` where each has ``count``."""
        return SlotRange(self.path, self.first + index * count, count, self.loader)


@dataclass(frozen=True)
class SlotView:
    """One slot as it was read; ``age_s`` is how long the state has lasted, ``tid`` the thread's number or 0."""

    loader: str
    state: str
    age_s: float
    pid: int
    pid_start: int
    file_index: int
    entry_start: int
    entry_stop: int
    reads: int
    rss_bytes: int
    tid: int = 0


class WorkerSlots:
    """The slots of the threads of one process.

    Args:
        slots: Which slots; their file exists.

    Raises:
        OSError: The file is gone.
    """

    def __init__(self, slots: SlotRange) -> None:
        fd = os.open(slots.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._words = memoryview(mmap.mmap(fd, 0)).cast("q")
        finally:
            os.close(fd)
        self._first, self.count, self._page_bytes = slots.first, slots.count, os.sysconf("SC_PAGE_SIZE")
        pid = os.getpid()
        start = start_ticks(pid)
        for thread in range(slots.count):
            base = self._base(thread)
            self._words[base + SlotWord.PID] = pid
            self._words[base + SlotWord.PID_START] = start
            self._words[base + SlotWord.LOADER] = slots.loader
            self._words[base + SlotWord.READS] = 0
            self.idle(thread)

    def read(self, thread: int, file_index: int, entry_start: int, entry_stop: int) -> None:
        """Say that a thread begins to read entries of a file."""
        words, base = self._words, self._base(thread)
        words[base + SlotWord.FILE_INDEX] = file_index
        words[base + SlotWord.ENTRY_START] = entry_start
        words[base + SlotWord.ENTRY_STOP] = entry_stop
        words[base + SlotWord.TID] = threading.get_native_id()
        words[base + SlotWord.SINCE_NS] = time.monotonic_ns()
        words[base + SlotWord.STATE] = STATES.index("read")

    def idle(self, thread: int) -> None:
        """Say that a thread waits for work."""
        words, base = self._words, self._base(thread)
        words[base + SlotWord.STATE] = STATES.index("idle")
        words[base + SlotWord.SINCE_NS] = time.monotonic_ns()
        words[base + SlotWord.READS] += 1
        words[base + SlotWord.RSS_BYTES] = self._resident_bytes()

    def exit(self) -> None:
        """Say that the process ends as it should."""
        for thread in range(self.count):
            base = self._base(thread)
            self._words[base + SlotWord.STATE] = STATES.index("exit")
            self._words[base + SlotWord.SINCE_NS] = time.monotonic_ns()

    def _base(self, thread: int) -> int:
        return (self._first + thread) * _WORDS

    def _resident_bytes(self) -> int:
        with open("/proc/self/statm", "rb", buffering=0) as stream:
            return int(stream.read(128).split()[1]) * self._page_bytes


def stacks_path(slots: Path) -> Path:
    """Return the file beside the slots of a rank that its process and its loader processes dump their stacks into."""
    return slots.with_suffix(".stacks")


def create_slots(path: Path, count: int) -> None:
    """Create the file of ``count`` unused slots.

    Raises:
        OSError: The disk refuses; nothing is left behind.
    """
    os.close(create_preallocated(path, max(1, count) * SLOT_BYTES))


def read_slots(path: Path) -> list[SlotView]:
    """Return the slots that are or were in use; empty where the file is absent."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    now_ns = time.monotonic_ns()
    whole = content[: len(content) // SLOT_BYTES * SLOT_BYTES]
    return [_view(words, now_ns) for words in struct.iter_unpack(f"={_WORDS}q", whole) if words[SlotWord.STATE]]


def _view(words: tuple[int, ...], now_ns: int) -> SlotView:
    state = words[SlotWord.STATE]
    return SlotView(
        loader="validation" if words[SlotWord.LOADER] else "training",
        state=STATES[state] if 0 <= state < len(STATES) else f"state {state}",
        age_s=(now_ns - words[SlotWord.SINCE_NS]) / 1e9,
        pid=words[SlotWord.PID],
        pid_start=words[SlotWord.PID_START],
        file_index=words[SlotWord.FILE_INDEX],
        entry_start=words[SlotWord.ENTRY_START],
        entry_stop=words[SlotWord.ENTRY_STOP],
        reads=words[SlotWord.READS],
        rss_bytes=words[SlotWord.RSS_BYTES],
        tid=words[SlotWord.TID],
    )

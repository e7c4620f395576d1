"""What a training process is doing right now: one page of 64-bit words that any process can read at any moment.

Each word is one aligned 8-byte store, so no reader sees half of it and a killed writer leaves the last values. Words of
one batch may be from two neighbouring moments; each by itself is right.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from xectool.runlog.preallocate import create_preallocated
from xectool.runlog.process import current_process, oom_kills

PAGE_BYTES: Final = 4096
PAGE_VERSION: Final = 1
_MAGIC: Final = int.from_bytes(b"XECSTAT\0", "little")
_MOST: Final = 1 << 48  # of what is counted one by one

PHASES: Final = (
    "start",
    "data_open",
    "build",
    "data_wait",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "collective",
    "validation",
    "checkpoint",
    "log",
    "compile",
    "done",
    "outputs",
)
"""Words for what the training thread does; only ever added to, at the end."""
_CODES: Final = {name: code for code, name in enumerate(PHASES)}

COLLECTIVES: Final = ("", "all_reduce", "all_gather", "broadcast", "gradients", "wait_rank0")
"""Words for the collective a rank is in, the first for none; only ever added to, at the end."""


class Word(IntEnum):
    """Places in the page; only ever added to, at the end. Times ending in ``_NS`` are of the monotonic clock."""

    MAGIC = 0
    VERSION = 1
    PID = 2
    PID_START = 3
    BOOT = 4
    RANK = 5
    STARTED_NS = 6
    PHASE = 7
    PHASE_SINCE_NS = 8
    STEP = 9
    EPOCH = 10
    BATCH_SEED = 11
    BATCH_EPOCH = 12
    BATCH_START = 13
    BATCH_STOP = 14
    FILE_INDEX = 15
    ENTRY_MIN = 16
    ENTRY_MAX = 17
    NUM_EVENTS = 18
    COLLECTIVE_SEQ = 19
    COLLECTIVE_OP = 20
    HEARTBEAT_NS = 21
    HEARTBEAT_TIME_NS = 22
    RSS_BYTES = 23
    DEVICE_BYTES = 24
    DEVICE_RESERVED_BYTES = 25
    CHILDREN = 26
    UNUSED_27 = 27
    DROPPED = 28
    OWN_NS = 29
    STEPS_NS = 30
    CONTROL_SEQ = 31
    CONTROL_STEP = 32
    OOM_KILLS = 33  # at the start, plus 1; 0 where it is not known
    OOM_KILLS_SEEN = 34  # at the last heartbeat, in the same way
    OWN_RSS_BYTES = 35


_UNKNOWN: Final = (
    Word.BATCH_START,
    Word.BATCH_STOP,
    Word.FILE_INDEX,
    Word.ENTRY_MIN,
    Word.ENTRY_MAX,
    Word.RSS_BYTES,
    Word.DEVICE_BYTES,
    Word.DEVICE_RESERVED_BYTES,
    Word.CHILDREN,
    Word.OWN_RSS_BYTES,
)


@dataclass(frozen=True)
class PageView:
    """A status page as it was read.

    Attributes:
        rank: Rank of the writer.
        pid: Its process.
        pid_start: Start of that process in clock ticks since boot.
        same_boot: Whether the page was written since this machine booted; ages mean nothing otherwise.
        phase: One of `PHASES`.
        phase_age_s: Seconds the phase has lasted.
        heartbeat_age_s: Seconds since the helper thread last wrote, 0 before the first time: it cannot be late yet.
        heartbeat_time: The same moment in seconds since 1970, 0 before the first time.
        step: Last finished optimizer step.
        epoch: Epoch in progress.
        batch: Seed, epoch, first and last plus one micro-batch being processed, -1 before the first.
        file_index: File of the first event of that batch.
        entries: Lowest and highest entry taken from that file.
        num_events: Events of the batch.
        collective_seq: Collectives entered.
        collective: One of `COLLECTIVES`: the one it is in.
        rss_bytes: Resident memory of the process and its children, -1 where unknown.
        device_bytes: Memory allocated on the accelerator, -1 where unknown.
        device_reserved_bytes: Memory the allocator holds there, -1 where unknown.
        children: Child processes, -1 where unknown.
        dropped: Records the disk refused.
        own_share: Part of the time of the steps that went into the record itself.
        oom_kills: Processes the kernel had killed for lack of memory when this one began, -1 where unknown.
        oom_kills_seen: The same at its last heartbeat.
    """

    rank: int
    pid: int
    pid_start: int
    same_boot: bool
    phase: str
    phase_age_s: float
    heartbeat_age_s: float
    heartbeat_time: float
    step: int
    epoch: int
    batch: tuple[int, int, int, int]
    file_index: int
    entries: tuple[int, int]
    num_events: int
    collective_seq: int
    collective: str
    rss_bytes: int
    device_bytes: int
    device_reserved_bytes: int
    children: int
    dropped: int
    own_share: float
    oom_kills: int = -1
    oom_kills_seen: int = -1


class StatusPage:
    """The writing side of the page of one rank.

    Args:
        path: File to create.
        rank: Rank of this process.

    Raises:
        OSError: The disk refuses; nothing is left behind.
    """

    def __init__(self, path: Path, rank: int = 0) -> None:
        fd = create_preallocated(path, PAGE_BYTES)
        try:
            self._words = memoryview(mmap.mmap(fd, PAGE_BYTES)).cast("q")
        finally:
            os.close(fd)
        me = current_process()
        for word in _UNKNOWN:
            self._words[word] = -1
        self._words[Word.VERSION] = PAGE_VERSION
        self._words[Word.PID] = me.pid
        self._words[Word.PID_START] = me.start
        self._words[Word.BOOT] = boot_word(me.boot_id)
        self._words[Word.RANK] = rank
        self._words[Word.OOM_KILLS] = self._words[Word.OOM_KILLS_SEEN] = oom_kills() + 1
        self._words[Word.STARTED_NS] = self._words[Word.PHASE_SINCE_NS] = time.monotonic_ns()
        self._words[Word.MAGIC] = _MAGIC  # last: a page without it is not read

    def __getitem__(self, word: Word) -> int:
        return self._words[word]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[word] = value

    def phase(self, name: str) -> None:
        """Say what the training thread does from now on; ``name`` is one of `PHASES`."""
        words = self._words
        words[Word.PHASE] = _CODES[name]
        words[Word.PHASE_SINCE_NS] = time.monotonic_ns()

    def close(self) -> None:
        """Leave the page as it is; words of a closed page go nowhere, also those another thread is just writing."""
        self._words = memoryview(bytearray(PAGE_BYTES)).cast("q")


def boot_word(boot_id: str) -> int:
    """Return the word that stands for a boot of a machine."""
    return int.from_bytes(hashlib.blake2b(boot_id.encode(), digest_size=7).digest(), "little")


def is_spoilt(path: Path) -> bool:
    """Return whether a file is a page no more: its beginning is another, or its words make no sense."""
    words = _words(path)
    if words is None or not words[Word.MAGIC]:  # absent, or not yet one
        return False
    return words[Word.MAGIC] != _MAGIC or (words[Word.VERSION] <= PAGE_VERSION and not _make_sense(words))


def _make_sense(words: tuple[int, ...]) -> bool:
    counts = (words[word] for word in (Word.STEP, Word.EPOCH, Word.PHASE, Word.DROPPED, Word.COLLECTIVE_SEQ))
    return words[Word.VERSION] >= 1 and all(0 <= count < _MOST for count in counts)


def _words(path: Path) -> tuple[int, ...] | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return struct.unpack(f"={PAGE_BYTES // 8}q", content[:PAGE_BYTES]) if len(content) >= PAGE_BYTES else None


def read_page(path: Path, boot_id: str) -> PageView | None:
    """Return the page in ``path``, or None where it is absent, not yet one, or spoilt.

    Args:
        path: File a `StatusPage` writes.
        boot_id: Identity of the running kernel, see `xectool.runlog.process.boot_id`.
    """
    words = _words(path)
    if words is None or words[Word.MAGIC] != _MAGIC or words[Word.VERSION] > PAGE_VERSION or not _make_sense(words):
        return None
    return _view(words, time.monotonic_ns(), words[Word.BOOT] == boot_word(boot_id))


def _view(words: tuple[int, ...], now_ns: int, same_boot: bool) -> PageView:
    heartbeat_ns, code, op = words[Word.HEARTBEAT_NS], words[Word.PHASE], words[Word.COLLECTIVE_OP]
    return PageView(
        rank=words[Word.RANK],
        pid=words[Word.PID],
        pid_start=words[Word.PID_START],
        same_boot=same_boot,
        phase=PHASES[code] if 0 <= code < len(PHASES) else f"phase {code}",
        phase_age_s=(now_ns - words[Word.PHASE_SINCE_NS]) / 1e9,
        heartbeat_age_s=(now_ns - heartbeat_ns) / 1e9 if heartbeat_ns else 0.0,
        heartbeat_time=words[Word.HEARTBEAT_TIME_NS] / 1e9,
        step=words[Word.STEP],
        epoch=words[Word.EPOCH],
        batch=(words[Word.BATCH_SEED], words[Word.BATCH_EPOCH], words[Word.BATCH_START], words[Word.BATCH_STOP]),
        file_index=words[Word.FILE_INDEX],
        entries=(words[Word.ENTRY_MIN], words[Word.ENTRY_MAX]),
        num_events=words[Word.NUM_EVENTS],
        collective_seq=words[Word.COLLECTIVE_SEQ],
        collective=COLLECTIVES[op] if 0 <= op < len(COLLECTIVES) else f"collective {op}",
        rss_bytes=words[Word.RSS_BYTES],
        device_bytes=words[Word.DEVICE_BYTES],
        device_reserved_bytes=words[Word.DEVICE_RESERVED_BYTES],
        children=words[Word.CHILDREN],
        dropped=words[Word.DROPPED],
        own_share=words[Word.OWN_NS] / words[Word.STEPS_NS] if words[Word.STEPS_NS] else 0.0,
        oom_kills=words[Word.OOM_KILLS] - 1,
        oom_kills_seen=words[Word.OOM_KILLS_SEEN] - 1,
    )

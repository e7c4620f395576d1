"""Clocks for the stages of reading: opening a file, getting its bytes, and decompressing them.

Without a clock in place a stage costs one comparison.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

OPEN, READ, DECOMPRESS = "open", "read", "decompress"
Result = TypeVar("Result")
Call = tuple[Callable[..., Any], tuple[Any, ...]]


class StageClock:
    """Seconds spent in each stage, over all threads.

    Args:
        keep: Whether the calls of the decompression are kept, with their compressed bytes, to run them again alone.

    Attributes:
        seconds: Stage to seconds.
        calls: Stage to number of calls.
        read_bytes: Bytes read.
        kept: Calls of the decompression.
        kept_bytes: Compressed bytes they hold.
    """

    def __init__(self, keep: bool = False) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.read_bytes = 0
        self.kept: list[Call] = []
        self.kept_bytes = 0
        self._keep = keep
        self._lock = threading.Lock()

    def run(
        self, stage: str, work: Callable[..., Result], arguments: tuple[Any, ...], place: Mapping[str, Any]
    ) -> Result:
        """Run ``work`` and count its time; ``place`` says where the result goes and is not kept."""
        began = time.perf_counter()
        result = work(*arguments, **place)
        spent = time.perf_counter() - began
        with self._lock:
            self.seconds[stage] += spent
            self.calls[stage] += 1
            self.read_bytes += _size(result) if stage == READ else 0
            if stage == DECOMPRESS and self._keep:
                self.kept.append((work, arguments))
                self.kept_bytes += sum(_size(argument) for argument in arguments)
        return result


_clock: StageClock | None = None


def timed(stage: str, work: Callable[..., Result], *arguments: Any, **place: Any) -> Result:
    """Run ``work``; its time counts for ``stage`` while a clock is in place."""
    clock = _clock
    return work(*arguments, **place) if clock is None else clock.run(stage, work, arguments, place)


@contextmanager
def clocked(clock: StageClock) -> Iterator[StageClock]:
    """Put a clock in place for all reading of this process."""
    global _clock  # noqa: PLW0603 - one reader process has one clock; passing it through every column would cost more
    previous, _clock = _clock, clock
    try:
        yield clock
    finally:
        _clock = previous


def _size(value: Any) -> int:
    return (
        memoryview(value).nbytes
        if isinstance(value, bytes | bytearray | memoryview)
        else int(getattr(value, "nbytes", 0))
    )

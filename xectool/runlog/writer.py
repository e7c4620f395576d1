"""The training side of the flight recorder."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xectool
from xectool.config.save_places import other_save_dir
from xectool.errors import DiskError, UsageError
from xectool.errors.refused_writes import LIFT, size_limit
from xectool.runlog.lock import ProcessLock
from xectool.runlog.process import current_process
from xectool.runlog.records import END_KINDS, AttemptRecord, EpochRecord, EventRecord, StepRecord
from xectool.runlog.status_page import StatusPage, Word
from xectool.runlog.step_log import Limits
from xectool.runlog.storage import RECORD_DIR, RecordSink, attempt_dir, attempts, open_sink, slots_path, status_path
from xectool.runlog.worker_slots import SlotRange, create_slots

_LOG = logging.getLogger(__name__)


class RunWriter:
    """Writes the record of one attempt at a run; each start or resume is an attempt of its own.

    The record outlives a SIGKILL at any byte: each record is in the kernel's hands when the call returns, an attempt
    never appends to a file of an earlier one, and a reader leaves out what is not whole. A disk that refuses
    costs records (`dropped`), never the training. Used as a context, it records an error that ends the run.

    Args:
        run_dir: Directory of the run; created where it is missing.
        attempt: Number of the attempt, from 1; by default the next free one.
        limits: Sizes of the step records.
        rank: Rank of this process; all but the first write beside its record, into an attempt that it has begun.

    Attributes:
        status: What the process does right now; see `xectool.runlog.status_page`.

    Raises:
        UsageError: Another live process writes to this run, or the attempt exists.
        DiskError: The run directory cannot be created.
    """

    def __init__(
        self, run_dir: Path | str, *, attempt: int | None = None, limits: Limits | None = None, rank: int = 0
    ) -> None:
        self.run_dir = Path(run_dir)
        self.rank = rank
        root = self.run_dir / RECORD_DIR
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(root) if rank == 0 else None
            self.attempt = attempt if attempt is not None else max(attempts(self.run_dir), default=0) + 1
            self._sink, self.status = self._open(attempt_dir(self.run_dir, self.attempt), limits)
        except OSError as error:
            limit = size_limit(error)
            fix = LIFT if limit else other_save_dir(self.run_dir.parent, refusal=error)
            problem = f"the run record cannot be created: {limit or error.strerror}"
            raise DiskError(problem, where=str(root), fix=fix) from error
        self._ended = False
        me = current_process()
        self._sink.append(
            AttemptRecord(
                attempt=self.attempt,
                time=time.time(),
                mono=time.monotonic(),
                pid=me.pid,
                pid_start=me.start,
                boot_id=me.boot_id,
                host=me.host,
                version=xectool.__version__,
            )
        )

    def _open(self, directory: Path, limits: Limits | None) -> tuple[RecordSink, StatusPage]:
        """Create the files of the attempt; where the disk refuses one of them, none stays and the run is free again."""
        if self._lock is not None:
            _make(directory, self._lock)
        try:
            return open_sink(directory, limits, self.rank), StatusPage(status_path(directory, self.rank), self.rank)
        except OSError:
            if self._lock is not None:
                shutil.rmtree(directory, ignore_errors=True)
                self._lock.release()
            raise

    def worker_slots(self, counts: Sequence[int]) -> list[SlotRange | None]:
        """Return a range of slots for each loader that has the given number of reading threads.

        A disk that refuses costs the notes of the readers: the ranges are then None.
        """
        path = slots_path(attempt_dir(self.run_dir, self.attempt), self.rank)
        try:
            create_slots(path, sum(counts))
        except OSError as error:
            _LOG.warning("no notes of the reading threads, %s: %s", path, error.strerror)
            return [None for _ in counts]
        firsts = [sum(counts[:loader]) for loader in range(len(counts))]
        return [
            SlotRange(path, first, count, loader)
            for loader, (first, count) in enumerate(zip(firsts, counts, strict=True))
        ]

    @property
    def dropped(self) -> int:
        """Number of records that the disk refused."""
        return self._sink.dropped

    def step(self, record: StepRecord) -> None:
        """Record an optimizer step."""
        self._sink.append(record)
        if self._sink.dropped:
            self.status[Word.DROPPED] = self._sink.dropped

    def epoch(self, record: EpochRecord) -> None:
        """Record a finished epoch."""
        self._sink.append(record)

    def event(self, kind: str, message: str = "", /, *, step: int = 0, epoch: int = 0, **data: Any) -> None:
        """Record something that happened once; ``data`` are plain JSON values."""
        self._ended = self._ended or kind in END_KINDS
        self._sink.append(EventRecord(kind, time.time(), time.monotonic(), step, epoch, message, data))

    def resume(self, step: int, epoch: int, **data: Any) -> None:
        """Record that this attempt goes on after ``step``: later steps of earlier attempts no longer count."""
        self.event("resume", f"resumed after step {step}", step=step, epoch=epoch, **data)

    def close(self) -> None:
        """Release the record; idempotent."""
        self._sink.close()
        self.status[Word.DROPPED] = self._sink.dropped
        self.status.phase("done")
        self.status.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *trace: object) -> None:
        if kind is not None and not self._ended:
            end = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            self.event(end, f"{kind.__name__}: {error}")
        self.close()


def _lock(root: Path) -> ProcessLock:
    lock = ProcessLock(root / "lock")
    if not lock.acquire():
        raise UsageError(
            f"another process (pid {lock.holder()}) is training into this run",
            where=str(root.parent),
            fix="wait for it, or give this run its own name: --run-name OTHER",
        )
    return lock


def _make(directory: Path, lock: ProcessLock) -> None:
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        lock.release()
        raise UsageError(
            f"attempt {int(directory.name[1:])} of this run is already recorded",
            where=str(directory),
            fix="leave out the attempt number",
        ) from None

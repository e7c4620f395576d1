"""The mirror's loop: tail the record, log what is new, never give up while the training lives."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from xectool.errors import DiskError, TrackerError
from xectool.runlog.reader import Position, RunReader
from xectool.runlog.records import EventRecord, Record
from xectool.training.tracking.points import EPOCH_MARK, STEP_MARK, Point, Progress, point_groups
from xectool.training.tracking.settings import TrackerSettings, TrackerState, save_state, without_password

_LOG = logging.getLogger(__name__)
_MAX_POINTS: Final = 1000
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 30.0
_LEAST_DRAIN_S: Final = 5.0
_END_STATUS: Final = {"finished": "FINISHED", "failed": "FAILED"} | dict.fromkeys(
    ("interrupted", "killed", "ended"), "KILLED"
)


class Store(Protocol):
    """What the mirror asks of a tracking database; each call may raise `TrackerError` and be repeated."""

    run_id: str

    def connect(self) -> Progress:
        """Find or create the run and return what it already holds."""

    def log(self, points: Sequence[Point]) -> None:
        """Log points in one transaction."""

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""

    def upload(self) -> None:
        """Upload the artifacts that exist now."""

    def finish(self, status: str, ended: float) -> None:
        """Set how the run ended."""


class Mirror:
    """Brings a database up to the record.

    The database itself says what it holds: after every failure and at every start the last step and epoch are asked
    for, so a mirror killed between logging and remembering logs nothing twice.

    Args:
        run_dir: Directory of the run; its record has been started.
        settings: Where and as what it is mirrored.
        store: The database.
        replay: Whether this is a replay and not the mirror the trainer started.
    """

    def __init__(self, run_dir: Path, settings: TrackerSettings, store: Store, *, replay: bool = False) -> None:
        self._run_dir = run_dir
        self._settings = settings
        self._store = store
        self._replay = replay
        self._reader = RunReader(run_dir)
        self._position: Position | None = None
        self._progress: Progress | None = None
        uri = without_password(settings.uri)
        self._state = TrackerState(pid=os.getpid(), uri=uri, attempt=settings.attempt)

    def run(self, wait: Callable[[float], bool]) -> TrackerState:
        """Mirror until the training has ended and all is logged, or the time to drain is over.

        Args:
            wait: Waits up to the given seconds; returns True from when the training has ended.
        """
        self._update(status="starting")
        ended = wait(0.0)
        deadline, pause_s = _Deadline(self._settings.drain_s), _FIRST_RETRY_S
        while True:
            try:
                self._catch_up()
                if ended:
                    return self._close()
                pause_s = _FIRST_RETRY_S
                ended = wait(self._settings.poll_s)
            except TrackerError as error:
                self._progress = None
                since = self._state.failing_since or time.time()
                self._update(status="paused", error=error.problem, fix=error.fix, failing_since=since)
                _LOG.warning("%s", error)
                if ended and deadline.passes_within(pause_s, time.time() - since):
                    return self._update(status="behind")
                ended = wait(pause_s) or ended
                pause_s = min(2 * pause_s, _LAST_RETRY_S)

    def _catch_up(self) -> None:
        """Log all records that are on disk and not in the database."""
        if self._progress is None:
            self._progress = self._store.connect()
            self._store.upload()
            self._update(run_id=self._store.run_id)
        while True:
            records, position = self._reader.follow(self._position)
            self._tag_resumes(records, position.attempt)
            for batch in _batches(point_groups(records, self._progress, self._settings.step_every)):
                self._store.log(batch)
                _advance(self._progress, batch)
                self._state = replace(self._state, points=self._state.points + len(batch))
            if position == self._position:
                break
            self._position = position
        self._update(status="mirroring", error="", fix="", failing_since=0.0)

    def _tag_resumes(self, records: Iterable[Record], attempt: int) -> None:
        for record in records:
            if isinstance(record, EventRecord) and record.kind == "resume" and attempt > 1:
                self._store.tag({f"resume_{attempt - 1}/after_step": str(record.step)})

    def _close(self) -> TrackerState:
        """Upload what the end of the training left and set how it ended."""
        self._store.upload()
        found = self._reader.status()
        status = _END_STATUS.get(found.state)
        if found.state == "running" and not self._replay:
            # The trainer has let go of us without a word on how it ended: an error is on its way up.
            status = "FAILED"
        # A run that goes on beside a replay, or whose process cannot be seen, keeps its status.
        if status is not None:
            self._store.finish(status, found.updated)
        return self._update(status="done")

    def _update(self, **changes: Any) -> TrackerState:
        """Change the state and store it; a full disk must not stop the mirror of a database elsewhere."""
        if self._progress is not None:
            changes |= {"step": self._progress.step, "epoch": self._progress.epoch}
        before, self._state = self._state, replace(self._state, **changes)
        if self._state != before or not changes.keys() - {"status"}:
            try:
                save_state(self._run_dir, self._state)
            except DiskError as error:
                _LOG.warning("%s", error)
        return self._state


class _Deadline:
    """Starts to count when it is first asked; a database that has been gone for long is not waited for again."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = 0.0

    def passes_within(self, pause_s: float, failed_s: float) -> bool:
        left_s = min(self._seconds, max(_LEAST_DRAIN_S, self._seconds - failed_s))
        self._end = self._end or time.monotonic() + left_s
        return time.monotonic() + pause_s > self._end


def _advance(progress: Progress, batch: Iterable[Point]) -> None:
    for point in batch:
        if point.name == STEP_MARK:
            progress.step = point.step
        elif point.name == EPOCH_MARK:
            progress.epoch = point.step


def _batches(groups: Iterable[list[Point]]) -> Iterator[list[Point]]:
    """Yield groups joined up to what one call takes; the points of one record stay in one transaction."""
    batch: list[Point] = []
    for group in groups:
        if batch and len(batch) + len(group) > _MAX_POINTS:
            yield batch
            batch = []
        batch += group
    if batch:
        yield batch

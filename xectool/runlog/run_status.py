"""How a run stands, added up from its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xectool.runlog.process import ProcessIdentity, is_alive
from xectool.runlog.records import END_KINDS, AttemptRecord, EventRecord, Record

_ENDED_BY: Final = {"max_steps": "ended by --max-steps", "early_stopped": "stopped early"}
"""What a run that finished says of an end before its last epoch, by the message of its last word."""
REFUSED_END: Final = "it ended by itself, and the disk took no last word: it is full, over quota or gone"
"""Message of a run whose page, which has its place on the disk from the start, says that records were refused."""
SILENT_END: Final = "it ended by itself, and its last word is missing"
"""Message of a run whose page says that it ended, and whose record does not."""


@dataclass(frozen=True)
class RunStatus:
    """State of a run: ``running``, ``finished``, ``failed``, ``interrupted``, ``killed`` (ended without a word),
    ``ended`` (by itself, and its record is cut before its last word: how is not known) or
    ``unknown`` (written on another host, which cannot be asked; or a copy, while the run goes on in ``original``).

    ``damaged`` counts lines that cannot be read, ``lost`` records that the disk refused; both are 0 on a healthy run.
    ``unwritten`` says that the end is told by the page of the run alone.
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
    original: str = ""
    unwritten: bool = False

    @property
    def ended_by(self) -> str:
        """Return what ended a finished run before its last epoch, in words; empty where nothing did."""
        return _ENDED_BY.get(self.message, "") if self.state == "finished" else ""

    @property
    def said(self) -> str:
        """Return the state as a reader is told it."""
        how = "how is not on record" if self.state == "ended" else self.ended_by
        return f"{self.state}, {how}" if how else self.state

    @property
    def seconds(self) -> float:
        """Return the wall time from the first to the last record."""
        return max(0.0, self.updated - self.started)

    @property
    def unwritten_end(self) -> EventRecord | None:
        """Return the last word that the disk refused, as far as it is known; None of a run that did not fail so."""
        if not self.unwritten or self.state != "failed":
            return None
        return EventRecord("failed", self.updated, 0.0, self.step, self.epoch, self.message)


class Tally:
    """Collects what `RunStatus` shows from the records of a run, attempt by attempt."""

    def __init__(self) -> None:
        self.writer: AttemptRecord | None = None
        self.end: EventRecord | None = None
        self.epoch = self.step = self.damaged = self.lost = 0
        self.started = self.updated = 0.0

    def add(self, record: Record, limit: float) -> None:
        """Take note of a record; ``limit`` is the last step of its attempt that counts."""
        self.started = self.started or record.time
        self.updated = max(self.updated, record.time)
        if isinstance(record, AttemptRecord):
            self.writer, self.end = record, None
        elif isinstance(record, EventRecord):
            self._add_event(record)
        else:
            # The last step of an attempt stands for all of them: what counts of it reaches up to the limit.
            self.step = max(self.step, int(min(record.step, limit)))
            if record.step <= limit:
                self.epoch = max(self.epoch, record.epoch)

    def _add_event(self, event: EventRecord) -> None:
        if event.kind in END_KINDS:
            self.end = event
        elif event.kind == "recorder_gap":
            self.lost += int(event.data.get("lost", 0))

    def status(self, num_attempts: int) -> RunStatus:
        """Return what was added up."""
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

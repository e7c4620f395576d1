"""Everything recorded that the rules look at, gathered in one pass over a live, finished, killed or resumed run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from xectool.config.document import CONFIG_FILE
from xectool.diagnosis.evidence.files import (
    TRACKER_STATE,
    CheckpointFile,
    checkpoint_files,
    setting,
    tolerant_json,
    tolerant_manifest,
    tolerant_yaml,
)
from xectool.diagnosis.evidence.history import MAX_ROWS, HistoryBuilder, StepHistory
from xectool.diagnosis.evidence.incidents import Incident, read_incidents
from xectool.diagnosis.evidence.kernel import HELD, process_state
from xectool.diagnosis.evidence.other_ranks import failed_first
from xectool.runlog.layout import StepBlock
from xectool.runlog.reader import Lineage, RunReader, RunStatus
from xectool.runlog.records import END_KINDS, EpochRecord, EventRecord, Record, StepRecord
from xectool.runlog.storage import attempt_dir, attempts, open_source

MAX_EVENTS_PER_KIND: Final = 400  # of one kind; enough to see a pattern, and a bound on memory
MAX_REPEATED: Final = 100
_PLACES: Final = 1e8  # micro-batches of an epoch, for one number that orders places in a run


@dataclass
class Attempt:
    """One attempt at the run.

    Attributes:
        number: From 1.
        started: Wall time of its first record.
        resumed_after: Step it goes on from; None where it starts from nothing.
        first_step: First step that counts, 0 without any.
        reached: Last step that any of its records names, also where later attempts took it back.
        end: Its last word, ``finished``, ``interrupted`` or ``failed``; empty while it runs and where it was killed.
    """

    number: int
    started: float = 0.0
    resumed_after: int | None = None
    first_step: int = 0
    reached: int = 0
    end: str = ""


@dataclass(frozen=True)
class Evidence:
    """What a run left behind; whatever is missing is empty, and the rules say what they could not see.

    Attributes:
        run_dir: Directory of the run.
        status: State by record and process table.
        steps: The steps that count.
        epochs: The finished epochs that count.
        events: What happened once, of all attempts, in order, but for what was given up.
        given_up: What happened once at steps that a later attempt took again: no evidence for what the run is now.
        attempts: The attempts.
        repeated: Step numbers recorded twice in one attempt without a rewind.
        repeated_batches: Places ``(epoch, micro-batch)`` that were trained on twice in one attempt without a rewind.
        config: The resolved configuration as plain values.
        manifest: With what and on what it ran.
        incidents: What was kept of faulty batches, but for what was given up.
        checkpoints: Names and sizes.
        tracker: Last state of the mirror.
        now: Wall time at which the evidence was gathered.
        held: ``stopped`` or ``traced`` where a signal or a debugger holds the process of a running run.
    """

    run_dir: Path
    status: RunStatus
    steps: StepHistory
    epochs: tuple[EpochRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    given_up: tuple[EventRecord, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    repeated: tuple[int, ...] = ()
    repeated_batches: tuple[tuple[int, int], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()
    checkpoints: tuple[CheckpointFile, ...] = ()
    tracker: Mapping[str, Any] = field(default_factory=dict)
    now: float = 0.0
    held: str = ""

    def of(self, *kinds: str) -> list[EventRecord]:
        """Return the events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]

    def last(self, kind: str) -> EventRecord | None:
        """Return the last event of a kind."""
        return next((event for event in reversed(self.events) if event.kind == kind), None)

    def setting(self, key: str, default: Any = None) -> Any:
        """Return a configuration value by dotted key."""
        return setting(self.config, key, default)

    @cached_property
    def failure(self) -> EventRecord | None:
        """The event that says how the last attempt failed, if it did, of whatever rank."""
        return failed_first(self.run_dir, self.status, self.last("failed"))

    @cached_property
    def machine(self) -> Mapping[str, Any]:
        """Facts of the machine of the last attempt."""
        entries = self.manifest.get("attempts") or [{}]
        found = entries[-1].get("machine") if isinstance(entries[-1], Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def uses_fp16(self) -> bool:
        """Whether gradients were scaled for float16, by the record of their scale or by the configuration."""
        scale = self.steps["amp_scale"]
        by_scale = bool(((scale != 1.0) & np.isfinite(scale)).any())
        started = self.last("run_start")
        named = str((started.data.get("amp") if started else None) or self.setting("training.amp", ""))
        return by_scale or named == "fp16"

    def gone_on_after(self, event: EventRecord, fewest: int = 1) -> bool:
        """Return whether later attempts have taken so many steps since: what befell that of the event is history."""
        return sum(int(sum(self.steps.attempt == a.number)) for a in self.attempts if a.started > event.time) >= fewest

    def row_of(self, step: int) -> int:
        """Return the row of a step, or of the first after it; -1 where the record ends before it."""
        rows = np.flatnonzero(self.steps["step"] >= step)
        return int(rows[0]) if rows.size else -1


def gather(run_dir: Path | str, max_rows: int = MAX_ROWS) -> Evidence:
    """Return the evidence of a run.

    Args:
        run_dir: Directory of the run; it may be written to meanwhile.
        max_rows: Steps kept in memory; beyond, older ones are thinned out.

    Raises:
        UsageError: The directory holds no run record, or one of a newer format.
    """
    place = Path(run_dir)
    reader = RunReader(place)
    lineage = reader.lineage()
    collected = _Collector(max_rows, lineage)
    if not _by_columns(reader, collected):
        _by_records(reader, collected)
    status = reader.status()
    state = process_state(status.pid) if status.state == "running" else ""
    return Evidence(
        run_dir=place,
        status=status,
        steps=collected.history.build(),
        epochs=tuple(collected.epochs[number] for number in sorted(collected.epochs)),
        events=tuple(collected.events),
        given_up=tuple(collected.given_up),
        attempts=tuple(collected.attempts),
        repeated=tuple(collected.repeated),
        repeated_batches=tuple(collected.repeated_batches),
        config=tolerant_yaml(place / CONFIG_FILE),
        manifest=tolerant_manifest(place),
        incidents=tuple(item for item in read_incidents(place) if lineage.counts(item.attempt, item.step)),
        checkpoints=checkpoint_files(place),
        tracker=tolerant_json(place / TRACKER_STATE),
        now=time.time(),
        held=state if state in HELD else "",
    )


def _by_columns(reader: RunReader, collected: _Collector) -> bool:
    """Collect a run whose steps are stored as columns; returns False where an attempt is kept as lines."""
    known = attempts(reader.run_dir)
    sources = {number: open_source(attempt_dir(reader.run_dir, number)) for number in known}
    if any(source.step_blocks() is None for source in sources.values()):
        return False
    blocks = ((number, block) for number, block in reader.step_blocks())
    following = next(blocks, None)
    for number, source in sources.items():
        for record in source.others().records:
            collected.add(record, number)
        collected.begin_columns()
        while following is not None and following[0] == number:
            collected.add_block(following[1], number)
            following = next(blocks, None)
    collected.epochs = {record.epoch: record for record in reader.epochs()}
    return True


def _by_records(reader: RunReader, collected: _Collector) -> None:
    """Collect a run record by record."""
    records, position = reader.follow()
    while records or position != collected.position:
        collected.position = position
        for record in records:
            collected.add(record, position.attempt)
        records, position = reader.follow(position)


class _Collector:
    """Takes the records of a run one by one."""

    def __init__(self, max_rows: int, lineage: Lineage) -> None:
        self.position: object = None
        self.lineage = lineage
        self.history = HistoryBuilder(max_rows)
        self.epochs: dict[int, EpochRecord] = {}
        self.events: list[EventRecord] = []
        self.given_up: list[EventRecord] = []
        self.attempts: list[Attempt] = []
        self.repeated: list[int] = []
        self.repeated_batches: list[tuple[int, int]] = []
        self._kinds: Counter[tuple[str, bool]] = Counter()
        self._last_step = 0
        self._last_place = (0, 0)

    def add(self, record: Record, attempt: int) -> None:
        """Take the next record of an attempt, which may lack its first line."""
        if not self.attempts or self.attempts[-1].number != attempt:
            self.attempts.append(Attempt(attempt, record.time))
            self._last_step, self._last_place = 0, (0, 0)
        if isinstance(record, StepRecord):
            self._step(record)
        elif isinstance(record, EpochRecord):
            self.epochs[record.epoch] = record
            self._reached(record.step)
        elif isinstance(record, EventRecord):
            self._event(record)

    def begin_columns(self) -> None:
        """Forget rewinds seen so far: columns come without the steps they took back."""
        self._last_step, self._last_place = 0, (0, 0)

    def add_block(self, block: StepBlock, number: int) -> None:
        """Take steps of an attempt as columns; those taken back by a rewind are not among them."""
        block = block.select(block.column("rank") == 0)
        if not len(block.rows):
            return
        if not self.attempts or self.attempts[-1].number != number:  # all of its lines are damaged
            self.attempts.append(Attempt(number, float(block.column("time")[0])))
        attempt, steps = self.attempts[-1], block.column("step")
        attempt.first_step = attempt.first_step or int(steps[0])
        self._reached(int(steps.max()))
        again = np.maximum.accumulate(np.concatenate([[self._last_step], steps]))[:-1] >= steps
        self.repeated += steps[again][: MAX_REPEATED - len(self.repeated)].tolist()
        self._repeated_places(block)
        self._last_step = max(self._last_step, int(steps.max()))
        self.history.add_block(block, attempt.number)

    def _repeated_places(self, block: StepBlock) -> None:
        epochs, stops = block.column("epoch"), block.column("batch_stop")
        places = epochs.astype(np.float64) * _PLACES + stops
        before = np.maximum.accumulate(np.concatenate([[self._last_place[0] * _PLACES + self._last_place[1]], places]))
        again = (before[:-1] >= places) & (stops > 0)
        named = zip(epochs[again].tolist(), block.column("batch_start")[again].tolist(), strict=True)
        self.repeated_batches += list(named)[: MAX_REPEATED - len(self.repeated_batches)]
        last = int(np.argmax(places))
        self._last_place = max(self._last_place, (int(epochs[last]), int(stops[last])))

    def _reached(self, step: int) -> None:
        self.attempts[-1].reached = max(self.attempts[-1].reached, step)

    def _step(self, record: StepRecord) -> None:
        if record.rank > 0:  # other ranks repeat the numbers of the first
            return
        attempt = self.attempts[-1]
        attempt.first_step = attempt.first_step or record.step
        self._reached(record.step)
        if record.step <= self._last_step and len(self.repeated) < MAX_REPEATED:
            self.repeated.append(record.step)
        place = (record.epoch, record.batch_stop)
        if record.batch_stop and place <= self._last_place and len(self.repeated_batches) < MAX_REPEATED:
            self.repeated_batches.append((record.epoch, record.batch_start))
        self._last_step = max(self._last_step, record.step)
        self._last_place = max(self._last_place, place)
        self.history.add(record, attempt.number)

    def _event(self, record: EventRecord) -> None:
        self._reached(record.step)
        if record.kind == "resume":
            self.attempts[-1].resumed_after = record.step
        elif record.kind in END_KINDS:
            self.attempts[-1].end = record.kind
        elif record.kind == "rewind":
            # What follows repeats steps on purpose.
            self._last_step, self._last_place = int(record.data.get("to_step", 0)), (0, 0)
        counts = self.lineage.counts(self.attempts[-1].number, record.step)
        self._kinds[record.kind, counts] += 1
        if self._kinds[record.kind, counts] <= MAX_EVENTS_PER_KIND:
            (self.events if counts else self.given_up).append(record)

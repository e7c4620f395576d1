"""Everything that is counted over the files of one sample, in one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from xectool.checks.branches import BranchVerdict, check_branches, wanted_branches
from xectool.checks.cells import KEPT_CELLS, Cell, CellCounts, CellScan, EventReservoir, Place
from xectool.checks.facts import FileFacts, Trouble
from xectool.checks.filled import Filled, count_filled
from xectool.checks.health import MIN_CONSTANT, MIN_EVENTS, FileHealth, neighbour_likeness
from xectool.checks.identity import IdentityBlock, hash_numbers, lonely_numbers
from xectool.checks.light import FEWEST_EVENTS, JUDGED_TASKS, light_misfits
from xectool.checks.markers import FileMarkers
from xectool.checks.normalizing import NphoMap
from xectool.checks.reading import SensorBlock, SensorStream, block_edges, read_small, read_together, spread_out
from xectool.checks.stretches import Stretch
from xectool.checks.targets import TargetScan
from xectool.checks.truth_guesses import Guess, guess_truths
from xectool.config.data import DataConfig
from xectool.config.left_out import entries_left_out
from xectool.config.normalization import NormalizationConfig
from xectool.config.tasks import TASK_WIDTHS
from xectool.detector.constants import NUM_SENSORS, UNKNOWN_ABOVE
from xectool.detector.coordinates import angles_to_direction
from xectool.rootio.reader import EventFile

Array = npt.NDArray[Any]
Advanced = Callable[[int], None]

EVENTS_A_FILE: Final = 10_000
_EVENTS_OF_FILE: Final = 2 * MIN_EVENTS
_FEW: Final = 3  # run numbers that stand alone are damage; more of them are a shuffled file


@dataclass
class Sample:
    """What was found in the files of one sample.

    Attributes:
        files: Structure of every file.
        verdicts: What each usable file has of the wanted branches, by path and tree.
        troubles: What was wrong while reading.
        counts: Readings that are no numbers or impossible, by path and tree: photons and times.
        markers: Markers of no reading, by path and tree; they are hidden from all that is counted.
        cells: Sums of the readings.
        events: Some events, kept.
        targets: Truth by task.
        contents: Hashes of the photons of the events whose values were read.
        dark: The first events without any light: no valid photon number, or one and the same everywhere.
        num_dark: How many there are.
        numbered: Files whose run and event numbers can be read, by path and tree.
        scanned: Events whose values were read.
        seconds: Time that took.
        angle_gaps: Events whose angle and direction vector disagree, the largest difference, and its event.
        by_file: State of the sensors, file by file.
        order_likeness: How well sensors are foretold by their neighbours, by path and tree.
        light: Whether the light lies where sensors and truth say, by path and tree.
        stretches: Entries that differ from the rest of their file, by path and tree.
        filled: What an inpainter has filled, by path and tree; of repaired files only.
        guesses: Branches that may be the truth of tasks, by path and tree; where it was asked for.
    """

    files: list[FileFacts]
    verdicts: dict[str, BranchVerdict] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    counts: dict[str, tuple[CellCounts, CellCounts]] = field(default_factory=dict)
    markers: dict[str, FileMarkers] = field(default_factory=dict)
    cells: CellScan = field(default_factory=lambda: CellScan(0.0, 0.0))
    events: EventReservoir = field(default_factory=EventReservoir)
    targets: dict[str, TargetScan] = field(default_factory=dict)
    contents: list[IdentityBlock] = field(default_factory=list)
    dark: list[Cell] = field(default_factory=list)
    num_dark: int = 0
    numbered: set[str] = field(default_factory=set)
    scanned: int = 0
    seconds: float = 0.0
    angle_gaps: tuple[int, float, Cell | None] = (0, 0.0, None)
    by_file: list[FileHealth] = field(default_factory=list)
    order_likeness: dict[str, float] = field(default_factory=dict)
    light: dict[str, dict[str, str]] = field(default_factory=dict)
    stretches: dict[str, list[Stretch]] = field(default_factory=dict)
    filled: dict[str, Filled] = field(default_factory=dict)
    guesses: dict[str, dict[str, Guess]] = field(default_factory=dict)

    @property
    def num_events(self) -> int:
        """Entries of all files that could be opened."""
        return sum(facts.num_entries for facts in self.files if facts.opened)

    @property
    def usable(self) -> list[FileFacts]:
        """The files whose sensor branches can be read."""
        return [facts for facts in self.files if facts.where in self.verdicts]


@dataclass(frozen=True)
class ScanSettings:
    """How a sample is looked at.

    Attributes:
        data: Names of the branches.
        normalization: Constants the readings are judged by.
        tasks: Tasks whose truth has to be there.
        max_events: Events a file whose values are read; None for all.
        guesses: Whether truth of unknown names is guessed: where no configuration says what is trained.
        truth: Whether truth is looked at: of no use where no task is trained on it.
    """

    data: DataConfig
    normalization: NormalizationConfig
    tasks: tuple[str, ...] = ()
    max_events: int | None = EVENTS_A_FILE
    guesses: bool = False
    truth: bool = True


class SampleScan:
    """Reads a sample once.

    Args:
        settings: How.
        files: Structure of its files.
        advanced: Told of the events that were read.
    """

    def __init__(self, settings: ScanSettings, files: list[FileFacts], advanced: Advanced = lambda _: None) -> None:
        self.settings, self._advanced = settings, advanced
        self._npho_map = NphoMap(settings.normalization)
        cells = CellScan(settings.normalization.npho_threshold, self._npho_map.lowest, *self._npho_map.raw_sentinels())
        self.sample = Sample(files, cells=cells)
        self._branches = settings.data.truth_branches if settings.truth else {}
        self._wanted = wanted_branches(settings.data, settings.tasks, self._branches)

    def run(self) -> Sample:
        """Return what was found; a damaged file is named in it and does not stop the rest."""
        for facts in self.sample.files:
            if facts.opened:
                with EventFile(facts.path, facts.tree) as file:
                    self._file(file, facts)
        return self.sample

    def blocks_of(self, file: EventFile) -> list[tuple[int, int]]:
        """Return the entries of a file whose values are read."""
        edges = block_edges(file.cluster_starts(self.settings.data.npho_branch) or (0,), file.num_entries)
        return spread_out(edges, self.settings.max_events)

    def _failed(self, trouble: Trouble) -> None:
        if trouble.where not in {known.where for known in self.sample.troubles}:
            self.sample.troubles.append(trouble)

    def _file(self, file: EventFile, facts: FileFacts) -> None:
        verdict = check_branches(file, facts, self._wanted)
        data = self.settings.data
        if not verdict.usable - {data.run_branch, data.event_branch}:
            self.sample.troubles += verdict.troubles  # nothing to number, in what may be a file of any length
            return
        self._gone = np.array(entries_left_out(data, facts.where), np.int64)
        runs, events = self._numbers(file, verdict)
        self._truth(file, verdict, runs, events)
        if not {data.npho_branch, data.time_branch} <= verdict.usable:
            self.sample.troubles += verdict.troubles
            return
        if self.settings.guesses:
            found, unread = guess_truths(file, facts, data)
            self.sample.guesses |= {facts.where: found} if found else {}
            verdict = replace(verdict, notes=(*verdict.notes, *unread))
        self.sample.verdicts[facts.where] = verdict
        counts = CellCounts("npho"), CellCounts("time")
        self.sample.counts[facts.where] = counts
        markers = self.sample.markers[facts.where] = FileMarkers(self.settings.normalization)
        began, kept = time.perf_counter(), EventReservoir(_EVENTS_OF_FILE)
        if (filled := count_filled(file, facts, self.blocks_of(file), self._failed)) is not None:
            self.sample.filled[facts.where] = filled
        for block in SensorStream(file, data, self._failed).blocks(self.blocks_of(file)):
            entries, npho, time_ = self._served(block.start, block.npho, block.time)
            block = SensorBlock(block.start, npho, time_)
            place = Place(facts.where, entries, runs[entries], events[entries])
            markers.hide(npho, time_, place)
            for part in block.parts():
                self.sample.cells.add(block.npho[part], block.time[part], place.rows(part), counts)
                self._contents(block.npho[part], place.rows(part))
            self.sample.events.add(block.npho, block.time, place)
            some = slice(None, None, max(1, len(block.npho) // _EVENTS_OF_FILE))
            kept.add(block.npho[some], block.time[some], place.rows(some))
            self.sample.scanned += len(block.npho)
            self._advanced(len(block.npho))
        self._end_file(file, kept, verdict)
        self.sample.seconds += time.perf_counter() - began

    def _end_file(self, file: EventFile, kept: EventReservoir, verdict: BranchVerdict) -> None:
        """Judge a file by itself: among many good ones a wrong one does not show in the sums."""
        (sums, stretches), path = self.sample.cells.end_file(), file.where
        if stretches:
            self.sample.stretches[path] = stretches
        if sums.events >= MIN_CONSTANT:
            self.sample.by_file.append(FileHealth.of_file(path, sums, kept))
        if sums.events >= FEWEST_EVENTS:
            there = {task: self._branches[task] for task in JUDGED_TASKS if self._branches.get(task) in verdict.usable}
            self.sample.order_likeness[path] = neighbour_likeness(kept)
            self.sample.light[path] = light_misfits(file, kept, there)

    def _numbers(self, file: EventFile, verdict: BranchVerdict) -> tuple[Array, Array]:
        """Return run and event number of all entries; -1 and the entry where a file has none."""
        data, found = self.settings.data, []
        for branch, default in ((data.run_branch, None), (data.event_branch, np.arange(file.num_entries))):
            values = np.full(file.num_entries, -1, np.int64) if default is None else default.astype(np.int64)
            if branch in verdict.usable:
                for start, rows in read_small(file, branch, 1, np.int64, self._failed):
                    values[start : start + len(rows)] = rows[:, 0]
            found.append(values)
        if {data.run_branch, data.event_branch} <= verdict.usable:
            self.sample.numbered.add(file.where)
        lonely = lonely_numbers(found[0])
        if 0 < len(lonely) <= _FEW:
            self._failed(_lonely_trouble(file, data.run_branch, found[0], int(lonely[0])))
        return found[0], found[1]

    def _served(self, start: int, *rows: Array) -> tuple[Array, ...]:
        """Return the entries from one on, and their rows, without those that ``data.exclude`` leaves out."""
        entries = np.arange(start, start + len(rows[0]))
        kept = ~np.isin(entries, self._gone)
        return (entries, *rows) if kept.all() else (entries[kept], *(values[kept] for values in rows))

    def _contents(self, npho: Array, place: Place) -> None:
        lit = (np.abs(npho) <= UNKNOWN_ABOVE).any(axis=1) & (npho != npho[:, :1]).any(axis=1)
        rows, dark = np.flatnonzero(lit), np.flatnonzero(~lit)
        self.sample.num_dark += len(dark)
        kept = dark[: KEPT_CELLS - len(self.sample.dark)]
        self.sample.dark += [place.cell(int(row), 0, float(npho[row, 0])) for row in kept]
        hashes = np.array([xxhash.xxh3_64_intdigest(npho[row]) for row in rows], np.uint64)
        block = IdentityBlock(place.path, place.entries[rows], place.runs[rows], place.events[rows], hashes)
        self.sample.contents.append(block)

    def _truth(self, file: EventFile, verdict: BranchVerdict, runs: Array, events: Array) -> None:
        for task, branch in self._branches.items():
            if branch not in verdict.usable:
                continue
            scan = self.sample.targets.setdefault(task, TargetScan(branch, TASK_WIDTHS[task], task=task))
            for start, values in read_small(file, branch, TASK_WIDTHS[task], np.float64, self._failed):
                entries, values = self._served(start, values)
                scan.add(values, Place(file.where, entries, runs[entries], events[entries]))
            scan.end_file(file.where, task)
        if {self._branches.get("angle"), self._branches.get("angleVec")} <= verdict.usable:
            self._compare_angles(file, runs, events)

    def _compare_angles(self, file: EventFile, runs: Array, events: Array) -> None:
        branches, silent = self.settings.data.truth_branches, lambda _: None  # damage was told of before
        wanted = ((branches["angle"], 2), (branches["angleVec"], 3))
        count, worst, cell = self.sample.angle_gaps
        for start, (angle, vector) in read_together(file, wanted, np.float64, silent):
            known = (np.abs(angle) <= UNKNOWN_ABOVE).all(axis=1) & (np.abs(vector) <= UNKNOWN_ABOVE).all(axis=1)
            with np.errstate(invalid="ignore"):
                gap = np.where(known, np.abs(angles_to_direction(angle) - vector).max(axis=1), 0.0)
            gap = np.where(np.isfinite(gap), gap, 0.0)
            count += int(np.count_nonzero(gap > ANGLE_TOLERANCE))
            if len(gap) and gap.max() > worst:
                worst, entry = float(gap.max()), start + int(gap.argmax())
                cell = Cell(file.where, entry, int(runs[entry]), int(events[entry]), 0, worst)
        self.sample.angle_gaps = (count, worst, cell)


ANGLE_TOLERANCE: Final = 1e-3


def number_stream(files: Iterable[FileFacts], data: DataConfig) -> Iterator[IdentityBlock]:
    """Yield the hashes of run and event number of all entries; files without either are left out."""
    for facts in files:
        with EventFile(facts.path, facts.tree) as file:
            if not {data.run_branch, data.event_branch} <= set(file.branch_names):
                continue
            wanted = ((data.run_branch, 1), (data.event_branch, 1))
            for start, (runs, events) in read_together(file, wanted, np.int64, lambda _: None):
                entries = np.arange(start, start + len(runs))
                hashes = hash_numbers(runs[:, 0], events[:, 0])
                yield IdentityBlock(facts.where, entries, runs[:, 0], events[:, 0], hashes)


def _lonely_trouble(file: EventFile, branch: str, runs: Array, row: int) -> Trouble:
    return Trouble(
        "DAT-02",
        "XT-DATA-DAMAGED",
        f"branch '{branch}' of '{file.path}': entry {row} has run {runs[row]}, both neighbours run {runs[row - 1]}",
        f"{file.where} branch {branch} entry {row}",
        "copy the file again and compare its checksum, or take it out of the list",
    )


def num_cells(events: int) -> int:
    """Return the readings of one channel of so many events."""
    return events * NUM_SENSORS

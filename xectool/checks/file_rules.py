"""Rules on files: they open, hold the tree and its branches, are whole, and hold events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from xectool.checks.cells import CellCounts
from xectool.checks.data_facts import DataFacts, places_of_values, sensor_place
from xectool.checks.facts import FileFacts, Trouble
from xectool.checks.truth_guesses import guessed
from xectool.config.inputs import is_remote
from xectool.config.rules.count import Counts, EpochFillsABatch, EpochHasBatches
from xectool.config.tasks import TRUTH_BRANCHES
from xectool.detector.constants import LARGEST_NPHO, LARGEST_TIME_S, NUM_SENSORS
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Mend
from xectool.rules import Rule

# More impossible readings than this are no flipped bit: a part is damaged, or events have another gain or unit.
DAMAGE_SHARE: Final = 1e-3
MOST, NEARLY_ALL = 0.5, 0.9
MOST_FLIPPED: Final = 10  # in a file; bits flip one by one, the brightest sensors of events are too bright together
# Stretches of zeros in more events than this, or beside more single zeros, are no damage: sensors without light read
# zero in such files.
BLANK_SHARE: Final = 0.01
ZERO_SHARE: Final = 0.01
FEW_EVENTS: Final = 3


def impossible_counts(facts: DataFacts, channel: int) -> list[CellCounts]:
    """Return the counts of the files whose photons (0) or times (1) no sensor delivers: no constants cure those."""
    counts = [pair[channel] for pair in facts.sample.counts.values()]
    return [item for item in counts if item.impossible > DAMAGE_SHARE * max(item.total, 1)]


def impossible_share(counts: CellCounts) -> float:
    """Return which part of what is read is impossible; zero is what many files have for no reading."""
    return counts.impossible / max(counts.total - counts.nonfinite - counts.unknown - counts.num_zero, 1)


def times_in_other_unit(facts: DataFacts) -> list[CellCounts]:
    """Return the counts of the files nearly all of whose times are too long: a factor would ruin the others."""
    times = [time for _, time in facts.sample.counts.values()]
    return [] if facts.exchanged else [time for time in times if impossible_share(time) > NEARLY_ALL]


LACKING: Final = ", which other files have"
"""End of what is said of a told truth that some files lack; nothing has to be done about it."""


class TroubleRule(Rule[DataFacts]):
    """Abstract: what one check found while the files were opened and read."""

    def found(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield the troubles of this check as errors."""
        for file in facts.sample.files:
            yield from (self.finding(trouble) for trouble in file.troubles if trouble.check == self.code)
        for trouble in facts.sample.troubles:
            if trouble.check == self.code:
                yield self.finding(trouble)

    def notes(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield what is unusual and not wrong as warnings."""
        for verdict in facts.sample.verdicts.values():
            for trouble in (*verdict.troubles, *verdict.notes, *verdict.unnamed):
                if trouble.check == self.code:
                    severity = Severity.ERROR if trouble in verdict.troubles else Severity.WARNING
                    yield self.finding(trouble, severity)

    def finding(self, trouble: Trouble, severity: Severity = Severity.ERROR) -> Finding:
        """Return a trouble as a finding; its own code stands in the evidence."""
        evidence = (*trouble.evidence, f"xectool explain {trouble.code}")
        return Finding(self.code, severity, trouble.problem, trouble.where, evidence, trouble.fix)


class FilesOpen(TroubleRule):
    """Zero bytes, web pages, pointers and cut files are no data."""

    code = "DAT-01"
    title = "The file opens"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for each file that cannot be opened."""
        yield from self.found(facts)


class TreeExists(TroubleRule):
    """No other tree is taken in place of the one asked for."""

    code = "DAT-03"
    title = "The tree exists"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for each file without the tree; names what is there."""
        yield from self.found(facts)


class BranchesExist(TroubleRule):
    """Sensor branches and the truth of enabled tasks are needed; run and event numbers are worth having."""

    code = "DAT-04"
    title = "The branches exist"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for a missing required branch, a warning for a missing number, an odd type, another truth."""
        yield from self.found(facts)
        yield from self.notes(facts)
        others = facts.other.files if facts.other else ()
        yield from guessed(self.code, facts.sample.guesses, facts.sample.files, others)
        yield from self._told_and_lacking(facts, others)

    def _told_and_lacking(self, facts: DataFacts, others: Sequence[FileFacts]) -> Iterator[Finding]:
        """Yield which files lack the truth of a name that was told and that another file has."""
        told = facts.settings.data.truth_branches.items() - TRUTH_BRANCHES.items() if facts.config is None else ()
        files = [file for file in (*facts.sample.files, *others) if file.opened]
        for task, branch in sorted(told):
            lacking = [file for file in files if branch not in file.branches]
            for file in lacking if len(lacking) < len(files) else ():
                report = self.info if file in others else self.warning
                problem = f"'{file.where}' has no branch '{branch}', the truth of task {task}{LACKING}"
                yield report(f"{file.where} branch {branch}", problem, f"leave the task {task} out, or the file")


class WidthsAgree(TroubleRule):
    """4760 sensors in every file and event; a plain reader takes a mixture without a word."""

    code = "DAT-05"
    title = "Widths agree"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for each branch or entry of another width."""
        yield from self.found(facts)
        yield from self.notes(facts)


class FilesAreWhole(TroubleRule):
    """Every basket is there, can be read, and holds what a detector can measure."""

    code = "DAT-02"
    title = "All baskets can be read"

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield an error for each damaged range, and for readings that no sensor delivers."""
        yield from self.found(facts)
        yield from self.notes(facts)
        yield from (self.finding(note, Severity.INFO) for file in facts.sample.files for note in file.notes)
        for file in facts.sample.files:
            if file.opened and file.unclosed:
                problem = (
                    f"'{file.path}' was never closed: the program that wrote it ended before that; the "
                    f"{file.num_entries} entries it had saved are read, later ones are lost"
                )
                yield self.warning(file.where, problem, "write the file again, or go on with what is there")
        data = facts.settings.data
        for where, (npho, time) in facts.sample.counts.items():
            if not facts.exchanged:  # DAT-25 says so
                yield from self._impossible(facts, where, npho, data.npho_branch)
                if impossible_share(time) <= NEARLY_ALL:  # else DAT-10 says so
                    yield from self._impossible(facts, where, time, data.time_branch)
            yield from self._blank(npho, data.npho_branch)
            yield from self._blank(time, data.time_branch)
        far = [file for file in facts.sample.files if file.opened and is_remote(file.path)]
        if far:
            yield self._not_done(far, facts.is_complete)

    def _not_done(self, far: Sequence[FileFacts], asked: bool) -> Finding:
        """Return what a file that is read over the network is not checked for: a warning where it was asked for."""
        read = "every event" if asked else "a sample of the events"
        problem = (
            f"{len(far)} of the files come over the network: their structure and the values of {read} are looked at; "
            "the other baskets, the size of the file and recorded hashes are not, and no hashes are written"
        )
        fix = "copy them, then: xectool check-data COPY.root --deep"
        severity = Severity.WARNING if asked else Severity.INFO
        return Finding(self.code, severity, problem, far[0].where, tuple(file.path for file in far[:5]), fix)

    def _impossible(self, facts: DataFacts, where: str, counts: CellCounts, branch: str) -> Iterator[Finding]:
        first = counts.first.get("impossible", [])
        if not first:
            return
        few = counts.impossible <= min(MOST_FLIPPED, DAMAGE_SHARE * counts.total)
        reason = (
            "a flipped bit is the usual reason" if few else "a part is damaged, or events have another gain or unit"
        )
        again = f"make the file again with {branch} in {'s' if counts.channel == 'time' else 'photons'}"
        fix = f"copy the file again and compare its checksum; {again} where it is the same"
        mends: tuple[Mend, ...] = ()
        largest = {"npho": LARGEST_NPHO, "time": LARGEST_TIME_S}[counts.channel]
        if few and all(abs(cell.value) > largest for cell in first):
            fix = "copy the file again and compare its checksum"
            mends = (Mend(*facts.place_of(where), branch, Change(within=((-largest, largest),))),)
        elif few:
            fix = "copy the file again and compare its checksum; leave these events out otherwise"
        topic = "XT-DATA-DAMAGED"
        if impossible_share(counts) > MOST:
            reason = "another unit is the usual reason where most of a branch is"
            fix = again
            topic, mends = "units", ()
        shown = places_of_values(first, branch)
        many = f"{counts.impossible} readings" if counts.impossible > 1 else "one reading"
        yield Finding(
            self.code,
            Severity.ERROR,
            f"{many} of branch '{branch}' in '{first[0].path}' cannot come from a sensor ({first[0].value:g}): "
            + reason,
            sensor_place(first[0], branch),
            (*shown, f"xectool explain {topic}"),
            fix,
            mends=mends,
        )

    def _blank(self, counts: CellCounts, branch: str) -> Iterator[Finding]:
        """Yield a warning where a few events hold a stretch of zeros; in many, that is how the file is written."""
        few = counts.blank <= max(FEW_EVENTS, BLANK_SHARE * counts.total / NUM_SENSORS)
        if not counts.blank or not few or counts.zero > ZERO_SHARE * counts.total:
            return
        first = counts.first["blank"]
        shown = tuple(f"{sensor_place(cell, branch)}: {cell.value:g} zeros" for cell in first)
        many = "one event" if counts.blank == 1 else f"{counts.blank} events"
        problem = (
            f"a stretch of zeros in {many} of branch '{branch}' of '{first[0].path}' ({first[0].value:g} sensors on "
            "end): a part of the file that was never written is the usual reason"
        )
        fix = "copy the file again and compare its checksum; leave these events out otherwise"
        yield Finding(self.code, Severity.WARNING, problem, sensor_place(first[0], branch), shown, fix)


class EnoughEvents(Rule[DataFacts]):
    """An empty file is left out; what is too few events for an epoch is judged as training judges it."""

    code = "DAT-06"
    title = "There are enough events"
    requires: ClassVar[tuple[str, ...]] = ()

    def check(self, facts: DataFacts) -> Iterator[Finding]:
        """Yield a warning for each empty file and for an epoch of one short step, an error for one of none."""
        for file in facts.sample.files:
            if file.opened and not file.num_entries:
                problem = f"'{file.path}' has no entries in tree '{file.tree}'"
                yield self.warning(file.where, problem, "take it out of the list, or make it again")
        opened = [file for file in facts.sample.files if file.opened]
        total = facts.sample.num_events
        if opened and not total:
            yield self.error(opened[0].where, f"none of the {len(opened)} files holds an event", "make the files again")
        if facts.config is None or not total:
            return
        served = facts.sharing.num_events if facts.sharing is not None else total  # after the fiducial cut
        counts = Counts(facts.config, served, 0, facts.config.distributed.num_gpus)
        yield from EpochFillsABatch().check(counts)
        for found in EpochHasBatches().check(counts):  # with drop_last, training refuses
            yield self.error(found.where, found.problem, found.fix)


FILE_RULES: tuple[Rule[DataFacts], ...] = (
    FilesOpen(), FilesAreWhole(), TreeExists(), BranchesExist(), WidthsAgree(), EnoughEvents(),
)  # fmt: skip

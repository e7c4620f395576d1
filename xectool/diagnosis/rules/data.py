"""Events that came twice or not at all, and what was put in quarantine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.detector.truth_ranges import are_few, told_no_number
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import train_files
from xectool.diagnosis.evidence.incidents import identities, mapping, number, whole
from xectool.diagnosis.excluded import blamed_in, named_in, still_there
from xectool.errors import counted
from xectool.findings import Severity
from xectool.runlog.records import EventRecord

NO_TRUTH: Final = "no truth"  # symptom; such events are left out of their task, and lead to nothing
READINGS: Final = "readings"  # symptom; the network takes them for dead sensors
VALIDATED_READINGS: Final = "validation readings"
SINGLE_EVENTS: Final = 16  # events that any run may leave out; more that cannot be are no single events
_TWICE: Final = "they count twice in every epoch"
_COMPARED: Final = 16  # pairs of events with one number, as the run compares them
_INVALID: Final = re.compile(r"invalid [\w ]+ (?P<value>-?(?:nan|inf|\d+(?:\.\d+)?(?:e[+-]\d+)?)):")


class DuplicateEvents(DiagnosisRule):
    """Each event is trained on once an epoch."""

    code = "XT-DUPLICATE-EVENTS"
    title = "events were served more than once in an epoch"

    def unseen(self, evidence: Evidence) -> str:
        """Return that no epoch was counted, nor the events of the files."""
        return "" if audits(evidence) or evidence.of("run_start") else "no epoch has been counted"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the events served with the events planned, and look for events that stand in the files twice."""
        yield from self._in_files(evidence)
        found = [row for row in audits(evidence) if row[3] > 0 or row[2] > row[1]]
        if not found:
            return
        epoch, expected, seen, duplicates = found[0]
        many = max(duplicates, seen - expected)
        yield Cause(
            code=self.code,
            confidence=0.96,
            problem=f"epoch {epoch}: {many} events were served more than once (seen {seen}, expected {expected})",
            evidence=tuple(f"epoch {e}: seen {s}, expected {x}, duplicates {max(d, 0)}" for e, x, s, d in found[:3]),
            fix=_with_one_reader(evidence),
            step=1,
            symptom="audit",
        )

    def _in_files(self, evidence: Evidence) -> Iterator[Cause]:
        """Report events that stand in the files twice, under the same numbers or under others, and copied light."""
        started, alike = evidence.last("run_start"), evidence.last("repeated_readings")
        repeated = number(started.data.get("num_repeated")) if started is not None else 0.0
        if started is not None and repeated > 0:
            of = f"{_about(int(repeated))} of {started.data.get('num_train')} training events"
            yield self._repeated(
                f"{of} have the run and event number of another, and its readings: {_TWICE}",
                [f"of more than {_COMPARED} such pairs the readings of {_COMPARED} are compared"],
                fixes.check_named_files(evidence, "train"),
            )
        files = copied_files(evidence)
        pair = [str(path) for path in alike.data.get("files") or ()] if alike is not None else []
        # It counts all that have the readings of another: those with its numbers and those of copied light too.
        is_more = alike is not None and not number(alike.data.get("count")) <= repeated  # not recorded: NaN
        if alike is not None and is_more and not (pair and {*pair} <= {*files}):
            numbers = "whatever numbers they have" if repeated > 0 else "under other run and event numbers"
            yield self._repeated(
                f"{alike.message}: {_TWICE}",
                [f"{numbers}; no two events agree to the last bit"],
                fixes.check_files(evidence.run_dir, pair),
            )
        if files:
            told = [event.message for event in evidence.of("copied_light")]
            others = f"; and so in {counted(len(files) - 1, 'file')} more" if len(files) > 1 else ""
            lines = ["the photons of two events never agree so well", *told[1:]]
            yield self._repeated(f"{told[0]}{others}", lines, fixes.check_files(evidence.run_dir, files))

    def _repeated(self, problem: str, lines: Sequence[str], fix: str) -> Cause:
        return Cause(
            code=self.code,
            confidence=0.9,
            problem=problem,
            evidence=tuple(lines),
            fix=fix,
            severity=Severity.WARNING,
            step=1,
            symptom="repeated",
        )


def file_of(evidence: Evidence, told: Mapping[str, Any]) -> str:
    """Return the training file that an event of the record counts as ``file``."""
    files, place = train_files(evidence.manifest), whole(told.get("file"), -1)
    return files[place] if 0 <= place < len(files) else f"file {place}"


def copied_files(evidence: Evidence) -> list[str]:
    """Return the files in which all events have the light of one."""
    return sorted({str(path) for event in evidence.of("copied_light") for path in event.data.get("files") or ()})


class EventsMissing(DiagnosisRule):
    """No event is left out unsaid."""

    code = "XT-EVENTS-MISSING"
    title = "events of an epoch were never served"

    def unseen(self, evidence: Evidence) -> str:
        """Return that no epoch was counted."""
        return "" if audits(evidence) else "no epoch has been counted"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the events served and those in quarantine with the events planned."""
        left_out = _left_out(evidence)
        named = _named_by_guards(evidence)
        found = [row for row in audits(evidence) if row[2] + left_out.get(row[0], named) < row[1]]
        if not found:
            return
        epoch, expected, seen, _ = found[0]
        yield Cause(
            code=self.code,
            confidence=0.95,
            problem=f"epoch {epoch}: {expected - seen} of {expected} events were never served",
            evidence=tuple(f"epoch {e}: seen {s}, expected {x}" for e, x, s, _ in found[:3]),
            fix=_with_one_reader(evidence),
            step=1,
            symptom="audit",
        )


class InvalidReadings(DiagnosisRule):
    """Readings in the files that are no numbers, or beyond all numbers an event can have."""

    code = "XT-NAN-DATA"
    title = "readings or truths in the files are NaN, infinite or beyond 1e10"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report them; other photon numbers below the domain of a scheme are noise of the baseline."""
        for sample, name in (("train", "training"), ("val", "validation")):
            told = (event for event in evidence.of("invalid_npho") if event.data.get("sample", "train") == sample)
            bad = [event for event in told if _is_no_reading(event.message)]
            found, mended = still_there(evidence, bad, sample)
            if found:
                cause = Cause(
                    code=self.code,
                    confidence=0.85,
                    problem=f"numbers in the {name} files are NaN, infinite or beyond 1e10; the network takes them for "
                    f"dead sensors or unknown truth: {found[0].message}",
                    evidence=tuple(event.message for event in found[:5]),
                    fix=fixes.nan_batch(evidence) if sample == "train" else fixes.check_named_files(evidence, "val"),
                    severity=Severity.WARNING,
                    step=max(1, found[0].step),
                    symptom=READINGS if sample == "train" else VALIDATED_READINGS,
                )
                yield cause.after(mended)

        yield from self._no_truth(evidence)

    def _no_truth(self, evidence: Evidence) -> Iterator[Cause]:
        """Yield the tasks that have no number as their truth in some events; nothing else comes of it.

        Many such are a mark of what is not known, as 1e10 is: a note.
        """
        baseline, started = evidence.last("baseline"), evidence.last("run_start")
        recorded = baseline.data.get("target_no_number") if baseline else None
        num_train = whole(started.data.get("num_train"), 0) if started else 0
        found = {task: one for task, one in mapping(recorded).items() if mapping(one)}
        if not found or num_train <= 0:
            return
        told = (told_no_number(task, whole(one.get("count"), 1), num_train) for task, one in found.items())
        files = [path for one in found.values() if (path := file_of(evidence, one)) in train_files(evidence.manifest)]
        few = any(are_few(whole(one.get("count"), 1), num_train) for one in found.values())
        yield Cause(
            code=self.code,
            confidence=0.6,
            problem="; ".join(told) + ", which take no part in its loss and metrics",
            evidence=tuple(
                f"{task}: first in entry {one.get('entry')} of {file_of(evidence, one)}" for task, one in found.items()
            ),
            fix=fixes.check_files(evidence.run_dir, files) if files else fixes.check_named_files(evidence, "train"),
            severity=Severity.WARNING if few else Severity.INFO,
            step=1,
            symptom=NO_TRUTH,
        )


class ImplausibleEvents(DiagnosisRule):
    """Events that cannot be, where they were not left out; those in quarantine have a rule of their own."""

    code = "XT-SPIKE-EVENT"
    title = "events have readings that no event can have"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report what a guard named and let pass."""
        told = evidence.of("implausible_event")
        found, mended = still_there(evidence, [event for event in told if event.data.get("action") == "record"])
        if not found:
            return
        named = named_in(found)
        # Where it may leave them out, there were more than it may: a file in another unit, and no single events.
        count = sum(len(identities(event.data.get("events"))) for event in told)
        whole_files = evidence.setting("guards.on_input_scale", "stop") == "stop" and count > SINGLE_EVENTS
        files = sorted({str(file) for event in found for file in event.data.get("files") or ()})
        cause = Cause(
            code="XT-INPUT-SCALE" if whole_files else self.code,
            confidence=0.85,
            problem=f"{len(named)} events cannot be: {found[0].message}",
            evidence=_each_once(evidence, found),
            fix=fixes.check_files(evidence.run_dir, files)
            if whole_files
            else fixes.train_again(evidence, "guards.on_input_scale=stop", name="without-them"),
            blamed=() if whole_files else blamed_in(evidence, found),
            severity=Severity.WARNING,
            step=1 if whole_files else max(1, found[0].step),
            symptom="implausible",
        )
        yield cause.after(mended)


def _each_once(evidence: Evidence, found: list[EventRecord]) -> tuple[str, ...]:
    """Return what is told of events beyond the first, which the problem names."""
    further = named_in(found)[1:]
    if len(found) == 1:
        return (f"further: {fixes.events_named(evidence, further)}",) if further else ()
    more = (f"and {len(found) - 4} more records",) if len(found) > 4 else ()
    return (*(event.message for event in found[1:4]), *more)


def _is_no_reading(message: str) -> bool:
    found = _INVALID.match(message)
    return found is not None and not abs(float(found["value"])) <= UNKNOWN_ABOVE  # NaN compares false


def _with_one_reader(evidence: Evidence) -> str:
    """Return the command that trains with one reader, or shows the counts of a run that had no more."""
    processes, threads = (evidence.setting(f"data.num_{kind}") for kind in ("workers", "threads"))
    fewer = [*(() if processes == 0 else fixes.workers(evidence, 0)), *(["data.num_threads=1"] if threads != 1 else [])]
    if fewer:
        return fixes.train_again(evidence, *fewer, name="one-reader")
    statement = "SELECT epoch, events_expected, events_seen, duplicates FROM epochs"
    return f'xectool diagnose query {fixes.quoted(evidence)} "{statement}"'


def _about(events: int) -> str:
    """Return a number that is an estimate where it is beyond those that are compared one by one."""
    return f"about {events}" if events > _COMPARED else str(events)


def audits(evidence: Evidence) -> list[tuple[int, int, int, int]]:
    """Return ``(epoch, expected, seen, duplicates)`` of each epoch that was counted; -1 where not counted."""
    counted = {
        epoch.epoch: (epoch.epoch, epoch.events_expected, epoch.events_seen, epoch.duplicates)
        for epoch in evidence.epochs
        if epoch.events_seen >= 0 and epoch.events_expected >= 0
    }
    for event in evidence.of("audit"):
        expected, seen = number(event.data.get("expected")), number(event.data.get("seen"))
        if expected == expected and seen == seen:
            epoch = whole(event.data.get("epoch"), event.epoch)
            counted[epoch] = (epoch, int(expected), int(seen), whole(event.data.get("duplicates"), -1))
    return [counted[epoch] for epoch in sorted(counted)]


def _left_out(evidence: Evidence) -> dict[int, int]:
    """Return how many quarantined events were left out of each epoch that was audited, which is said: not missing."""
    return {
        whole(event.data.get("epoch"), event.epoch): whole(event.data.get("quarantined"), 0)
        for event in evidence.of("audit")
    }


def _named_by_guards(evidence: Evidence) -> int:
    """Return how many events the guards left out of the run; an attempt that was given up handed its list on."""
    found = [event for event in (*evidence.events, *evidence.given_up) if event.kind == "quarantine"]
    totals = [number(event.data.get("total")) for event in found]
    listed = sum(len(identities(event.data.get("events"))) for event in found)
    return int(max([listed, *(value for value in totals if value == value)]))

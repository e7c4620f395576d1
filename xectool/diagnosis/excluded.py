"""Events that the configuration of a run leaves out, and how those that a diagnosis names are told to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from xectool.config.left_out import entries_left_out, leaving_out
from xectool.config.moved import moved_files, places_of
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import train_files
from xectool.diagnosis.evidence.incidents import identities
from xectool.diagnosis.evidence.left_out import attempt_of, data_settings, events_left_out, num_left_out_since
from xectool.errors import counted, in_shell, listed
from xectool.runlog.records import EventRecord

THEN: Final = "   # then train with --set "
OR: Final = "   # or leave out what is named: --set "
MOST_EVENTS: Final = 16  # in a line to paste; more that are bad are no single events

Identity = tuple[int, ...]


def told_mended(evidence: Evidence, events: Sequence[Identity], attempt: int, role: str = "train") -> str:
    """Return that the last attempt goes on without events that an earlier one named; empty where it does not.

    It leaves them out, or no longer reads their file.

    Args:
        evidence: The run.
        events: Identities ``(file_index, entry, run, event)``.
        attempt: The attempt that named them.
        role: Whose files they are of, ``train`` or ``val``.
    """
    last, entries = _goes_on(evidence, attempt), _by_file(evidence, events, role, attempt)
    unread = _no_longer_read(evidence, entries, role, attempt)
    rest = {file: found for file, found in entries.items() if file not in unread}
    if not last or not entries or (rest and not are_left_out(evidence, rest)):
        return ""
    if unread:
        also = "" if not rest else " and leaves out what else was bad (data.exclude)"
        return f"mended: attempt {last} no longer reads {listed(unread)}{also}"
    named = f": {fixes.events_named(evidence, events, attempt=attempt)}" if role == "train" else ""
    return f"mended: attempt {last} leaves {'it' if len(events) == 1 else 'them'} out (data.exclude){named}"


def told_left_out_since(evidence: Evidence, step: int, attempt: int) -> str:
    """Return that the last attempt goes on without events that were left out after a step which named none."""
    last, count = _goes_on(evidence, attempt), num_left_out_since(evidence, step, attempt)
    more = counted(count, "further event")
    return (
        f"mended: attempt {last} leaves {more} out (data.exclude), and it did not come back" if last and count else ""
    )


def _goes_on(evidence: Evidence, attempt: int) -> int:
    """Return the last attempt, where it has taken steps after an earlier one; else 0."""
    last = evidence.attempts[-1].number if evidence.attempts else 0
    return last if attempt < last and bool((evidence.steps.attempt == last).any()) else 0


def are_left_out(evidence: Evidence, entries: Mapping[str, set[int]]) -> bool:
    """Return whether the last attempt leaves out some entries of its files; False for none."""
    data = data_settings(evidence)
    return bool(entries) and not any(found.difference(entries_left_out(data, file)) for file, found in entries.items())


def is_counted_in_vain(evidence: Evidence, told: Mapping[str, Any]) -> bool:
    """Return whether all events of a count of the last start (``target_impossible``) are left out inside its epoch."""
    places = [tuple(place) for place in told.get("places") or () if isinstance(place, (list, tuple))]
    return len(places) == told.get("count") and are_left_out(evidence, _by_file(evidence, places, "train"))


def named_in(told: Iterable[EventRecord]) -> tuple[Identity, ...]:
    """Return the events that records name, each once."""
    return tuple(dict.fromkeys(row for record in told for row in identities(record.data.get("events"))))


def still_there(evidence: Evidence, told: Sequence[EventRecord], role: str = "train") -> tuple[list[EventRecord], str]:
    """Return the records of bad events that are not mended; where all are, these, and that they are.

    Args:
        evidence: The run.
        told: Records that name events of the run, one or more each.
        role: Whose files they are of, ``train`` or ``val``.
    """
    said = [told_mended(evidence, named_in([record]), attempt_of(evidence, record), role) for record in told]
    left = [record for record, mended in zip(told, said, strict=True) if not mended]
    if left or not told:
        return left, ""
    together = told_mended(evidence, named_in(told), attempt_of(evidence, told[0]), role)
    return list(told), together or said[0]


def blamed(evidence: Evidence, events: Sequence[Identity], attempt: int | None = None) -> tuple[tuple[str, int], ...]:
    """Return bad events as file and entry, for the line that leaves them out; none where they are no single ones.

    An event of a file that the last attempt does not read is not among them: the line would be refused.
    """
    entries = _by_file(evidence, events, "train", attempt) if len(events) <= MOST_EVENTS else {}
    now = train_files(evidence.manifest)
    return tuple((file, entry) for file, found in entries.items() if file in now for entry in sorted(found))


def blamed_in(evidence: Evidence, told: Sequence[EventRecord]) -> tuple[tuple[str, int], ...]:
    """Return the events that records name, as `blamed` does."""
    if len(named_in(told)) > MOST_EVENTS:
        return ()
    each = (blamed(evidence, named_in([record]), attempt_of(evidence, record)) for record in told)
    return tuple(dict.fromkeys(event for events in each for event in events))


def all_left_out(evidence: Evidence, causes: Iterable[Cause]) -> str:
    """Return the setting that leaves out the events that any cause blames; empty where none does."""
    events = dict.fromkeys(event for cause in causes for event in cause.blamed)
    return leaving_out(data_settings(evidence), *events) if events else ""


def with_all_left_out(evidence: Evidence, causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Return causes whose lines look at bad events, and leave out those of all causes: a list would undo another."""
    setting = in_shell(all_left_out(evidence, causes))
    return tuple(
        replace(cause, fix=f"{cause.fix}{THEN if not cause.fix.startswith('xectool train ') else OR}{setting}")
        if cause.blamed
        else cause
        for cause in causes
    )


def _by_file(
    evidence: Evidence, events: Sequence[Identity], role: str, attempt: int | None = None
) -> dict[str, set[int]]:
    """Return the entries of events by file, as the last attempt names it; nothing where the file of one is not known.

    The index of a file is that of the attempt that named the event; its files may have other places by now. One that
    is not read any more goes by another name only where the list of the run has the event there: training has
    compared them, and files of the same name are often other ones.
    """
    files, found = train_files(evidence.manifest, role, attempt), defaultdict[str, set[int]](set)
    now = train_files(evidence.manifest, role)
    names = dict(zip(places_of(now), now, strict=True))
    moved = moved_files(files, now) if files != now else {}
    listed_at = _listed(evidence) if moved else set()
    for row in events:
        if len(row) < 2 or not 0 <= row[0] < len(files):
            return {}
        name = files[row[0]]
        is_moved = (moved.get(name), row[1]) in listed_at
        found[moved[name] if is_moved else names.get(places_of([name])[0], name)].add(row[1])
    return found


def _no_longer_read(evidence: Evidence, entries: Mapping[str, set[int]], role: str, attempt: int) -> list[str]:
    """Return the files that the last attempt does not read, under another name neither.

    Where it reads one of the same name, training has compared the events that are in quarantine, and no others.
    """
    now, listed_at = train_files(evidence.manifest, role), _listed(evidence)
    moved = moved_files(train_files(evidence.manifest, role, attempt), now)
    return [
        file
        for file, found in entries.items()
        if file not in now and (file not in moved or all((file, entry) in listed_at for entry in found))
    ]


def _listed(evidence: Evidence) -> set[tuple[Any, Any]]:
    """Return file and entry of the events in the list of the run."""
    return {(event.get("file"), event.get("entry")) for event in events_left_out(evidence)}

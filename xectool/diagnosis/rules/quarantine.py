"""Events that a guard left out of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from xectool.diagnosis import fixes
from xectool.diagnosis.cases.nan import nan_cases
from xectool.diagnosis.cases.spike import spike_cases
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import identities
from xectool.diagnosis.evidence.left_out import attempt_of
from xectool.diagnosis.excluded import blamed_in, named_in, still_there
from xectool.findings import Severity
from xectool.runlog.records import EventRecord

LEFT_OUT: Final = "quarantine@"  # symptom; what was left out did no harm
_WORDS: Final[Mapping[str, str]] = {
    "XT-NAN-DATA": "numbers that no reading can have",
    "XT-NAN-LOSS": "a loss that is not finite",
    "XT-NAN-GRAD": "a gradient that is not finite",
    "XT-SPIKE-EVENT": "readings or a loss far from all others",
}
"""Why, where no guard of this rank said it."""


class Quarantine(DiagnosisRule):
    """Events that a guard left out of the run."""

    code = "XT-NAN-DATA"
    title = "events were put in quarantine"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report events in quarantine whose step no other rule speaks about."""
        explained = {step for case in (*nan_cases(evidence), *spike_cases(evidence)) for step in case.step_numbers}
        groups: dict[str, list[EventRecord]] = {}
        for event in evidence.of("quarantine"):
            if event.step not in explained:
                groups.setdefault(_code_of(_reason(event), self.code), []).append(event)
        for code, told in groups.items():
            yield self._of_one_cause(evidence, code, *still_there(evidence, told))

    def _of_one_cause(self, evidence: Evidence, code: str, events: list[EventRecord], mended: str) -> Cause:
        reason = _reason(events[0])
        why = _said_of(evidence, events[0]) or _WORDS.get(reason, reason)
        named = identities(events[0].data.get("events"))
        count = len(named_in(events))
        files = [str(path) for event in events for path in event.data.get("files") or ()]
        cause = Cause(
            code=code,
            confidence=0.9,
            problem=f"{_from(events)}: {_count(count)} left out of the run: {why}",
            evidence=(
                *([_named(evidence, events[0])] if len(named) > 1 or not why.startswith("entry ") else []),
                f"{len(events)} such step{'s' * (len(events) > 1)} in the record",
                *(_at_step(evidence, event) for event in events[1:4]),
                *([f"and at {len(events) - 4} more"] if len(events) > 4 else []),
            ),
            fix=_look_at(evidence, code, files),
            blamed=blamed_in(evidence, events),
            severity=Severity.WARNING,
            step=events[0].step,
            symptom=f"{LEFT_OUT}{events[0].step} {code}",
        )
        return cause.after(mended)


def _reason(event: EventRecord) -> str:
    return str(event.data.get("reason") or event.message)


def _from(events: list[EventRecord]) -> str:
    first, last = events[0].step, events[-1].step
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _look_at(evidence: Evidence, code: str, files: list[str]) -> str:
    """Return the command that says what is wrong with events that were left out: only some are not finite."""
    if code.startswith("XT-NAN"):
        return fixes.nan_batch(evidence)
    if files:
        return fixes.check_files(evidence.run_dir, files)
    statement = "SELECT step, message FROM events WHERE kind = 'quarantine'"
    return f'xectool diagnose query {fixes.quoted(evidence)} "{statement}"'


def _at_step(evidence: Evidence, event: EventRecord) -> str:
    said, events = _said_of(evidence, event), identities(event.data.get("events"))
    named = "" if said.startswith("entry ") and len(events) == 1 else _named(evidence, event)  # what is said names it
    return ": ".join(part for part in (f"step {event.step}", named, said) if part)


def _named(evidence: Evidence, event: EventRecord) -> str:
    events = identities(event.data.get("events"))
    return fixes.events_named(evidence, events, attempt=attempt_of(evidence, event))


def _said_of(evidence: Evidence, left_out: EventRecord) -> str:
    """Return what a guard said of the events that were left out; it tells all that cannot be of a step at once."""
    named = identities(left_out.data.get("events"))
    for told in (event for event in evidence.of("implausible_event") if event.step == left_out.step):
        all_told, reasons = identities(told.data.get("events")), told.data.get("reasons")
        places = [all_told.index(identity) for identity in named if identity in all_told]
        if not (named and all_told) or 0 in places:
            return told.message
        if places and isinstance(reasons, list) and len(reasons) == len(all_told):
            return str(reasons[places[0]])
    return ""


def _count(events: int) -> str:
    return f"{events} event{' was' if events == 1 else 's were'}"


def _code_of(reason: str, default: str) -> str:
    """Return the cause a quarantine gives as its reason."""
    if reason.startswith("XT-"):
        return reason.split()[0]
    return "XT-SPIKE-EVENT" if "spike" in reason.lower() else default

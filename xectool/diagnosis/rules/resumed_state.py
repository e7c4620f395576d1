"""What a resume goes on with, compared with what was saved at its step: weights, average, moments, schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xectool.checkpoint.names import LAST_NAME
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.incidents import number
from xectool.diagnosis.rules.signs import COPY, same_signs
from xectool.runlog.records import EventRecord

DAMAGED: Final = "XT-NAN-RESUME"
SAME: Final = 1e-3  # of a norm; what is copied to another device differs by its rounding
HALF: Final = 0.5  # moments that are smaller have begun again: they forget in ten and in a thousand steps
OTHER_RATE: Final = 1.02
_MOMENTS: Final = {"exp_avg": "first moments of the optimizer", "exp_avg_sq": "second moments of the optimizer"}


@dataclass(frozen=True)
class Change:
    """One part of the state that came back as another: what it is in words, and whether it is damage."""

    text: str
    damaged: bool = False


class ResumedState(DiagnosisRule):
    """A resume goes on with exactly what was saved at its step."""

    code = "XT-RESTART"
    title = "a resume goes on with another state than was saved"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the run was never resumed."""
        return "" if evidence.of("resume") else "the run was not resumed"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare each resume with what was saved before it."""
        saved = [event for event in (*evidence.events, *evidence.given_up) if event.kind == "checkpoint"]
        for event in evidence.of("resume"):
            before = sorted((item for item in saved if item.time <= event.time), key=lambda item: item.time)
            older = set_back(evidence.run_dir, event, before)
            if older:
                yield self._cause(evidence, event, [Change(older)])
            same_step = [item for item in before if item.step == event.step]
            if not same_step or _from_elsewhere(evidence.run_dir, event):
                continue
            first = _first_weights(evidence, event)
            found = min((list(changes(item.data, event.data, first)) for item in same_step[-2:]), key=len)
            if found:
                yield self._cause(evidence, event, found)

    def _cause(self, evidence: Evidence, event: EventRecord, found: list[Change]) -> Cause:
        damaged = any(change.damaged for change in found)
        return Cause(
            code=DAMAGED if damaged else self.code,
            confidence=0.96,
            problem=f"the resume at step {event.step} does not go on with what was saved: {found[0].text}",
            evidence=tuple(change.text for change in found),
            fix=fixes.continue_from_best(evidence, step=event.step),
            step=event.step + 1,
            symptom=f"resumed state@{event.step}",
        )


def set_back(run_dir: Path, event: EventRecord, before: list[EventRecord]) -> str:
    """Return that the file of the last checkpoint was an older one than the run had written under that name."""
    path = str(event.data.get("path") or "")
    if Path(path).name != LAST_NAME or not before or _from_elsewhere(run_dir, event):
        return ""
    if not event.step:  # checkpoint.reset_epoch counts from there, and no step was saved under 0
        return ""
    last = before[-1]
    if last.step <= event.step:
        return ""
    return f"{LAST_NAME} held step {event.step}, though step {last.step} had been saved there"


def changes(saved: Mapping[str, Any], loaded: Mapping[str, Any], first: object = None) -> Iterator[Change]:
    """Yield what differs between the marks of a checkpoint and those of the resume from it.

    Args:
        saved: What the checkpoint recorded.
        loaded: What the resume recorded.
        first: Marks of the weights the run began with, where they are known.
    """
    was, now = saved.get("marks"), loaded.get("marks")
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return
    yield from _weights(was, now, first, same_signs(saved.get("signs"), loaded.get("signs")))
    yield from _average(was, now, first)
    yield from _moments(was, now)
    yield from _rate(was, now)


def _weights(was: Mapping[str, Any], now: Mapping[str, Any], first: object, signs: float) -> Iterator[Change]:
    blocks = _differing(was.get("weights"), now.get("weights"))
    known = isinstance(first, Mapping) and all(block in first for block in blocks)
    if blocks and known and not set(blocks) & set(_differing(first, now.get("weights"))):
        yield Change(f"weights of {_listed(blocks)} are those the run began with")
    elif blocks:
        yield Change(f"weights of {_listed(blocks)} are other ones", damaged=signs >= COPY)


def _average(was: Mapping[str, Any], now: Mapping[str, Any], first: object) -> Iterator[Change]:
    blocks = _differing(was.get("average"), now.get("average"))
    seen, before = number(now.get("averaged")), number(was.get("averaged"))
    again = seen < before and bool(now.get("average")) and bool(was.get("average"))
    if again:
        yield Change(f"the average of the weights began again: it holds {seen:.0f} steps, saved were {before:.0f}")
    elif blocks:
        begun = [marks for marks in (now.get("weights"), first) if isinstance(marks, Mapping)]
        restarted = any(not _differing(marks, now.get("average")) for marks in begun)
        yield Change(f"averaged weights of {_listed(blocks)} are other ones", damaged=not restarted)


def _moments(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    """Yield moments that are other ones; those that begin again do so together, or the steps are out of proportion."""
    changed = {key: blocks for key in _MOMENTS if (blocks := _differing(was.get(key), now.get(key)))}
    less = {key: all(_is_less(was[key][name], now[key][name]) for name in names) for key, names in changed.items()}
    again = len(less) == len(_MOMENTS) and all(less.values())
    for key, blocks in changed.items():
        how = "began again" if again else "are smaller" if less[key] else "are other ones"
        yield Change(f"{_MOMENTS[key]} of {_listed(blocks)} {how}", damaged=not again)
    seen, before = number(now.get("updates")), number(was.get("updates"))
    if seen < before:
        yield Change(f"the optimizer began again: it counts {seen:.0f} updates, saved were {before:.0f}")


def _is_less(was: Any, now: Any) -> bool:
    """Return whether a block is less than half as large; one that is not finite is not."""
    return number(now[0]) < HALF * number(was[0])


def _rate(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    before, after = number(was.get("rate")), number(now.get("rate"))
    same = bool(was.get("rate_of")) and was.get("rate_of") == now.get("rate_of")
    if same and before > 0 and after > 0 and abs(math.log(after / before)) > math.log(OTHER_RATE):
        yield Change(f"the schedule is at another place: its next rate is {after:.3g}, saved was {before:.3g}")


def _differing(was: object, now: object) -> list[str]:
    """Return the blocks of two sets of marks that are not copies, of those that both have."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return []
    return [name for name in was if name in now and not _copied(was[name], now[name])]


def _copied(was: Any, now: Any) -> bool:
    saved, loaded = ([number(value) for value in mark] for mark in (was, now))
    if not all(map(math.isfinite, saved)):  # nothing to compare with
        return True
    size = max(abs(saved[0]), abs(loaded[0]))
    return math.isfinite(size) and all(abs(a - b) <= SAME * size for a, b in zip(saved, loaded, strict=True))


def _first_weights(evidence: Evidence, event: EventRecord) -> object:
    """Return the marks of the weights with which the run began that a resume goes on with."""
    begun = (*evidence.events, *evidence.given_up)
    starts = [item for item in begun if item.kind == "run_start" and item.step == 0 and item.time <= event.time]
    return max(starts, key=lambda item: item.time).data.get("marks") if starts else None


def _from_elsewhere(run_dir: Path, event: EventRecord) -> bool:
    """Return whether a resume took the checkpoint of another run; directories may have been moved since."""
    return Path(str(event.data.get("path") or "")).parent.name not in ("", run_dir.resolve().name)


def _listed(blocks: list[str]) -> str:
    return ", ".join(blocks[:3]) + (f" and {len(blocks) - 3} more" if len(blocks) > 3 else "")

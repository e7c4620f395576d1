"""The truth: in its unit, of these events, on the scale of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from xectool.config.tasks import TASK_WIDTHS
from xectool.detector.truth_ranges import likely_unit, told_never_filled
from xectool.diagnosis import fixes
from xectool.diagnosis.cause import Cause, DiagnosisRule
from xectool.diagnosis.evidence.evidence import Evidence
from xectool.diagnosis.evidence.files import train_files
from xectool.diagnosis.evidence.incidents import identities, mapping, number, whole
from xectool.diagnosis.excluded import blamed, is_counted_in_vain
from xectool.diagnosis.rules.data import SINGLE_EVENTS, file_of
from xectool.diagnosis.rules.truth_elsewhere import elsewhere
from xectool.errors import listed
from xectool.findings import Severity

TARGET_RANGE: Final = 1e3
"""Largest spread of a target inside the network, and one over the smallest: it should be 1. Energy in GeV has 0.013,
positions in cm have 24; seconds have 2e-9, which no loss tells from 0, and photons 1e5, which no weight reaches."""
WIDEST: Final[Mapping[str, float]] = {"angle": 180.0, "energy": 1.0, "timing": 1e-5, "uvwFI": 100.0, "angleVec": 1.0}
"""Spread of a truth, in its unit, that no event has: beams of less than 1 GeV, times of a trace, the size in cm."""
UNITS: Final[Mapping[str, str]] = {"angle": "deg", "energy": "GeV", "timing": "s", "uvwFI": "cm", "angleVec": "1"}
VALIDATED: Final = "validated unit"  # symptom; the network is trained on truth in its unit
FEWEST_MARKS: Final = 3
ALIKE: Final = 0.9  # of the impossible truths, where they are a mark
MOST_FAR: Final = 0.05  # of the events: as many as a run leaves out, beside SINGLE_EVENTS
CONSTANT_STD: Final = 1e-12  # less than this is the rounding of a truth that is the same in all events


class TargetScale(DiagnosisRule):
    """Targets spread about 1 inside the network."""

    code = "XT-TARGET-SCALE"
    title = "targets are not on the scale of the loss"

    def unseen(self, evidence: Evidence) -> str:
        """Return that the truth was not measured where it was not."""
        return "" if evidence.of("baseline") else "the spread of the truth was not recorded"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Compare the spread of each truth with the scale it was given."""
        baseline = evidence.last("baseline")
        known = baseline.data if baseline else {}
        spreads = known.get("target_std") or {}
        yield from self._in_another_unit(evidence, known)
        yield from self._validated_in_another_unit(evidence, known)
        marks = _marks(known, _num_train(evidence))
        shares = _far_shares(known, _num_train(evidence))
        yield from self._in_two_units(evidence, {task: share for task, share in shares.items() if task not in marks})
        found = {
            task: std / scale
            for task, recorded in spreads.items()
            if (std := number(recorded)) > CONSTANT_STD and (scale := _scale(evidence, task)) > 0
        }
        off = {task: spread for task, spread in found.items() if not 1 / TARGET_RANGE <= spread <= TARGET_RANGE}
        if not off:
            return
        settings = [f"tasks.{task}.{key}=auto" for task in off for key in ("scale", "shift")]
        yield Cause(
            code=self.code,
            confidence=0.93,
            problem="; ".join(
                f"{task}: the truth spreads {spread:.3g} inside the network, not about 1"
                for task, spread in off.items()
            ),
            evidence=tuple(f"tasks.{task}.scale {evidence.setting(f'tasks.{task}.scale')}" for task in off),
            fix=fixes.train_again(evidence, *settings, name="scaled"),
            severity=Severity.WARNING,
            step=1,
            symptom="target scale",
        )

    def _in_another_unit(self, evidence: Evidence, known: Mapping[str, Any]) -> Iterator[Cause]:
        """Yield the truths that no event of the detector can have, whatever scale makes the loss fit them."""
        spreads = {task: number(value) for task, value in (known.get("target_std") or {}).items()}
        found = {
            task: f"{task}: the truth spreads {spreads[task]:.3g} {UNITS[task]}, at most {limit:g} in this detector"
            for task, limit in WIDEST.items()
            if spreads.get(task, 0.0) > limit
        }
        for task, told in (known.get("target_impossible") or {}).items():
            if 0 < _count(told) <= max(1.0, MOST_FAR * _num_train(evidence)):
                found.pop(task, None)  # a single event, or a few of very many, make that spread
        mixed = {}
        for task, unit in (known.get("target_unit") or {}).items():
            if some := _some_files(evidence, known, task):
                mixed[task] = f"{task}: the truth seems to be in {unit.partition(' in ')[0]} in {some}"
            found.setdefault(task, f"{task}: the truth seems to be in {unit}, not in {UNITS.get(task, '1')}")
        found |= {task: f"{text}, not in {UNITS.get(task, '1')}" for task, text in mixed.items()}
        for task in _marks(known, _num_train(evidence)):
            found.pop(task, None)
        for task in elsewhere(evidence, "train"):
            found.pop(task, None)  # in another unit it would follow the light as well
        if found:
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem="; ".join(found.values())
                + (
                    ": the network is to learn both units as one"
                    if mixed.keys() >= found.keys()
                    else ": what is predicted is in that other unit, too"
                ),
                evidence=tuple(f"{task}: spread {spreads.get(task, math.nan):.3g}" for task in found),
                fix=_check_odd_files(evidence, known.get("target_unit_files"), list(found), "train"),
                severity=Severity.WARNING,
                step=1,
                symptom="target unit",
            )

    def _validated_in_another_unit(self, evidence: Evidence, known: Mapping[str, Any]) -> Iterator[Cause]:
        """Yield the truths that are in another unit in validation alone: the network learns the right one."""
        units = {
            task: f"{task}: the truth seems to be in {unit}, not in {UNITS.get(task, '1')}"
            for task, unit in (known.get("val_target_unit") or {}).items()
            if task not in elsewhere(evidence, "val")
        }
        if units:
            yield Cause(
                code=self.code,
                confidence=0.9,
                problem="; ".join(units.values())
                + ": that of the training files is in its unit, and so are predictions",
                evidence=("val/loss, the best epoch and the metrics compare numbers of two units",),
                fix=_check_odd_files(evidence, known.get("val_target_unit_files"), list(units), "val"),
                severity=Severity.WARNING,
                step=1,
                symptom=VALIDATED,
            )

    def _in_two_units(self, evidence: Evidence, shares: Mapping[str, Any]) -> Iterator[Cause]:
        """Yield the truths that are far from all others in more events than may be left out: those of whole files."""
        num_train = _num_train(evidence)
        most = max(MOST_FAR, SINGLE_EVENTS / num_train if num_train > 0 else 0.0)
        far = {task: share for task, known in shares.items() if (share := number(known)) > most}
        if far:
            yield Cause(
                code=self.code,
                confidence=0.92,
                problem="; ".join(f"{task}: {share:.0%} of the truths are far" for task, share in far.items())
                + " from all others: some files are in another unit",
                evidence=("beyond 200 robust standard deviations from the median of all training events",),
                fix=fixes.check_named_files(evidence, "train"),
                severity=Severity.WARNING,
                step=1,
                symptom="two units",
            )


class ImpossibleTruth(DiagnosisRule):
    """The truth of each event lies in the detector and in its beam."""

    code = "XT-SPIKE-EVENT"
    title = "events have a truth that no event can have"

    def look(self, evidence: Evidence) -> Iterator[Cause]:
        """Report single such events, marks, and truths of 0; where many differ, the truth is in another unit."""
        baseline, num_train = evidence.last("baseline"), _num_train(evidence)
        known = baseline.data if baseline else {}
        marks, told = _marks(known, num_train), known.get("target_impossible") or {}
        found = {task: one for task, one in told.items() if not is_counted_in_vain(evidence, one)}
        most = min(max(SINGLE_EVENTS, MOST_FAR * num_train), num_train / 2) if num_train > 0 else 0.0
        single = {task: told for task, told in found.items() if 0 < number(told.get("count")) <= most}
        single = marks | {task: told for task, told in single.items() if task not in marks}
        zeros: Mapping[str, Any] = known.get("target_never_filled") or {}
        empty = {task: one for task, one in zeros.items() if not is_counted_in_vain(evidence, one)}
        shown = [*single.items(), *empty.items()]
        if not shown or not num_train > 0:
            return
        events = [place for task, told in shown if task not in marks or task in empty for place in _places(told)]
        problems = [_told_impossible(evidence, *one, is_mark=one[0] in marks) for one in single.items()]
        problems += [told_never_filled(task, _count(told), int(num_train)) for task, told in empty.items()]
        yield Cause(
            code=self.code,
            confidence=0.94 if marks or any(_count(told) >= FEWEST_MARKS for told in empty.values()) else 0.8,
            problem="; ".join(problems),
            evidence=(
                *(f"{name}: {_count(told)} of {num_train:g} events" for name, told in single.items()),
                *(
                    f"{name} is 0 first in entry {told.get('entry')} of {file_of(evidence, told)}"
                    for name, told in empty.items()
                ),
            ),
            fix=fixes.check_files(evidence.run_dir, [file_of(evidence, told) for _, told in shown]),
            blamed=blamed(evidence, events),
            severity=Severity.WARNING,
            step=1,
            symptom="impossible truth",
        )


def _told_impossible(evidence: Evidence, task: str, told: Mapping[str, Any], *, is_mark: bool) -> str:
    value = f"{number(told.get('value')):.4g} {UNITS.get(task, '')}".strip()
    entry = f"entry {told.get('entry')} of {file_of(evidence, told)}"
    problem = f"{task}: {entry} has a truth of {value}, which no event can have"
    if not is_mark:
        return problem
    others = int(number(told.get("same"))) - 1
    return f"{problem}, as {others} others: a mark of unknown truth that is neither NaN nor 1e10"


def _places(told: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return file and entry of all events of a count; none where not all of them are told."""
    places = [identity for identity in identities(told.get("places")) if len(identity) == 2]
    first = [(whole(told.get("file"), -1), whole(told.get("entry"), -1))]
    found = places or first
    return list(found) if len(found) == _count(told) else []


def _count(told: Mapping[str, Any]) -> int:
    return int(number(told.get("count")))


def _far_shares(known: Mapping[str, Any], num_train: float) -> dict[str, float]:
    """Return which share of the truths of each task is far from all others, without those that were never filled."""
    empty = {
        task: number(told.get("count")) / num_train for task, told in (known.get("target_never_filled") or {}).items()
    }
    return {task: number(share) - empty.get(task, 0.0) for task, share in (known.get("target_far") or {}).items()}


def _marks(known: Mapping[str, Any], num_train: float) -> dict[str, Any]:
    """Return the tasks of which several events have one number as their truth that stands for an unknown one.

    Nearly all that is impossible is that number, it is in the smaller part of the events, and no energy or time of
    another unit: those of one line, or of few digits, are alike as well.
    """
    impossible: Mapping[str, Any] = known.get("target_impossible") or {}
    found = {}
    for task, told in impossible.items():
        count, value = number(told.get("count")), number(told.get("value"))
        is_line = TASK_WIDTHS.get(task) == 1 and value > 0 and likely_unit(task, value) != ""
        if number(told.get("same")) >= max(FEWEST_MARKS, ALIKE * count) and not count > num_train / 2 and not is_line:
            found[task] = told
    return found


def _some_files(evidence: Evidence, known: Mapping[str, Any], task: str) -> str:
    """Return which training files are in another unit, in words; empty where all are or it was not told of files."""
    files, num_files = mapping(known.get("target_unit_files")).get(task), len(train_files(evidence.manifest))
    if not isinstance(files, list) or not 0 < len(files) < num_files:
        return ""
    return f"{len(files)} of {num_files} files ({listed(map(str, files))})"


def _check_odd_files(evidence: Evidence, told: object, tasks: Sequence[str], sample: str) -> str:
    """Return the command that judges the files in another unit; all of their sample where none of them was told."""
    files = [mapping(told).get(task) for task in tasks]
    odd = [str(path) for paths in files if isinstance(paths, list) for path in paths]
    every = all(files) and odd
    return fixes.check_files(evidence.run_dir, odd) if every else fixes.check_named_files(evidence, sample)


def _num_train(evidence: Evidence) -> float:
    started = evidence.last("run_start")
    return number(started.data.get("num_train")) if started else math.nan


def _scale(evidence: Evidence, task: str) -> float:
    """Return the scale of a task, 1 without one; NaN for what is learned as a logarithm."""
    known = {key: evidence.setting(f"tasks.{task}.{key}") for key in ("enabled", "scale", "log_transform")}
    if not known["enabled"] or known["log_transform"]:
        return math.nan
    return 1.0 if known["scale"] is None else number(known["scale"])

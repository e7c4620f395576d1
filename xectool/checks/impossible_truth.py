"""Truths that no event can have: one finding a task, with the setting that leaves all such events of a run out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xectool.checks.data_facts import DataFacts, event_place
from xectool.checks.sample import Sample
from xectool.checks.targets import TargetScan
from xectool.config.guards import GuardsConfig
from xectool.config.impossible_room import room_for_impossible
from xectool.config.left_out import leaving_out
from xectool.config.root import RegressorConfig
from xectool.config.truth_mends import MOST_NAMED, excluding, possible
from xectool.detector.truth_ranges import other_unit, told_impossible
from xectool.errors import in_shell
from xectool.findings import Finding, Severity
from xectool.findings.mends import Mend


def impossible_truths(code: str, facts: DataFacts, task: str, scan: TargetScan) -> Iterator[Finding]:
    """Yield what is told of a task with such truths: an error where they are trained on, too many to be left out.

    Those of validation, and of a task that is not trained, teach nothing.
    """
    if not scan.impossible:
        return
    trained = _trained(facts)
    first = scan.first_impossible
    assert first is not None
    paths = dict.fromkeys(path for path, _ in scan.impossible)
    exclude = leaving_out_odd(facts) if task in trained else None
    is_learnt = task in trained and facts.is_training and len(_events(facts.sample, trained)) > _room(facts)
    yield Finding(
        code,
        Severity.ERROR if is_learnt else Severity.WARNING,
        told_impossible(task, first.value, sum(len(entries) for _, entries in scan.impossible)),
        f"{event_place(first, scan.branch)} component {first.sensor}",
        fix=excluding(exclude),
        mends=tuple(Mend(*facts.place_of(path), scan.branch, possible(task)) for path in paths),
    )


def _trained(facts: DataFacts) -> set[str]:
    """Return the tasks that are trained; all of them where no configuration says which, none of files compared with."""
    config = facts.config
    if facts.is_compared:
        return set()
    return set(config.tasks.enabled() if isinstance(config, RegressorConfig) else facts.settings.data.truth_branches)


def _room(facts: DataFacts) -> int:
    guards = GuardsConfig() if facts.config is None else facts.config.guards
    return room_for_impossible(guards, facts.sharing.num_events if facts.sharing else facts.sample.num_events)


def _events(sample: Sample, tasks: Iterable[str]) -> dict[tuple[str, int], None]:
    """Return file and entry of the events with a truth that cannot be of some tasks; another unit is told instead."""
    scans = (scan for task, scan in sample.targets.items() if task in tasks and not in_other_unit(task, scan))
    return {(path, int(entry)): None for scan in scans for path, entries in scan.impossible for entry in entries}


def leaving_out_odd(facts: DataFacts) -> str:
    """Return the setting without the truths that cannot be or were never filled, of all samples of a run.

    A second setting would undo the first. Empty where they are too many to name; the never filled alone are left to it
    where only they are.
    """
    samples, trained = facts.together or (facts.sample,), _trained(facts)
    beyond = [event for sample in samples for event in _events(sample, trained)]
    empty = [event for sample in samples for event in _never_filled(sample, trained)]
    events = dict.fromkeys((*beyond, *(empty if len(empty) <= MOST_NAMED else ())))
    return in_shell(leaving_out(facts.settings.data, *events)) if 0 < len(events) <= MOST_NAMED else ""


def _never_filled(sample: Sample, tasks: Iterable[str]) -> list[tuple[str, int]]:
    scans = (scan for task, scan in sample.targets.items() if task in tasks)
    return [(path, int(entry)) for scan in scans for path, entries in scan.zeros for entry in entries]


def in_other_unit(task: str, scan: TargetScan) -> bool:
    """Return whether the truth of a task is in another unit, in one file or all; it is told of as such (DAT-16)."""
    return bool(scan.odd_units or other_unit(task, scan.kept.rows))

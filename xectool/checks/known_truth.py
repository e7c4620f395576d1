"""How much of a truth is known: none, which training refuses, or numbers that are none in some of the events."""

from __future__ import annotations

from collections.abc import Iterator

from xectool.checks.data_facts import DataFacts, event_place
from xectool.checks.facts import arguments
from xectool.checks.targets import TargetScan
from xectool.config.root import RegressorConfig
from xectool.config.truth_mends import BY_HAND
from xectool.detector.truth_ranges import told_no_number
from xectool.errors import counted
from xectool.findings import Finding, Severity
from xectool.findings.mends import Change, Mend


def may_be_trained(facts: DataFacts, task: str) -> bool:
    """Return whether a task is trained, or no configuration says otherwise; no run reads files compared with."""
    config = facts.config
    named = config is None or (isinstance(config, RegressorConfig) and task in config.tasks.enabled())
    return named and not facts.is_compared


def truth_not_there(code: str, facts: DataFacts) -> Iterator[Finding]:
    """Yield the first file to compare with that lacks the truth of tasks which are trained: none can validate on it."""
    tasks = facts.config.tasks.enabled() if isinstance(facts.config, RegressorConfig) else {}
    named = {facts.settings.data.truth_branches[task]: f"the truth of task {task}" for task in tasks}
    for file in (file for file in facts.sample.files if file.opened):
        lacking = [branch for branch in named if branch not in {*file.names, *file.branches}]
        if lacking:
            told = ", ".join(f"'{branch}', {named[branch]}" for branch in lacking)
            problem = f"'{file.path}' has no branch {told}: no training with this configuration can validate on it"
            fix = f"xectool check-data {arguments(file.path, file.tree)}   # as a training reads it"
            yield Finding(code, Severity.WARNING, problem, f"{file.where} branch {lacking[0]}", fix=fix)
            return


def known_truth_findings(code: str, facts: DataFacts, task: str, scan: TargetScan) -> Iterator[Finding]:
    """Yield that no truth of a task is known, or in how many events it is no number or marked as unknown."""
    where, total = f"{facts.whole} branch {scan.branch}", scan.known + scan.unknown + scan.nonfinite
    zeros = sum(count for _, count in scan.unfilled)
    if total and scan.known == zeros:
        yield _none_known(code, facts, task, scan, zeros)
        return
    if scan.nonfinite:
        yield _no_number(code, facts, task, scan, total)
    if scan.unknown:
        share = f"(1e10) in {scan.unknown} of {counted(total, 'event')}"
        yield Finding(code, Severity.INFO, f"the truth of task {task} is unknown {share}", where)


def _none_known(code: str, facts: DataFacts, task: str, scan: TargetScan, zeros: int) -> Finding:
    """Return the error where training refuses the files, whatever stands in place of the truth."""
    marks = (("NaN, infinite or beyond 1e10", scan.nonfinite), ("1e10", scan.unknown), ("never filled, 0,", zeros))
    told = ", ".join(f"{mark} in {count}" for mark, count in marks if count)
    problem = f"no event has a known truth of task {task} ({told})"
    where = f"{facts.whole} branch {scan.branch}"
    if not may_be_trained(facts, task):
        return Finding(code, Severity.INFO, f"{problem}, which is not trained", where)
    if not facts.is_training:
        fix = f"other files, or --set tasks.{task}.enabled=false"
        return Finding(code, Severity.WARNING, f"{problem}: nothing of it is validated", where, fix=fix)
    if facts.config is None:
        fix = f"train without this task, tasks.{task}.enabled: false, or write its truth"
        return Finding(code, Severity.WARNING, f"{problem}: a training of it refuses these files", where, fix=fix)
    fix = f"--set tasks.{task}.enabled=false"
    return Finding(code, Severity.ERROR, f"{problem}: training refuses these files", where, fix=fix)


def _no_number(code: str, facts: DataFacts, task: str, scan: TargetScan, total: int) -> Finding:
    """Return the warning of numbers that are none; an error where they are most of what is not marked as unknown."""
    shown = tuple(f"{event_place(cell, scan.branch)} [{cell.sensor}]: {cell.value}" for cell in scan.first)
    is_trained = may_be_trained(facts, task)
    what = "; training warns, and leaves the events out of the task's loss" if is_trained and facts.is_training else ""
    mends = tuple(Mend(*facts.place_of(path), scan.branch, Change(is_finite=True)) for path in scan.odd_files)
    is_most = scan.nonfinite > scan.known and bool(what)
    severity = Severity.ERROR if is_most else Severity.WARNING
    problem = told_no_number(task, scan.nonfinite, total) + what
    return Finding(code, severity, problem, event_place(scan.first[0], scan.branch), shown, BY_HAND, mends=mends)

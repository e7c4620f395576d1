"""What ``config check --deep`` tells of units and constants in its first files, in the words of `check-data`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from xectool.checks.data_facts import VALIDATION, DataFacts
from xectool.checks.running import Inspection, inspect_sample
from xectool.checks.sample import ScanSettings
from xectool.checks.target_rules import TruthIsSound
from xectool.checks.value_rules import NormalizedTimesFit, ReadingsAreNumbers
from xectool.config.inputs import is_remote, present_inputs
from xectool.config.load import LoadedConfig
from xectool.config.root import RegressorConfig
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Report, Severity
from xectool.rules import run_rules

_FILES: Final = 3  # of training, and of validation
_EVENTS: Final = 200  # of each


def unit_findings(loaded: LoadedConfig) -> Report:
    """Return which branches of the first files are in another unit; nothing of urls, or of what cannot be read.

    Without tasks no truth is looked at. Where there are more files, the line to paste is the check of all of them.
    """
    config = loaded.config
    trained = [path for path in present_inputs(config.data.train_path) if not is_remote(path)]
    validated = [path for path in present_inputs(config.data.val_path) if not (is_remote(path) or path in trained)]
    is_regressor = isinstance(config, RegressorConfig)
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    settings = ScanSettings(config.data, config.normalization, tasks, _EVENTS, truth=is_regressor)
    samples = [inspect_sample(paths[:_FILES], Inspection(settings))[0] for paths in (trained, validated)]
    found = list[Finding]()
    for facts in (DataFacts(settings, sample, config, together=tuple(samples)) for sample in samples if sample.files):
        title = "" if facts.is_training else f"{VALIDATION}: "
        report = run_rules((ReadingsAreNumbers(), NormalizedTimesFit(), TruthIsSound()), facts).report
        of_constant = _of_constant(report, facts, len(trained) if facts.is_training else len(validated))
        of_units = [item for item in report if item.other_unit]
        found += [replace(item, problem=f"{title}{item.problem}") for item in (*of_units, *of_constant)]
    if max(len(trained), len(validated)) > _FILES:
        named = config.data.train_path
        files = " ".join(map(in_shell, [named] if isinstance(named, str) else named))
        line = f"xectool check-data {files} --config {in_shell(loaded.path)}   # gives the line that mends all files"
        found = [replace(item, fix=line, mends=()) for item in found]
    return Report(tuple(found))


def _of_constant(report: Iterable[Finding], facts: DataFacts, num_files: int) -> Iterator[Finding]:
    """Yield which truths training refuses as the same in all events; a warning where not all were looked at."""
    ends = tuple(f" branch {scan.branch}" for scan in facts.sample.targets.values() if scan.is_constant)
    is_whole = num_files <= _FILES and facts.sample.scanned == facts.sample.num_events
    for item in report:
        if item.severity is Severity.ERROR and not item.other_unit and item.where.endswith(ends):
            looked = "" if is_whole else f" ({counted(facts.sample.scanned, 'event')} looked at)"
            severity = Severity.ERROR if is_whole else Severity.WARNING
            yield replace(item, severity=severity, problem=f"{item.problem}{looked}")

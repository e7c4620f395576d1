"""The result of ``check_data``: what each file holds and lacks, and one verdict on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xectool.checks.data_facts import DataFacts, settings_line
from xectool.checks.facts import FileFacts, arguments
from xectool.checks.file_rules import LACKING
from xectool.checks.sharing import Sharing
from xectool.checks.similarity import Likeness
from xectool.checks.spread import NormalizedRow, RawRow, fits
from xectool.checks.target_rules import enabled_tasks
from xectool.checks.targets import scaled_error, typical_error
from xectool.checks.truth_guesses import partly_there
from xectool.config.inputs import is_remote
from xectool.engine.check_lines import Told
from xectool.errors import counted
from xectool.findings import Finding, Severity
from xectool.rootio.recorded import sidecar
from xectool.rules import RuleRun

_SHOWN = 3
_DAMAGED = "xectool explain XT-DATA-DAMAGED"
_NOT_READ = "or take it out of the list"  # end of the fix of a file that cannot be read; odd numbers in it can be


@dataclass(frozen=True)
class FileChecked:
    """One file.

    Attributes:
        path: The file.
        tree: The tree that was asked for.
        events: Its entries.
        branches: Type of each branch.
        problems: What is wrong with it.
        kind: ``TTree``, ``RNTuple``, or empty where no tree could be opened.
        size_bytes: Its size.
        compression: Bytes after decompression by bytes in the file; 0 where it is not known.
        events_a_basket: Largest number of events in one basket of the photon branch.
    """

    path: str
    tree: str
    events: int
    branches: Mapping[str, str]
    problems: tuple[Mapping[str, str], ...]
    kind: str = ""
    size_bytes: int = 0
    compression: float = 0.0
    events_a_basket: int = 0


@dataclass(frozen=True)
class DataChecked:
    """What was found out about a sample.

    Attributes:
        files: Every file.
        checks_run: Codes of the checks that were made.
        checks_skipped: Codes of those that had nothing to go on, and why.
        events: Entries of all files.
        events_scanned: Events whose values were read.
        events_per_s: Events read and looked at in a second.
        complete: Whether the values of every event were read.
        verdict: One sentence.
        why: Reasons for it.
        next: A line to paste.
        raw: Table of raw readings.
        normalized: Table of normalised readings, all and by face.
        normalization: Whether the constants fit, and options that set better ones.
        sensors: Sensors in each state, and those that are not good by name of the state.
        targets: Typical error and baseline of each task.
        likeness: Comparison with the other sample.
        sharing: Who reads what.
        memory_bytes: Estimated host memory of a training by term.
        disk_bytes: Estimated disk of a run by kind.
        plots: Files that were drawn.
        digests: Hash files that were written.
        findings: Everything noticed.
    """

    files: tuple[FileChecked, ...]
    checks_run: tuple[str, ...]
    checks_skipped: Mapping[str, str]
    events: int
    events_scanned: int
    events_per_s: float
    complete: bool
    verdict: str
    why: tuple[str, ...]
    next: str
    raw: tuple[RawRow, ...]
    normalized: tuple[NormalizedRow, ...]
    normalization: Mapping[str, Any]
    sensors: Mapping[str, Any]
    targets: Mapping[str, Mapping[str, float]]
    likeness: tuple[Likeness, ...]
    sharing: Sharing | None
    memory_bytes: Mapping[str, float]
    disk_bytes: Mapping[str, float]
    plots: tuple[str, ...]
    digests: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def is_bad(self) -> bool:
        """Whether the files should not be trained on."""
        return any(found.severity is Severity.ERROR for found in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the result without its findings, which have a place of their own in a document."""
        return {name: value for name, value in self.__dict__.items() if name != "findings"}


def summarised(
    facts: DataFacts, ran: RuleRun, told: Told, *, digests: Sequence[Path], plots: Sequence[Path]
) -> DataChecked:
    """Return the result of an inspection and of its rules."""
    ordered = sorted(ran.report, key=lambda found: _SEVERITIES.index(found.severity))
    findings = told.converting(replace(found, fix=_in_full(found.fix, told)) for found in ordered)
    sample = facts.sample
    verdict, why, following = _verdict(facts, findings, told)
    health, skipped = facts.health, _skipped(facts)
    return DataChecked(
        files=tuple(_file(file, facts, findings) for file in sample.files),
        checks_run=tuple(rule.code for rule in _checks() if rule.name in ran.ran and rule.code not in skipped),
        checks_skipped=skipped,
        events=sample.num_events,
        events_scanned=sample.scanned,
        events_per_s=sample.scanned / sample.seconds if sample.seconds else 0.0,
        complete=sample.scanned == sample.num_events,
        verdict=verdict,
        why=why,
        next=told.again(following),
        raw=tuple(facts.raw),
        normalized=tuple(facts.normalized),
        normalization={"fits": fits(facts.normalized), "suggested": settings_line(facts.suggested)},
        sensors={"events": health.events, **health.counts(), "listed": {name: health.of(name) for name in _ODD_STATES}},
        targets=_targets(facts),
        likeness=tuple(facts.likeness),
        sharing=facts.sharing,
        memory_bytes=facts.host_memory(facts.config) if facts.config is not None else {},
        disk_bytes=facts.disk_needed_bytes,
        plots=tuple(map(str, plots)),
        digests=tuple(map(str, digests)),
        findings=findings,
    )


def _in_full(fix: str, told: Told) -> str:
    """Return a fix whose check has all that was told, also where it is the second command of a line."""
    before, joint, check = fix.rpartition(" && xectool ")
    return f"{before} && {told.again(f'xectool {check}')}" if joint else told.again(fix)


_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_ODD_STATES = ("dead", "constant", "hot", "noisy")


def _checks() -> tuple[Any, ...]:
    from xectool.checks.catalogue import DATA_CHECKS

    return DATA_CHECKS


def _skipped(facts: DataFacts) -> dict[str, str]:
    skipped: dict[str, str] = {}
    if facts.config is None:
        skipped |= dict.fromkeys(("DAT-15", "DAT-17", "DAT-18", "DAT-23", "DAT-24"), "needs --config")
    if facts.other is None:
        skipped |= dict.fromkeys(("DAT-20", "DAT-22"), "needs --against or the validation files of --config")
    return skipped


def _file(file: FileFacts, facts: DataFacts, findings: Sequence[Finding]) -> FileChecked:
    mine = [found for found in findings if file.is_named_in(found.where) and found.severity is not Severity.INFO]
    problems = tuple(
        {"code": found.code, "severity": found.severity.value, "problem": found.problem, "where": found.where}
        for found in mine
    )
    stored = sum(branch.stored_bytes for branch in file.branches.values())
    raw = sum(branch.raw_bytes for branch in file.branches.values())
    photons = file.branches.get(facts.settings.data.npho_branch)
    largest = int((photons.units.stop - photons.units.start).max()) if photons and len(photons.units) else 0
    return FileChecked(
        file.path, file.tree, file.num_entries, file.without_units(), problems, file.kind, file.size_bytes,
        raw / stored if stored else 0.0, largest,
    )  # fmt: skip


def _targets(facts: DataFacts) -> dict[str, dict[str, float]]:
    enabled = enabled_tasks(facts)
    found = {}
    for task, scan in facts.sample.targets.items():
        rows = scan.kept.rows
        if not len(rows):
            continue
        found[task] = {
            "known": float(scan.known),
            "typical_error": typical_error(rows),
            "baseline_l1": float(np.abs(rows - np.median(rows, axis=0)).mean()),
            "baseline_mse": float(rows.var(axis=0).mean()),
        }
        if task in enabled:
            found[task] |= {"scale": scaled_error(enabled[task], rows)[0], "loss_beta": enabled[task].loss_beta}
    return found


def _verdict(facts: DataFacts, findings: Sequence[Finding], told: Told) -> tuple[str, tuple[str, ...], str]:
    errors = [found for found in findings if found.severity is Severity.ERROR]
    verdicts = [verdict for sample in (facts.sample, facts.other) if sample for verdict in sample.verdicts.values()]
    optional = {trouble.where for verdict in verdicts for trouble in verdict.unnamed}
    optional |= partly_there(facts.sample.guesses, [*facts.sample.files, *(facts.other.files if facts.other else ())])
    warnings = [found for found in findings if found.severity is Severity.WARNING]
    optional |= {found.where for found in warnings if found.code == "DAT-04" and found.problem.endswith(LACKING)}
    warnings.sort(key=lambda found: found.where in optional)  # what nothing can be done about is told last
    num_files, sample = len(facts.sample.files), facts.sample
    looked = f"{counted(num_files, 'file')}, {counted(sample.num_events, 'event')}, values of {sample.scanned} read"
    why = tuple(f"{found.code}: {found.problem}" for found in (*errors, *warnings)[:_SHOWN])
    reach = (*_reach(sample.files), *_without_truth(facts))
    if errors:
        more = (f"and {counted(len(errors) - _SHOWN, 'further error')}",) if len(errors) > _SHOWN else ()
        verdict = f"do not train on this: {counted(len(errors), 'error')} in {looked}"
        return verdict, why + more, _of_damage(errors) or told.first_step(errors)
    first = sample.files[0]
    name = arguments(first.path, first.tree) if num_files == 1 else told.inputs()
    idle = {task for task, scan in sample.targets.items() if scan.is_constant}
    has_truth = facts.config is not None or any(scan.known for scan in sample.targets.values())
    after = told.following(name, not _reach(sample.files), idle, has_truth)
    if warnings:
        return (
            f"usable with care: {counted(len(warnings), 'warning')} in {looked}",
            why + reach,
            told.first_step(warnings, after) if warnings[0].where not in optional else after,
        )
    every = _read(sample.scanned, sample.num_events, told.deep)
    return (
        f"good: {looked}",
        (f"no check found more than notes; {every}", *reach),
        after,
    )


def _of_damage(errors: Sequence[Finding]) -> str:
    """Return the command that explains damage, with what to do with the first such file: no line can write it again."""
    damaged = (of for of in errors if _DAMAGED in of.evidence and of.fix.endswith(_NOT_READ))
    return next((f"{_DAMAGED}   # {found.where.partition(' branch ')[0]}: {found.fix}" for found in damaged), "")


def _without_truth(facts: DataFacts) -> tuple[str, ...]:
    """Return of which tasks no truth was looked at, where no configuration, usual name or guess says which it is."""
    sample, data = facts.sample, facts.settings.data
    guesses = [guess for of_file in sample.guesses.values() for guess in of_file.items()]
    there = {name for file in sample.files for name in (*file.names, *file.branches)}
    told = {*there, *(data.truth_branches[task] for task, _ in guesses)}
    lacking = [name for name in dict.fromkeys(data.truth_branches.values()) if name not in told]
    if facts.config is not None or not lacking or not sample.scanned:
        return ()
    read = {value for key, value in vars(data).items() if key.endswith("_branch")} | {*data.truth_branches.values()}
    read |= {guess.branch for _, guess in guesses}
    rest = [name for name in dict.fromkeys(name for file in sample.files for name in file.branches) if name not in read]
    unread = f"; not read: {', '.join(rest[:_SHOWN])}{', ...' if rest[_SHOWN:] else ''}" if rest else ""
    some = "no truth was" if not sample.targets and not guesses else "not every truth was"
    verb = "are" if lacking[1:] else "is"
    absent = f"{some} looked at: {', '.join(lacking)} {verb} not there{unread}"
    return (f"{absent} (--config CONFIG, or --set data.truth_branches.TASK=NAME)",)


def _read(scanned: int, num_events: int, deep: bool) -> str:
    """Return how much of the files was read."""
    if deep:
        return "every basket was read"
    if scanned >= num_events:
        return "the values of all events were read, of the branches that are checked; --deep reads the others too"
    return "the baskets that were not sampled are unread (--deep reads all)"


def _reach(files: Sequence[FileFacts]) -> tuple[str, ...]:
    """Say what no reading can find, where there are no hashes to compare with."""
    bare = [file for file in files if file.opened and not is_remote(file.path) and not sidecar(file.path).is_file()]
    if not bare:
        return ()
    which = "the file has" if len(files) == 1 else f"{len(bare)} of {len(files)} files have"
    return (
        f"{which} no recorded hashes (--write-digest): without them a flipped bit in a plain or ZSTD basket or page is "
        "found only where it leaves a number that no sensor delivers",
    )

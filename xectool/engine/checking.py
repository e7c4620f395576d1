"""``check_data``: whether data files are whole, hold what a training needs, and suit its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from xectool.checks.catalogue import DATA_CHECKS, VALUE_CHECKS
from xectool.checks.data_facts import VALIDATION, DataFacts
from xectool.checks.file_rules import FILE_RULES
from xectool.checks.known_truth import truth_not_there
from xectool.checks.running import Inspection, Progress, Silent, inspect_sample, repeated_events, shared_events
from xectool.checks.sample import EVENTS_A_FILE, Sample, ScanSettings
from xectool.checks.sandbox import TIME_LIMIT_S
from xectool.checks.unit_mends import time_mends
from xectool.config.inputs import Place, expand_inputs, place_of, present_inputs, split_tree
from xectool.config.load import LoadedConfig, config_from_overrides, load_config, read_config
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.rules.path import network_rules, validation_rules
from xectool.config.truth_mends import BY_HAND
from xectool.engine.check_lines import Told
from xectool.engine.check_use import look_at_use
from xectool.engine.data_report import DataChecked, summarised
from xectool.engine.output_places import require_folder
from xectool.engine.proposed_names import EVENTS_FOR_UNITS, UNIT_RULES, ByNames, with_proposed
from xectool.engine.sensor_map import draw_plots
from xectool.engine.written_files import paths_of
from xectool.errors import DataFileError, UsageError, in_shell
from xectool.findings import Finding, Report, Severity
from xectool.findings.mends import Mend
from xectool.rules import run_rules
from xectool.rules.plugins import plugin_rules


@dataclass(frozen=True)
class CheckOptions:
    """What is checked beside the structure of the files.

    Attributes:
        config: Configuration whose branches, normalisation, tasks and reading are checked too.
        overrides: ``section.key=value`` strings; without a configuration, names of branches and constants.
        deep: Read every basket, and the values of every event.
        max_events: Events whose values are read, over all files; default 10 000 a file, all with ``deep``.
        plots: Folder for the sensor map and the histograms.
        against: Another sample to compare with; default: the validation files of the configuration.
        write_digest: Write hashes beside sound files.
        time_limit_s: Longest time for the metadata of one file.
    """

    config: str | Path | None = None
    overrides: Sequence[str] = ()
    deep: bool = False
    max_events: int | None = None
    plots: str | Path | None = None
    against: Sequence[str] = ()
    write_digest: bool = False
    time_limit_s: float = TIME_LIMIT_S


def check_data(
    data: str | Sequence[str], options: CheckOptions | None = None, progress: Progress | None = None
) -> DataChecked:
    """Check data files; any file gets a verdict.

    Args:
        data: Files, globs, directories, lists or urls.
        options: What else is checked.
        progress: Told how far it is.

    Raises:
        DataFileError: A path of the call names nothing; that a validation file is gone is a finding.
        ConfigError: The configuration is not valid.
        UsageError: An option makes no sense.
        DiskError: A plot or a hash file cannot be written.
    """
    options = options or CheckOptions()
    if options.max_events is not None and options.max_events < 1:
        raise UsageError("--max-events has to be at least 1", where="--max-events", fix="--max-events 10k")
    plots_into = None if options.plots is None else require_folder(options.plots, "--plots")
    loaded = _configured(options)
    config = None if loaded is None else loaded.config
    paths = expand_inputs(data)
    looked = _look(paths, options, config, progress or Silent())
    facts, sample, how = looked.facts, looked.facts.sample, looked.how
    facts.repeated, facts.copies = repeated_events(sample, how)
    if facts.other is not None:
        facts.shared, facts.shared_files = shared_events(_trained_part(sample, looked.validated), facts.other, how)
    if config is not None:
        look_at_use(facts, config)
        facts.num_validated = facts.other.num_events if facts.other and not options.against else None
    ran = run_rules((*DATA_CHECKS, *plugin_rules("checks", DATA_CHECKS)), facts)
    report = Report((*_of_both(ran.report, looked), *_validation_gone(loaded, options)))

    def by_names(names: Sequence[str]) -> ByNames:
        return _by_names(paths, replace(options, overrides=names), how.progress)

    others = facts.other.files if facts.other else ()
    proposed = with_proposed(report, sample, options.overrides, by_names, others)
    ran = replace(ran, report=proposed.report)
    drawn = [] if plots_into is None else draw_plots(facts, plots_into)
    given = [data] if isinstance(data, str) else list(data)
    flags, tree = _flags(options), how.settings.data.tree_name
    lines = Told(given, options.config, options.overrides, options.against, options.deep, flags, tree, sample.files)
    section, mends = config.data if config else None, (*proposed.mends, *looked.mends)
    run = paths_of(section) if section else {}
    lines = replace(lines, others=others, run=run, names=proposed.names, mends=mends, section=section)
    return summarised(facts, ran, lines, digests=looked.digests, plots=drawn)


class _Looked(NamedTuple):
    """What was looked at: the files, the sample they are compared with, and the trees for validation alone."""

    how: Inspection
    facts: DataFacts
    beside: DataFacts | None
    validated: set[Place]
    digests: Sequence[Path]

    @property
    def mends(self) -> tuple[Mend, ...]:
        """What brings times of the other sample to seconds, of which it is only said that no sensor delivers them."""
        return () if self.beside is None or self.beside.exchanged else time_mends(self.beside)


def _look(
    paths: Sequence[str], options: CheckOptions, config: RunConfig | None, progress: Progress, most: int | None = None
) -> _Looked:
    """Return what the files hold, and those they are compared with, of most events a file."""
    settings = config or config_from_overrides(options.overrides)
    validated = _only_validated(options, config)
    compared = _compared(options, config, validated, paths)
    how = _at_most(most, _inspection(options, settings, len(paths), progress))
    sample, digests = inspect_sample(paths, how)
    facts, beside = DataFacts(how.settings, sample, config), None
    if compared:
        theirs = _at_most(most, _inspection(options, settings, len(compared), progress, other=True))
        facts.other, _ = inspect_sample(compared, theirs)
    facts.together = _together(facts, validated, options)
    if facts.other is not None:
        alone = bool(options.against)
        beside = DataFacts(theirs.settings, facts.other, config, together=facts.together, is_compared=alone)
    return _Looked(how, facts, beside, validated, digests)


def _at_most(most: int | None, how: Inspection) -> Inspection:
    if most is None:
        return how
    asked = how.settings.max_events
    return replace(how, settings=replace(how.settings, max_events=most if asked is None else min(asked, most)))


def _by_names(paths: Sequence[str], options: CheckOptions, progress: Progress) -> ByNames:
    """Return what is told of units, by the settings of these options, of the first events."""
    options = replace(options, deep=False, write_digest=False)
    config = None if options.config is None else load_config(options.config, options.overrides).config
    looked = _look(paths, options, config, progress, EVENTS_FOR_UNITS)
    found = _of_both(run_rules(UNIT_RULES, looked.facts).report, looked)
    others = looked.facts.other.files if looked.facts.other else ()
    return ByNames(looked.facts.sample, [item for item in found if item.other_unit], others, looked.mends)


def _of_both(report: Report, looked: _Looked) -> tuple[Finding, ...]:
    """Return what was found of the files and of the other sample."""
    if looked.beside is None:
        return tuple(report)
    told = {(item.code, item.where) for item in report}
    aside = _aside(looked.beside)
    return (*report, *(item for item in aside if (item.code, item.where) not in told))


def _configured(options: CheckOptions) -> LoadedConfig | None:
    """Return the configuration that the files are to suit, whose network is built to tell the size of a checkpoint."""
    if options.config is None:
        return None
    loaded = read_config(options.config, options.overrides)
    return loaded.require(network_rules(loaded.config))


def _flags(options: CheckOptions) -> list[str]:
    """Return the options that say how it is checked, as they are typed."""
    said = {
        "--max-events": options.max_events,
        "--plots": None if options.plots is None else in_shell(options.plots),
        "--time-limit": None if options.time_limit_s == TIME_LIMIT_S else f"{options.time_limit_s:g}",
    }
    flags = [f"{name} {value}" for name, value in said.items() if value is not None]
    return [*flags, "--write-digest"] if options.write_digest else flags


def _compared(
    options: CheckOptions, config: RunConfig | None, validated: set[Place], paths: Sequence[str]
) -> list[str]:
    """Return the files to compare with: none where all that is checked is for validation alone."""
    if options.against:
        return expand_inputs(list(options.against))
    if config is None or not config.data.val_path or all(_place(path, config) in validated for path in paths):
        return []
    return present_inputs(config.data.val_path)  # what is gone, _validation_gone tells


def _validation_gone(loaded: LoadedConfig | None, options: CheckOptions) -> list[Finding]:
    """Return which validation files of a configuration are not there, as `config check` tells it.

    Beside another sample to compare with they are not needed for the check, but still for the training.
    """
    if loaded is None or not loaded.config.data.val_path:
        return []
    try:
        expand_inputs(loaded.config.data.val_path)
    except DataFileError:
        found = loaded.locate(validation_rules(loaded.config))
        return [replace(item, severity=Severity.WARNING) for item in found] if options.against else list(found)
    return []


def _only_validated(options: CheckOptions, config: RunConfig | None) -> set[Place]:
    """Return the trees that the configuration validates on and does not train on: they share nothing with training."""
    if config is None or not config.data.val_path or options.against:
        return set()
    try:
        trained = {_place(path, config) for path in expand_inputs(config.data.train_path)}
    except DataFileError:  # what names nothing is not trained on
        trained = set()
    return {_place(path, config) for path in present_inputs(config.data.val_path)} - trained


def _together(facts: DataFacts, validated: set[Place], options: CheckOptions) -> tuple[Sample, ...]:
    """Return the samples of the run, training first, where what is checked is one of two."""
    if validated and not _trained_part(facts.sample, validated).files:
        return Sample([]), facts.sample
    return (facts.sample, facts.other) if facts.other is not None and not options.against else ()


def _place(path: str, config: RunConfig) -> Place:
    return place_of(*split_tree(path, config.data.tree_name))


def _trained_part(sample: Sample, validated: set[Place]) -> Sample:
    """Return the sample without the trees that are for validation alone."""
    names = {facts.where for facts in sample.files if place_of(facts.path, facts.tree) not in validated}
    return replace(
        sample,
        files=[facts for facts in sample.files if facts.where in names],
        contents=[block for block in sample.contents if block.path in names],
    )


def _inspection(
    options: CheckOptions, config: RunConfig, num_files: int, progress: Progress, other: bool = False
) -> Inspection:
    most: int | None = EVENTS_A_FILE
    if options.max_events is not None:
        most = max(1, -(-options.max_events // num_files))
    elif options.deep:
        most = None
    is_asked = options.config is not None and not (other and options.against)
    tasks = tuple(config.tasks.enabled()) if is_asked and isinstance(config, RegressorConfig) else ()
    guesses, truth = options.config is None and not other, not is_asked or isinstance(config, RegressorConfig)
    settings = ScanSettings(config.data, config.normalization, tasks, most, guesses, truth)
    return Inspection(settings, options.deep, options.write_digest and not other, options.time_limit_s, progress)


def _aside(facts: DataFacts) -> list[Finding]:
    """Return what keeps the other sample from being read or its values from being trusted.

    Wrong values of a sample to compare with are warnings: the files that are checked may be sound.
    """
    title, out = ("sample to compare with", BY_HAND) if facts.is_compared else (VALIDATION, "")
    found = [*run_rules(FILE_RULES, replace(facts, config=None)).report]
    if facts.sample.scanned:
        values = run_rules(VALUE_CHECKS, replace(facts, config=None) if facts.is_compared else facts).report
        worst = Severity.WARNING if facts.is_compared else Severity.ERROR
        found += [replace(item, severity=worst) if item.severity is Severity.ERROR else item for item in values]
    if facts.is_compared:
        found += truth_not_there("DAT-04", facts)
    told = (item for item in found if item.severity is not Severity.INFO)
    return [replace(item, problem=f"{title}: {item.problem}", fix=item.fix.replace(out, "")) for item in told]

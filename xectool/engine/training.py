"""``train``: configuration to trained model, with its record, checkpoints, predictions and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from xectool.config.load import LoadedConfig, read_config
from xectool.config.overrides import naming
from xectool.config.platform import Platform
from xectool.config.root import RunConfig
from xectool.config.rules.capacity import capacity_rules
from xectool.config.rules.count import count_rules
from xectool.config.rules.disk import disk_rules
from xectool.config.rules.path import path_rules
from xectool.config.rules.run import OneStartingPoint
from xectool.engine.capacity import without_memory
from xectool.engine.convert_line import converting
from xectool.engine.training_run.attempt import RunAttempt
from xectool.engine.training_run.first_look import input_findings
from xectool.engine.training_run.result import TrainResult, is_told
from xectool.engine.training_run.start import assemble, begin, shared_place, without_learnt_units
from xectool.errors import DiskError, UsageError, XecError, in_shell
from xectool.findings import Finding, Report, Severity, in_lines
from xectool.rootio.counting import count_run_events
from xectool.training.memory_estimate.host import checkpoint_bytes_of
from xectool.training.process.device import Execution, plan_execution
from xectool.training.process.heap import keep_freed_memory
from xectool.training.process.progress import NullObserver, Observer
from xectool.training.ranks.agreement import program_facts, require_agreement
from xectool.training.ranks.base import Ranks
from xectool.training.ranks.environment import device_of_rank
from xectool.training.ranks.group import joined
from xectool.training.record.description import start_facts
from xectool.training.record.run_dir import RunPlace
from xectool.training.saving.resume_changes import other_files, resume_changes
from xectool.training.stepping.build import RunData
from xectool.training.stepping.parts import RunParts

if TYPE_CHECKING:
    from xectool.engine.diagnose.run_health import RunHealth

_NO_RESUME: Final = (OneStartingPoint.code, Severity.WARNING)


def train(  # noqa: PLR0913  the function is the command: one argument an option
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    resume: str | None = None,
    run_name: str | None = None,
    device: str | None = None,
    max_steps: int | None = None,
    dry_run: bool = False,
    observer: Observer | None = None,
) -> TrainResult:
    """Train a model and return where everything lies.

    Args:
        config: YAML file.
        overrides: ``key=value`` settings that go before the file's.
        resume: ``auto``, a checkpoint or a run directory.
        run_name: Name of the run and of its directory.
        device: Device that goes before ``training.device``.
        max_steps: Stop after this many optimizer steps of the run.
        dry_run: Check everything, look at some events and build the model, but train nothing and write nothing. What
            would stop the training at its first batch is an error among the findings.
        observer: Receives progress.

    Raises:
        XecError: Anything the user can act on; see `xectool.errors`.
    """
    if max_steps is not None and max_steps < 0:
        raise UsageError(f"{max_steps} steps leave nothing to train", where="--max-steps", fix="--max-steps 100")
    named = [naming(run_name)] if run_name else []
    platform = Platform.detect()
    loaded = _checked(read_config(config, [*overrides, *named], platform), platform, resume)
    return _placed(loaded, (resume, max_steps, dry_run), device, observer)


def tried(loaded: LoadedConfig) -> tuple[Finding, ...]:
    """Return what a dry run of a configuration says, which is not read again: a pipe has it once.

    Raises:
        XecError: As `train`.
    """
    return _placed(_checked(loaded, Platform.detect(), None), (None, None, True), None, None).findings


def _placed(
    loaded: LoadedConfig,
    options: tuple[str | None, int | None, bool],
    device: str | None,
    observer: Observer | None,
) -> TrainResult:
    """Train, or try to, on the device and among the ranks that it is for."""
    resume, max_steps, dry_run = options
    execution = plan_execution(loaded.config.training, device_of_rank(device or loaded.config.training.device))
    if execution.device.type == "cpu":
        keep_freed_memory()
    with joined(loaded.config.distributed, execution.device) as ranks:
        given = {"--resume": resume or "", "--max-steps": str(max_steps), "--dry-run": str(dry_run)}
        require_agreement(ranks, program_facts(loaded.config.to_dict()) | given)
        watching = observer if observer is not None and ranks.is_first else NullObserver()
        return _train(loaded, options, execution, ranks, watching)


def _train(
    loaded: LoadedConfig,
    options: tuple[str | None, int | None, bool],
    execution: Execution,
    ranks: Ranks,
    watching: Observer,
) -> TrainResult:
    resume, max_steps, dry_run = options
    place = shared_place(loaded.config, resume, ranks)
    parts, data = assemble(loaded, place, execution, ranks, watching, dry_run)
    events, goes_on = (data.train.num_events, data.val.num_events), place.checkpoint is not None
    asked = _with_decay(parts.config, loaded.config.training.ema_decay)  # of a number that auto made nothing is said
    counted = count_rules(asked, *events, ranks.world_size, max_steps, goes_on)
    loaded = loaded.require(counted.merged(disk_rules(parts.config, checkpoint_bytes_of(parts.model, parts.config))))
    progress, started = begin(parts, data, place, watching)
    loaded = replace(loaded, findings=without_learnt_units(loaded.findings, started))
    watching.started(start_facts(parts, data, place, progress))
    seen = (*data.findings, *parts.baseline.findings, *_changes(parts, place, dry_run, data))
    noticed = converting(seen, loaded.config.data, data.train, data.val)
    warned = tuple(found for found in loaded.findings if found.severity is not Severity.INFO)
    for found in () if dry_run else (*warned, *noticed):  # again at the end, which is not far in a dry run
        for line in in_lines(found):
            watching.message(line)
    findings = (*loaded.findings, *noticed)
    if dry_run:
        findings = (*findings, *input_findings(data, loaded))
        return TrainResult(str(place.directory), "dry_run", findings=findings)
    result = RunAttempt(parts, data, place, watching, started).run(progress, max_steps, findings)
    return _judged(result, data, watching, parts.config.checkpoint.save_artifacts) if ranks.is_first else result


def _with_decay(config: RunConfig, decay: float | Literal["auto"] | None) -> RunConfig:
    training = config.training.model_copy(update={"ema_decay": decay})
    return config.model_copy(update={"training": training})


def _changes(parts: RunParts, place: RunPlace, dry_run: bool, data: RunData) -> tuple[Finding, ...]:
    """Return what a resume changes; nothing of a new run."""
    if place.checkpoint is None or place.checkpoint_path is None:
        return ()
    running = None if dry_run else place.directory
    ranks = parts.ranks.world_size
    found = resume_changes(parts.config, place.checkpoint, place.checkpoint_path, ranks, running)
    return (*found, *other_files(data, place.checkpoint_path))


def _judged(result: TrainResult, data: RunData, watching: Observer, page: bool) -> TrainResult:
    """Say what is wrong with a run that came to its end, and write its page; a training never fails for that."""
    if result.status == "interrupted":  # a batch system gives it seconds
        if page:
            watching.message(f"no report was written: xectool report {in_shell(result.run_dir)}")
        return result
    from xectool.diagnosis.cause import in_one_line
    from xectool.diagnosis.ranking import FAILURES
    from xectool.engine.diagnose.run_health import run as diagnose_run  # loaded where a run has come to its end

    watching.phase("write the report" if page else "diagnose the run", 0)
    look = f"xectool diagnose run {in_shell(result.run_dir)}"
    caught = (XecError, OSError, *FAILURES)  # defects too: the weights are saved, and exit 70 would deny it
    try:
        health = diagnose_run(result.run_dir)
        told, files = result.findings, {file.path for file in data.train.files}
        wrongs = [cause for cause in health.causes if not is_told(cause, told, files)]
    except caught as error:
        lacking = "the run was not diagnosed" + (", and no report was written" if page else "")
        return _without(result, lacking, error, look, watching)
    if wrongs:  # a warning, however grave: the training itself came to its end
        wrong = Finding(wrongs[0].code, Severity.WARNING, in_one_line(wrongs), where=result.run_dir, fix=look)
        result = replace(result, diverged=health.diverged, findings=(*result.findings, wrong))
    try:
        return _with_page(result, health) if page else result
    except caught as error:
        again = f"xectool report {in_shell(result.run_dir)}"
        return _without(result, "no report was written", error, again, watching)


def _without(result: TrainResult, lacking: str, error: Exception, again: str, watching: Observer) -> TrainResult:
    """Return a result that says what it lacks, by what, and the command that makes it."""
    of_machine = DiskError.default_code if isinstance(error, OSError) else "XT-DEFECT"
    code = error.code if isinstance(error, XecError) else of_machine
    problem = f"{lacking}: {type(error).__name__}: {f'{error}'.partition(chr(10))[0]}"
    watching.message(problem)
    return replace(
        result, findings=(*result.findings, Finding(code, Severity.WARNING, problem, where=result.run_dir, fix=again))
    )


def _with_page(result: TrainResult, health: RunHealth) -> TrainResult:
    from xectool.engine.reporting import write_page  # matplotlib

    return replace(result, artifacts=(*result.artifacts, write_page(Path(result.run_dir), health).path))


def _checked(loaded: LoadedConfig, platform: Platform, resume: str | None) -> LoadedConfig:
    """Return the configuration after the rules on paths and devices; memory is estimated, with the step, later on."""
    if resume is not None:  # that the flags of a resume have no effect is said of the file alone
        without = (found for found in loaded.findings if (found.code, found.severity) != _NO_RESUME)
        loaded = replace(loaded, findings=Report(tuple(without)))
    capacity = capacity_rules(loaded.config, platform, count_run_events(loaded.config.data))
    return loaded.require(path_rules(loaded.config, resuming=resume is not None).merged(without_memory(capacity)))

"""``diagnose loader``: where loading time goes, what this machine could do, and which settings are worth a change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xectool.config.cgroups import num_cores
from xectool.config.document import CONFIG_FILE
from xectool.config.load import load_config
from xectool.config.platform import available_memory
from xectool.config.root import RunConfig
from xectool.data.cache.deciding import place_of_copy
from xectool.engine.file_patterns import merging
from xectool.errors import UsageError, counted, duration, in_shell
from xectool.findings import Finding
from xectool.probes.loading.epoch_time import EpochTime, StepTime, core_share, epoch_range, measure_step, predict_epoch
from xectool.probes.loading.events import LoadingSubject, Setting, cached_share, events_per_basket, whole_basket_chunk
from xectool.probes.loading.findings import LoaderFacts, findings_of
from xectool.probes.loading.race import Timing, Verdict, grid, race, reader_start_s, reading_rate
from xectool.probes.loading.stages import StageReport, StageTime, measure_stages
from xectool.training.process.device import Execution, plan_execution

DEFAULT_EVENTS = 4096
DEFAULT_SECONDS = 60.0
_MEMORY_SHARE = 0.9
_LEAST_EPOCH_GAIN = 0.02
_LEAST_EVENTS, _MEASUREMENTS = 256, 80
_ALONE = 0.9


@dataclass(frozen=True)
class LoaderResult:
    """What loading takes, and what would make it faster.

    Attributes:
        stages: Time of ``read``, ``decompress``, ``convert`` and ``transfer``.
        events_per_s: Median rate of reading as configured.
        spread: Half the distance of its quartiles over it.
        limit_events_per_s: What decompression and one copy in memory allow at most, on all cores a quota leaves; no
            less than was read.
        limits: The same apart, and the bytes a second that reading reached.
        recommended: The settings to take, by their configuration keys.
        config_lines: Those that differ from the configuration, as lines of it; empty where nothing is worth a change.
        reason: Why these.
        grid: Every setting that was raced or left out.
        data_wait_share: Expected share of an epoch in which the network waits, a later one where these differ.
        step_s: Seconds of a batch of the network; measured, or as given.
        epoch_s: Predicted seconds of the training part of an epoch, the first one where later ones differ.
        epoch_range_s: Between which seconds it lies by the known error; where the steps are on the host, from no other
            processes to those of now, and more of them take more.
        start_s: Seconds that the first epoch of a run takes beside: readers start, and its first step takes longer.
        later_epoch_s: The same of every later one where training copies the events meanwhile, at least; None without.
        validation_s: Predicted seconds of a validation pass; None where no network was measured.
        recommended_epoch_s: As ``epoch_s``, with the recommended settings.
        memory_budget_bytes: Host memory the settings may use.
        dominant: The stage that takes longest.
        facts: Files, bytes, baskets and where they lie.
        notes: What should be known of the measurement.
        findings: What is wrong with the loading, if anything.
    """

    stages: dict[str, StageTime]
    events_per_s: float
    spread: float
    limit_events_per_s: float
    limits: dict[str, float]
    recommended: dict[str, int]
    config_lines: tuple[str, ...]
    reason: str
    grid: tuple[Timing, ...]
    data_wait_share: float
    step_s: float
    epoch_s: float
    epoch_range_s: tuple[float, float]
    start_s: float
    later_epoch_s: float | None
    validation_s: float | None
    recommended_epoch_s: float
    memory_budget_bytes: int
    dominant: str
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the result keys of the command-line contract."""
        return {name: value for name, value in vars(self).items() if name != "findings"}

    @property
    def healthy(self) -> bool:
        """Whether the network does not wait for data."""
        return not any(found.code == "XT-LOADER-SLOW" for found in self.findings)


def loader(
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    max_events: int = DEFAULT_EVENTS,
    seconds: float = DEFAULT_SECONDS,
    step_ms: float | None = None,
    device: str | None = None,
) -> LoaderResult:
    """Measure the loading of a configuration's own events.

    Args:
        config: YAML file or run directory.
        overrides: ``key=value`` settings that go before the file's.
        max_events: Events of one measurement.
        seconds: Time for all measurements, without opening files and building the network.
        step_ms: Milliseconds of a batch; without, real steps of the network are measured.
        device: Device; the configuration's without.

    Raises:
        XecError: Anything the user can act on.
    """
    _check(max_events, seconds, step_ms)
    path = Path(config).expanduser()
    file = path / CONFIG_FILE if path.is_dir() else path
    loaded = load_config(file, overrides).config
    execution = plan_execution(loaded.training, device)
    subject, ranks = LoadingSubject.of(loaded), loaded.distributed.num_gpus
    cached, began = cached_share(subject), time.perf_counter()
    step, readers_start_s = _step(loaded, execution, seconds, step_ms), reader_start_s(subject, Setting.of(loaded))
    stages = measure_stages(subject, execution.device, max_events, 0.25 * seconds)
    left = max(0.4 * seconds, seconds - (time.perf_counter() - began))
    current, budget = Setting.of(loaded), int(_MEMORY_SHARE * available_memory(ranks))
    settings = grid(current, num_cores(ranks), subject.source.num_events, whole_basket_chunk(subject))
    # Rather many short measurements than few long ones: load of the machine comes and goes.
    events = min(max_events, max(_LEAST_EVENTS, int(left / _MEASUREMENTS * 1e6 / stages.reading_us)))
    verdict = race(settings, subject.memory_bytes, budget, reading_rate(subject, events), left)
    chosen, reason, now, then = _choice(subject, verdict, current, stages, step)
    # The copy that training makes is read about as fast as memory is copied (docs/benchmarks.md).
    copy_rate, cores = stages.copy_events_per_s, num_cores(ranks)
    later = predict_epoch(subject, current, copy_rate, stages, step, cores) if subject.copied else None
    facts = replace(_facts(subject, stages, cached, now), later=later, readers_start_s=readers_start_s)
    facts = replace(facts, copying=_copying(subject, file, overrides))
    return _result(facts, verdict, step, (current, chosen, reason), then, (budget, subject.copied))


def _check(max_events: int, seconds: float, step_ms: float | None) -> None:
    if max_events < 1:
        raise UsageError(f"{max_events} events are nothing to measure", where="--max-events", fix="--max-events 4096")
    if not 1 <= seconds <= 86_400:
        raise UsageError(f"{duration(seconds)} are no time to measure in", where="--seconds", fix="--seconds 60")
    if step_ms is not None and not 0 < step_ms < 1e7:
        raise UsageError(f"a step of {step_ms:g} ms", where="--step-ms", fix="--step-ms 50")


def _step(config: RunConfig, execution: Execution, seconds: float, step_ms: float | None) -> StepTime:
    if step_ms is not None:
        return StepTime(step_ms / 1e3, core_share=core_share())
    return measure_step(config, execution, 0.2 * seconds)


def _choice(
    subject: LoadingSubject, verdict: Verdict, current: Setting, stages: StageReport, step: StepTime
) -> tuple[Setting, str, EpochTime, EpochTime]:
    """Return the setting to recommend and why, and the epoch as configured and with it."""
    cores, rate = num_cores(subject.config.distributed.num_gpus), verdict.rate(current)
    now = predict_epoch(subject, current, rate, stages, step, cores)
    # The rate of the winner is taken from pairs with the current one, not from rounds it was chosen by.
    then = predict_epoch(subject, verdict.best, rate * verdict.gain, stages, step, cores)
    if verdict.best == current:
        return current, verdict.reason, now, now
    if then.train_s > (1 - _LEAST_EPOCH_GAIN) * now.train_s:
        hidden = f"{verdict.best} reads faster ({verdict.reason}), but the steps hide it: an epoch gains less than 2 %"
        return current, hidden, now, now
    return verdict.best, verdict.reason, now, then


def _facts(subject: LoadingSubject, stages: StageReport, cached: float, epoch: EpochTime) -> LoaderFacts:
    return LoaderFacts(
        stages=stages,
        epoch=epoch,
        num_files=len(subject.source.files),
        num_events=subject.source.num_events,
        file_bytes=subject.file_bytes,
        cached_share=cached,
        events_per_basket=events_per_basket(subject),
        window_events=subject.plan(subject.config.data.chunksize).window_events,
        whole_basket_chunk=whole_basket_chunk(subject),
        memory_bytes=available_memory(),
        example=next(file.path for file in subject.source.files if file.num_entries),
        merging=merging([file.path for file in subject.source.files], _other_trees(subject)),
    )


def _other_trees(subject: LoadingSubject) -> set[str]:
    """Return the trees that are read; none where that is the one of ``data.tree_name`` alone."""
    trees = {file.tree for file in subject.source.files}
    return trees if trees != {subject.config.data.tree_name} else set()


def _copying(subject: LoadingSubject, file: Path, overrides: Sequence[str]) -> str:
    """Return what has training read a copy of the events on a disk of this machine; empty where nothing does."""
    if subject.copied:
        settings = (f"--set {in_shell(setting)}" for setting in overrides)
        prepare = " ".join(["xectool prepare", in_shell(file), *settings])
        return f"{prepare}   # makes the copy before the first epoch; training makes it beside that one"
    place = place_of_copy(subject.config, subject.source)
    said = "training makes a copy there beside its first epoch, and reads it from then on"
    return f"--set {in_shell(f'data.cache={place}')}   # {said}" if place else ""


def _result(
    facts: LoaderFacts,
    verdict: Verdict,
    step: StepTime,
    choice: tuple[Setting, Setting, str],
    then: EpochTime,
    machine: tuple[int, str],
) -> LoaderResult:
    (current, chosen, reason), stages, now, (budget, copied) = choice, facts.stages, facts.epoch, machine
    lines = tuple(f"{key}: {value}" for key, value in current.differing(chosen).items())
    fastest = max(timing.events_per_s for timing in verdict.timings)
    return LoaderResult(
        stages=stages.stages,
        events_per_s=verdict.rate(current),
        spread=next(timing.spread for timing in verdict.timings if timing.setting == current),
        limit_events_per_s=max(stages.limit_events_per_s, fastest),
        limits={
            "decompress_events_per_s": stages.decompress_events_per_s,
            "copy_events_per_s": stages.copy_events_per_s,
            "read_bytes_per_s": stages.read_bytes_per_s,
            "spread": stages.limit_spread,
        },
        recommended=dict(chosen.keys),
        config_lines=lines,
        reason=reason,
        grid=verdict.timings,
        data_wait_share=(facts.later or now).data_wait_share,
        step_s=step.batch_s,
        epoch_s=now.train_s,
        epoch_range_s=epoch_range(now.train_s, step),
        start_s=facts.readers_start_s + step.start_s,
        later_epoch_s=None if facts.later is None else facts.later.train_s,
        validation_s=now.validation_s,
        recommended_epoch_s=then.train_s,
        memory_budget_bytes=budget,
        dominant=stages.dominant,
        facts=facts.as_dict(),
        notes=_notes(facts, step, copied, fastest),
        findings=findings_of(facts, lines),
    )


def _notes(facts: LoaderFacts, step: StepTime, copied: str, fastest: float) -> tuple[str, ...]:
    notes = [f"{facts.stages.rounds} rounds of {facts.stages.events // facts.stages.rounds} events were clocked"]
    if fastest > facts.stages.limit_events_per_s:
        notes.append(
            f"decompression and one copy alone reached {facts.stages.limit_events_per_s:.5g} events/s, less than was "
            "read later: what was read is given as the limit"
        )
    if facts.later is not None:
        notes.append(
            f"training copies the events in its first epoch ({copied}); later ones read the copy and take "
            f"{duration(facts.later.train_s)} or somewhat more; xectool prepare makes it now, and is then measured here"
        )
    if step.steps:
        notes.append(f"a batch takes {duration(step.batch_s)}, median of {counted(step.steps, 'step')}")
    if facts.readers_start_s + step.start_s > _LEAST_EPOCH_GAIN * facts.epoch.train_s:
        notes.append(
            f"the first epoch of a run takes more: its readers start ({duration(facts.readers_start_s)}), and its "
            f"first step is longer by {duration(step.start_s)}"
        )
    if step.core_share < _ALONE:
        alone = f"an epoch takes about {duration(step.core_share * facts.epoch.train_s)}"
        notes.append(
            f"other processes left a core for {100 * step.core_share:.0f} % of the time; alone on this machine "
            f"{alone if step.on_host else 'all rates are higher'}"
        )
    if facts.cached_share > 0.1 and facts.file_bytes > facts.memory_bytes:
        notes.append(
            f"{100 * facts.cached_share:.0f} % of the files lay in the page cache, but {facts.file_bytes / 1e9:.3g} GB "
            "do not fit the memory: later epochs read more from disk than was measured"
        )
    elif facts.cached_share < 0.9:
        notes.append(f"{100 * facts.cached_share:.0f} % of the files lay in the page cache; the rest came from disk")
    return tuple(notes)

"""From a checked configuration to the parts of a run and the place it starts from; the same on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xectool.checkpoint import store
from xectool.checkpoint.format import Checkpoint
from xectool.checkpoint.soundness import require_finite
from xectool.checkpoint.transfer import transfer_encoder
from xectool.config.load import LoadedConfig
from xectool.config.root import RunConfig
from xectool.config.rules.task import TargetsAreScaled
from xectool.engine.training_run.preflight import require_memory
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Report
from xectool.runlog.control import ACTIONS
from xectool.training.events.quarantine import ASKED
from xectool.training.process.device import Execution, apply_determinism
from xectool.training.process.memory_faults import memory_faults
from xectool.training.process.progress import Observer
from xectool.training.ranks.agreement import data_facts, require_agreement
from xectool.training.ranks.base import Ranks
from xectool.training.record.run_dir import RunPlace, choose_place, require_writable
from xectool.training.saving.kept_scale import kept_scales
from xectool.training.saving.late_exclusion import Events, in_saved_order, late_events, left_out_since
from xectool.training.saving.resolved import adopt_resolved
from xectool.training.saving.resume import (
    as_saved,
    meaning_differences,
    objective_changes,
    require_resumable,
    start_options,
)
from xectool.training.stepping.build import RunData, build_parts, open_data
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import Progress, load_weights, restore


def shared_place(config: RunConfig, resume: str | None, ranks: Ranks) -> RunPlace:
    """Return the run directory and checkpoint that the first rank chooses.

    Raises:
        UsageError, CheckpointError: As `choose_place`, on every rank.
        UsageError, DiskError: The directory cannot be written.
    """
    place = ranks.on_first(lambda: require_writable(choose_place(config, resume)))
    facts = ranks.share((str(place.directory), str(place.checkpoint_path or "")) if place else ("", ""))
    if place is not None:
        return place
    directory, path = Path(facts[0]), Path(facts[1])
    return RunPlace(directory, store.load(path), path) if facts[1] else RunPlace(directory)


def assemble(
    loaded: LoadedConfig, place: RunPlace, execution: Execution, ranks: Ranks, watching: Observer, looks: bool
) -> tuple[RunParts, RunData]:
    """Open the data and put the run together; where one only looks, nothing is written.

    Raises:
        XecError: Configuration, memory or data do not allow it.
    """
    settings, late = settings_at(loaded.config, place)
    require_memory(loaded, settings, execution, watching)
    apply_determinism(settings.training.deterministic)
    data = opened(loaded, place, settings, late, looks)
    require_agreement(ranks, data_facts([*data.train.files, *data.val.files]))
    with memory_faults(settings, "building the model"):
        return build_parts(data, execution, ranks), data


def settings_at(config: RunConfig, place: RunPlace) -> tuple[RunConfig, Events]:
    """Return what is trained at a place, as its checkpoint has resolved it, and the events left out late."""
    settings = _decided(config)
    if place.checkpoint is None:
        return settings, frozenset()
    return in_saved_order(_with_origin(adopt_resolved(settings, place.checkpoint), place.checkpoint), place.checkpoint)


def opened(loaded: LoadedConfig, place: RunPlace, settings: RunConfig, late: Events, looks: bool) -> RunData:
    """Return the data of a run as `settings_at` gives it; where one only looks, nothing is written.

    Raises:
        XecError: They cannot be trained on.
    """
    data = replace(open_data(settings, looks=looks), late=late)
    if place.checkpoint is None:
        return data
    since = left_out_since(loaded.config, place.checkpoint, late)
    return replace(data, findings=(*data.findings, *kept_scales(loaded, settings, place.checkpoint, since)))


def _decided(config: RunConfig) -> RunConfig:
    """Return a configuration whose run has its directory.

    It may have replaced another run, once: trained again by the file it leaves, it would replace itself.
    """
    section = config.checkpoint.model_copy(update={"overwrite": False})
    return config.model_copy(update={"checkpoint": section})


def _with_origin(config: RunConfig, checkpoint: Checkpoint) -> RunConfig:
    """Return the configuration with the weights that a resumed run once started from, whatever it is given now.

    A configuration that names what it resumes says that instead.
    """
    saved = checkpoint.config.get("checkpoint", {})
    if config.checkpoint.resume_from or "init_from" not in saved:
        return config
    section = config.checkpoint.model_copy(update={"init_from": saved["init_from"]})
    return config.model_copy(update={"checkpoint": section})


def start_from(parts: RunParts, path: Path, observer: Observer) -> dict[str, Any]:
    """Load all weights of a model of the same kind, or the encoder of one of another kind; return what was loaded."""
    source = store.load_start(path)
    require_finite(source.weights("best"), path)
    if source.num_lost:
        observer.message(
            f"warning XT-CKPT-NO-EMA: the averaged weights are gone ({source.num_lost} steps were averaged), this run "
            f"starts from the last ones; {path}"
        )
    if source.kind == parts.config.kind:
        fitting = start_options(parts.config, source, path)
        load_weights(
            parts.model, source.weights("best"), fix=f"{fitting}   # describes the network as the checkpoint does"
        )
        observer.message(f"all weights loaded from {path}")
        differing = meaning_differences(parts.config, source) if source.config else []
        if differing:
            named = ", ".join(key for key, _, _ in differing[:5])
            saved = [as_saved(key, value) for key, value, _ in differing]
            before = " ".join([fitting, *(option for option in saved if option not in fitting)])
            observer.message(f"they were trained with another {named}; as they were: {before}")
        loaded = {"loaded": sorted(parts.model.state_dict()), "other_meaning": [key for key, *_ in differing]}
        return {"checkpoint": str(path), "source": source.kind, "target": source.kind, **loaded}
    report = transfer_encoder(source, parts.config, parts.model)
    for line in (*report.lines(), *_other_branches(parts.config, source)):
        observer.message(line)
    return {"checkpoint": str(path), **report.as_dict()}


def without_learnt_units(findings: Iterable[Finding], started: Mapping[str, Any]) -> Report:
    """Return findings without a scale proposed for heads that were loaded and have learnt their targets without one."""
    other = started.get("other_meaning")
    if other is None:
        return Report(tuple(findings))
    keys = tuple(f"({key})" for key in other)
    return Report(tuple(item for item in findings if item.code != TargetsAreScaled.code or item.where.endswith(keys)))


def _other_branches(config: RunConfig, source: Checkpoint) -> Iterator[str]:
    """Yield what is said where an encoder has learnt from branches of other names: the same readings, or others."""
    saved = source.config.get("data", {})
    for key in ("npho_branch", "time_branch"):
        before, now = saved.get(key), getattr(config.data, key)
        if before is not None and before != now:
            yield f"the encoder was trained on data.{key} {before}, this run reads {now}: are they the same quantity?"


def begin(parts: RunParts, data: RunData, place: RunPlace, observer: Observer) -> tuple[Progress, dict[str, Any]]:
    """Return where the run starts, and for a new run from other weights what became of each of them."""
    checkpoint = parts.config.checkpoint
    if place.checkpoint is None or place.checkpoint_path is None:
        if not checkpoint.init_from:
            return Progress(), {}
        started = start_from(parts, Path(checkpoint.init_from).expanduser(), observer)
        parts.average.load({}, 0)
        return Progress(), started
    require_resumable(parts.config, place.checkpoint, data.train, place.checkpoint_path, parts.ranks.world_size)
    if checkpoint.reset_epoch:
        load_weights(parts.model, place.checkpoint.weights())
        parts.average.load({}, 0)
        _leave_out_late(parts, data, 0, observer)
        return Progress(), {}
    progress = restore(parts, place.checkpoint)
    _leave_out_late(parts, data, progress.step, observer)
    changed = objective_changes(parts.config, place.checkpoint)
    if changed:
        parts.spikes.forget_losses()
    if changed and progress.best_epoch:
        observer.message(f"another {', '.join(changed[:5])}: its losses do not compare; the best is found anew")
        progress.forget_best()
    if checkpoint.refresh_lr:
        parts.schedule.restart(parts.schedule.place(progress.epoch, progress.batch))
    if kept := "; ".join(_asked_before(parts, progress, place.directory)):
        observer.message(f"still holds from before, whatever the configuration says: {kept}")
    return progress, {}


def _asked_before(parts: RunParts, progress: Progress, run: Path) -> Iterator[str]:
    """Yield what `xectool ctl`, or the way back from a spike, has set in a run, and how it goes back."""
    scale, clip, planned = parts.schedule.scale, progress.grad_clip, parts.config.training.grad_clip
    back = f"back: xectool ctl {in_shell(run)}"
    if scale != 1:
        yield f"{scale:g} times the planned learning rate ({back} lr --scale {1 / scale:g})"
    if clip not in (None, planned):
        highest = planned or ACTIONS["clip"].high  # 0 clips nothing
        yield f"gradient norms are clipped at {clip:g}, not {planned:g} ({back} clip {highest:g})"


def _leave_out_late(parts: RunParts, data: RunData, step: int, observer: Observer) -> None:
    """Leave out what ``data.exclude`` has named since the epoch began."""
    found = late_events(data.train, data.late, parts.config.data, step + 1)
    if new := parts.quarantine.add(found):
        observer.message(
            f"left out from here on, as data.exclude asks: {counted(len(new), 'event')}; quarantine.json names them, "
            "config.yaml keeps the list of the epoch's order"
        )
    if before := sum(event.reason == ASKED and event.place not in data.late for event in parts.quarantine.events):
        observer.message(f"still left out, as data.exclude asked inside an earlier epoch: {counted(before, 'event')}")

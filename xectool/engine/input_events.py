"""The events that a model predicts: opened without the cuts of a training, and with its look at the first batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xectool.checks.facts import arguments
from xectool.config.data import DataConfig
from xectool.config.inputs import input_name
from xectool.config.load import config_from_overrides
from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.batch import EventBatch
from xectool.data.blocks import SourceFile
from xectool.data.events import EventSource
from xectool.data.source import open_source
from xectool.detector.constants import UNKNOWN_ABOVE
from xectool.engine.convert_line import converting, reading_mends
from xectool.engine.loading import LoadedModel, served_in_order
from xectool.errors import UsageError, in_shell
from xectool.findings import Finding, Severity
from xectool.models.normalize import Normalizer
from xectool.tasks.baselines import ConventionalEstimator
from xectool.training.events.baseline import units_of_truth
from xectool.training.guards.inputs import Opinion, opinion_of, raw_line

_KEPT_FILES = 4
_FIELDS = ("tree_name", "npho_branch", "time_branch", "run_branch", "event_branch", "truth_branches")
_NAMES = {("data", name) for name in _FIELDS}
_NAMES_TOLD = sorted(map(".".join, _NAMES))
_EVENTS = 16  # of each file; the median of their means and spreads decides
_OTHER_LIGHT = 5.0  # times more or less than in the training, and
_LIT = 0.2  # of the sensors: a sum over fewer says nothing of the unit
_OUTSIDE = 2.0  # spreads of its energies away from their mean


def open_events(
    loaded: LoadedModel, data: Sequence[str], max_events: int | None, names: Sequence[str] = ()
) -> EventSource:
    """Open the files without the training's cuts: every event is served, whether its truth is known or not.

    Findings of the source are a file whose first events are out of scale, and a truth in another unit, with which what
    is predicted would be compared. ``names`` are settings of names that these files have in place of those of the
    training.
    """
    config = loaded.config
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    section = config.data.model_copy(update={"num_workers": 0, **own_names(loaded, names)})
    source = open_source(section, list(data), tasks=tasks, require_truth=False)
    source = source if max_events is None else source.first(max_events)
    source.kept_files = _KEPT_FILES  # read once, one after the other: 64 open ones would be 9 MB
    units = (seen.finding() for seen in units_of_truth(source, source.branches.truth).values())
    predicted = section.model_copy(update={"train_path": list(data), "val_path": "", "exclude": ()})
    source.findings += converting((*scale_findings(loaded, source), *units), predicted, source)
    return source


def own_names(loaded: LoadedModel, names: Sequence[str]) -> dict[str, object]:
    """Return the fields of the data section that settings of names give another value.

    Raises:
        XecError: A setting is of something else than a name, or none.
    """
    if not names:
        return {}
    usual, more = loaded.config.data, loaded.may_be_told
    keys = [tuple(text.partition("=")[0].strip().split(".")) for text in names]
    for key, text in zip(keys, names, strict=True):
        if "=" in text and key[:2] not in _NAMES:
            raise UsageError(
                f"{'.'.join(key)} belongs to the training of the model: only names in the files"
                + (" and what its checkpoint does not tell can be told" if more else " can be told"),
                where=f"--set {text}",
                fix=f"leave out --set {'.'.join(key)}, or name one of {', '.join([*_NAMES_TOLD, *more])}",
            )
    told = config_from_overrides(names).data
    found: dict[str, object] = {key[1]: getattr(told, key[1]) for key in keys}
    tasks = [key[2] for key in keys if key[2:]]  # the other tasks keep the names of the training
    if tasks:
        found["truth_branches"] = {**usual.truth_branches, **{task: told.truth_branches[task] for task in tasks}}
    return found


def scale_findings(loaded: LoadedModel, source: EventSource) -> tuple[Finding, ...]:
    """Return a warning where the first events of a file are out of scale: what is predicted of them means nothing."""
    normalizer = Normalizer(loaded.config.normalization)
    files = [file for file in source.files if file.num_selected]
    found = [
        (file, opinion) for file in files if (opinion := _opinion(loaded, source, file, normalizer)).level == "error"
    ]
    if not found:
        return ()
    file, opinion = found[0]
    branch = source.branches.npho if opinion.channel == "npho" else source.branches.time
    settings = _settings(loaded.config, source)
    mends = tuple(mend for odd, _ in found for mend in reading_mends(odd, source.branches))
    is_mended = branch in [mend.branch for mend in mends]
    many = f" ({len(found)} of {len(files)} files)" if len(files) > 1 else ""
    return (
        Finding(
            "XT-INPUT-SCALE",
            Severity.WARNING,
            f"branch '{branch}' of '{file.path}' is out of scale for this model{many}: {opinion.reason}; what is "
            "predicted from it means nothing",
            where=f"{input_name(file.path, file.tree)} branch {branch}",
            evidence=(f"raw {opinion.channel} of its first events: {raw_line(opinion.channels[opinion.channel])}",),
            fix=f"xectool check-data {arguments(file.path, file.tree)}{settings}   # names the unit",
            other_unit=branch if is_mended else "",
            mends=mends if is_mended else (),
        ),
    )


def _opinion(loaded: LoadedModel, source: EventSource, file: SourceFile, normalizer: Normalizer) -> Opinion:
    """Return what the first events of a file look like to the model."""
    alone = EventSource((file,), source.branches).first(_EVENTS)
    with served_in_order(loaded, alone, _EVENTS) as loader:
        batch = next(iter(loader.epoch(0)))
    opinion = opinion_of(batch, normalizer)
    reason = _other_light(loaded, batch) if opinion.level != "error" else ""
    return replace(opinion, level="error", channel="npho", reason=reason) if reason else opinion


def _other_light(loaded: LoadedModel, batch: EventBatch) -> str:
    """Return that events have much more or less light than those of the training; empty where that is not known.

    The model knows it by the mean and spread of the energies it learnt, and by their calibration with the light sum.
    """
    state, config = loaded.checkpoint.meta.get("conventional", {}), loaded.config
    lit = float(((batch.npho.abs() < UNKNOWN_ABOVE) & (batch.npho != 0)).double().mean())
    if "energy" not in state or not isinstance(config, RegressorConfig) or config.tasks.energy.log_transform:
        return ""
    if lit < _LIT:
        return ""
    estimator = ConventionalEstimator.from_state({"energy": state["energy"]})
    energy = float(np.nanmedian(estimator.predict(batch)["energy"]))
    mean, spread = _number(config.tasks.energy.shift), _number(config.tasks.energy.scale)
    offset = float(np.ravel(state["energy"][0]["offset"])[0])
    ratio = (energy - offset) / (mean - offset) if mean > offset else 1.0
    if 1 / _OTHER_LIGHT < ratio < _OTHER_LIGHT or abs(energy - mean) < _OUTSIDE * spread:
        return ""
    return (
        f"an event has {ratio:.2g} times the light of those the model was trained on (that of {1e3 * energy:.3g} MeV; "
        f"trained on {1e3 * mean:.3g} +- {1e3 * spread:.2g} MeV): another unit, or energies it has not seen"
    )


def _number(value: float | tuple[float, ...] | str | None) -> float:
    first = value[0] if isinstance(value, tuple) else value
    return first if isinstance(first, float | int) else math.nan  # auto: the data said it, and no longer do


def _settings(config: RunConfig, source: EventSource) -> str:
    """Return what is read and how the model normalises it, where that is not the default, as options."""
    usual, read = DataConfig(), source.branches
    pairs = [f"data.npho_branch={read.npho}"] if read.npho != usual.npho_branch else []
    pairs += [f"data.time_branch={read.time}"] if read.time != usual.time_branch else []
    changed = config.normalization.model_dump(exclude_defaults=True)
    pairs += [f"normalization.{key}={value}" for key, value in changed.items()]
    return "".join(f" --set {in_shell(pair)}" for pair in pairs)

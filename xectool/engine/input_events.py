"""The events that a model predicts: opened without the cuts of a training, and with its look at the first batch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from xectool.checks.facts import arguments
from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.blocks import SourceFile
from xectool.data.events import EventSource
from xectool.data.source import open_source
from xectool.engine.loading import LoadedModel, served_in_order
from xectool.findings import Finding, Severity
from xectool.models.normalize import Normalizer
from xectool.training.guards.inputs import Opinion, opinion_of, raw_line

_KEPT_FILES = 4
_EVENTS = 16  # of each file; the median of their means and spreads decides


def open_events(loaded: LoadedModel, data: Sequence[str], max_events: int | None) -> EventSource:
    """Open the files without the training's cuts: every event is served, whether its truth is known or not.

    A file whose first events are out of scale is a finding of the source.
    """
    config = loaded.config
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    section = config.data.model_copy(update={"num_workers": 0})
    source = open_source(section, list(data), tasks=tasks, require_truth=False)
    source = source if max_events is None else source.first(max_events)
    source.kept_files = _KEPT_FILES  # read once, one after the other: 64 open ones would be 9 MB
    source.findings += scale_findings(loaded, source)
    return source


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
    many = f" ({len(found)} of {len(files)} files)" if len(files) > 1 else ""
    return (
        Finding(
            "XT-INPUT-SCALE",
            Severity.WARNING,
            f"branch '{branch}' of '{file.path}' is out of scale for this model{many}: {opinion.reason}; what is "
            "predicted from it means nothing",
            where=f"{file.path}:{file.tree} branch {branch}",
            evidence=(f"raw {opinion.channel} of its first events: {raw_line(opinion.channels[opinion.channel])}",),
            fix=f"xectool check-data {arguments(file.path, file.tree)}{_settings(loaded.config)}   # names the unit",
        ),
    )


def _opinion(loaded: LoadedModel, source: EventSource, file: SourceFile, normalizer: Normalizer) -> Opinion:
    """Return what the first events of a file look like to the model."""
    alone = EventSource((file,), source.branches).first(_EVENTS)
    with served_in_order(loaded, alone, _EVENTS) as loader:
        return opinion_of(next(iter(loader.epoch(0))), normalizer)


def _settings(config: RunConfig) -> str:
    """Return what the model reads and how it normalises, where that is not the default, as options."""
    own = {"data": config.data.model_dump(include={"npho_branch", "time_branch"}, exclude_defaults=True)}
    own["normalization"] = config.normalization.model_dump(exclude_defaults=True)
    pairs = [f"{section}.{key}={value}" for section, values in own.items() for key, value in values.items()]
    return "".join(f" --set {shlex.quote(pair)}" for pair in pairs)

"""What a dry run sees of the inputs: the guard of the first batch looks at some events of some files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from xectool.config.document import SET
from xectool.config.inputs import expand_inputs, is_remote
from xectool.config.load import LoadedConfig
from xectool.config.rules.count import count_rules
from xectool.config.serialize import dotted_values, inline_yaml
from xectool.data.batch import EventBatch
from xectool.data.blocks import SourceFile
from xectool.data.events import EventSource
from xectool.data.loader import EventLoader
from xectool.data.plan import DataPlan
from xectool.engine.convert_line import converting
from xectool.engine.training_run.start import opened, settings_at
from xectool.errors import in_shell
from xectool.findings import Finding, Severity
from xectool.models.normalize import Normalizer
from xectool.training.guards.inputs import InputScale, opinion_of, refusal
from xectool.training.record.run_dir import RunPlace
from xectool.training.stepping.build import RunData

_MOST_FILES: Final = 8
_EVENTS: Final = 16  # of a file
_READ: Final = ("data.", "normalization.", "tasks.")  # what decides how a file is read


def input_findings(data: RunData, loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield what the guard of the first batch would say of the first events of files of training and validation.

    An error is what would stop the training at its first batch. A file that is out of scale beside sound ones, or of
    validation, is a warning.
    """
    guards = data.config.guards
    if not guards.active(InputScale.code):
        return
    normalizer = Normalizer(data.config.normalization)
    stop = refusal(opinion_of(_first_events(data.train), normalizer), guards)
    if stop is not None:
        anyway = stop.fix.partition("   # ")[0]
        line = f"{_check_line(data.train, loaded)}   # names the unit or marker; to train all the same: {anyway}"
        yield Finding(stop.code, Severity.ERROR, stop.problem, stop.where, fix=line)
    for source, sample in ((data.train, ""), (data.val, "validation file ")):
        if stop is None or sample:
            yield from _odd_files(source, sample, normalizer, loaded)


def file_findings(loaded: LoadedConfig, place: RunPlace, num_ranks: int) -> tuple[Finding, ...]:
    """Return what a training would say of its files before its first step, by a look from here; nothing of urls.

    No copy of the events is made.

    Args:
        loaded: What is trained.
        place: Where it runs, and what it goes on from.
        num_ranks: Ranks that share the events.

    Raises:
        XecError: The data cannot be trained on.
    """
    config = loaded.config.data
    if any(map(is_remote, [*expand_inputs(config.train_path), *expand_inputs(config.val_path)])):
        return ()
    settings, late = settings_at(loaded.config, place)
    uncached = settings.model_copy(update={"data": settings.data.model_copy(update={"cache": "off"})})
    data = opened(loaded, place, uncached, late, looks=True)
    events = (data.train.num_events, data.val.num_events)
    counted = count_rules(loaded.config, *events, num_ranks, resumes=place.checkpoint is not None)
    noticed = converting(data.findings, config, data.train, data.val)
    loaded.require(counted)
    return (*loaded.locate(counted), *noticed, *input_findings(data, loaded))


def _odd_files(source: EventSource, sample: str, normalizer: Normalizer, loaded: LoadedConfig) -> Iterator[Finding]:
    batch = _first_events(source)
    for index in dict.fromkeys(batch.file_index.tolist()):
        opinion = opinion_of(batch.take(np.flatnonzero(batch.file_index == index)), normalizer)
        if opinion.level == "error":
            file, channel = _chosen(source)[index], opinion.channel
            branch = source.branches.npho if channel == "npho" else source.branches.time
            yield Finding(
                "XT-INPUT-SCALE",
                Severity.WARNING,
                f"the {channel} of the first events of {sample}{file.name} is out of scale: {opinion.reason}",
                where=f"{file.name} branch {branch}",
                fix=f"{_check_line(source, loaded)}   # names the unit or marker",
            )


def _chosen(source: EventSource) -> tuple[SourceFile, ...]:
    """Return some files with events, evenly."""
    files = [file for file in source.files if file.num_selected]
    places = np.unique(np.linspace(0, len(files) - 1, min(len(files), _MOST_FILES)).astype(int))
    return tuple(files[place] for place in places)


def _first_events(source: EventSource) -> EventBatch:
    """Return the first events of some files as one batch."""
    files = [EventSource((file,), source.branches).first(_EVENTS).files[0] for file in _chosen(source)]
    few = EventSource(tuple(files), source.branches)
    plan = DataPlan(few.files, batch_size=_MOST_FILES * _EVENTS, seed=0, shuffle=False, num_shards=1)
    with EventLoader(few, plan) as loader:
        return next(iter(loader.epoch(0)))


def _check_line(source: EventSource, loaded: LoadedConfig) -> str:
    """Return the command that names the unit of what a run reads, with the settings that were given beside the file."""
    values = dotted_values(loaded.config.to_dict())
    given = [key for key, place in loaded.origins.items() if place == SET and key.startswith(_READ)]
    told = [key for key in values if any(f"{key}.".startswith(f"{name}.") for name in given)]
    files = " ".join(in_shell(file.name) for file in _chosen(source))
    options = "".join(f" --set {in_shell(f'{key}={inline_yaml(values[key])}')}" for key in told)
    return f"xectool check-data {files} --config {in_shell(loaded.path)}{options}"

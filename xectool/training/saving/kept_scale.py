"""A scale of targets that an event has widened stays the run's, though a resume leaves the event out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from xectool.checkpoint.format import Checkpoint
from xectool.config.document import SET
from xectool.config.inputs import present_inputs
from xectool.config.left_out import KEY, leaving_out
from xectool.config.load import LoadedConfig
from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.serialize import inline_yaml
from xectool.data.events import EventSource
from xectool.data.source import open_source
from xectool.errors import counted, in_shell
from xectool.findings import Finding, Severity
from xectool.training.events.targets import measured_scales
from xectool.training.saving.late_exclusion import Events, saved_exclude

SAME = 1e-4  # of two scales that the same events have
_RESUMING = ("resume_from", "refresh_lr", "reset_epoch", "new_mlflow_run")
OF_RESUME = (KEY, "mlflow.run_name", *(f"checkpoint.{key}" for key in _RESUMING))
WIDER = math.sqrt(2)  # than without the events, from where on it is told, as of a scale at the start


def kept_scales(loaded: LoadedConfig, config: RunConfig, checkpoint: Checkpoint, since: Events) -> Iterator[Finding]:
    """Yield a warning where scales that a run keeps were measured with events that it leaves out by now.

    The truth is read once, and only where events are left out that the checkpoint did not leave out.

    Args:
        loaded: What is asked for.
        config: The same with the scales that the run keeps.
        checkpoint: Where it goes on.
        since: The events, as `left_out_since` finds them.
    """
    if not since or not isinstance(config, RegressorConfig):
        return
    names = tuple(config.tasks.enabled())
    data = loaded.config.data
    saved = saved_exclude(checkpoint, present_inputs(data.train_path))
    before = open_source(data.model_copy(update={"exclude": saved}), "train", names, require_truth=True)
    made, without = (measured_scales(config, truths) for truths in _truths(before, names, since))
    scales = {name: task.scale for name, task in config.tasks.enabled().items() if isinstance(task.scale, float)}
    wide = {
        name: (kept, without[name])
        for name, kept in scales.items()
        if math.isclose(kept, made[name], rel_tol=SAME) and kept > WIDER * without[name] > 0
    }
    if wide:
        told = " and ".join(f"tasks.{name}.scale {kept:.3g}, else {own:.3g}" for name, (kept, own) in wide.items())
        yield Finding(
            "XT-TARGET-SCALE",
            Severity.WARNING,
            f"the run keeps what it has measured with {counted(len(since), 'event')} that it leaves out now: {told}; "
            "its weights predict in these units",
            where="data.exclude",
            fix=_anew(loaded, checkpoint, tuple(wide)),
        )


def _truths(
    source: EventSource, names: tuple[str, ...], since: Events
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the truth of each task, shape (n, D), in all events, and without some."""
    stays = []
    for index, file in enumerate(source.files):
        served = np.arange(file.num_entries) if file.selected is None else file.selected
        stays.append(~np.isin(served, [entry for at, entry in since if at == index]))
    files, kept = range(len(source.files)), np.concatenate(stays)
    every = {name: np.concatenate([source.truth(i, name) for i in files]).astype(np.float64) for name in names}
    return every, {name: truth[kept] for name, truth in every.items()}


def _anew(loaded: LoadedConfig, checkpoint: Checkpoint, names: tuple[str, ...]) -> str:
    """Return the line of a new run, which measures the scales without the events."""
    config, saved = loaded.config, checkpoint.config
    name = config.mlflow.run_name or saved.get("mlflow", {}).get("run_name") or "run"
    tasks = config.tasks.enabled() if isinstance(config, RegressorConfig) else {}
    measured = [
        f"tasks.{task}.{key}=auto"
        for task in names
        for key in ("scale", "shift")
        if getattr(tasks[task], key) != "auto"
    ]
    anew = ["checkpoint.resume_from=null"] if config.checkpoint.resume_from else []
    settings = [*_as_asked(loaded), leaving_out(config.data), *measured, *anew]
    options = " ".join(f"--set {in_shell(setting)}" for setting in settings)
    return f"xectool train {in_shell(loaded.path)} --run-name {in_shell(f'{name}-again')} {options}"


def _as_asked(loaded: LoadedConfig) -> Iterator[str]:
    """Yield the settings that the file does not hold, but those of the resume."""
    values: Any = loaded.config.to_dict()
    for key in [key for key, origin in loaded.origins.items() if origin == SET and key not in OF_RESUME]:
        with suppress(KeyError, TypeError):  # replaced since, as by a later setting of its section
            yield f"{key}={inline_yaml(reduce(getitem, key.split('.'), values))}"

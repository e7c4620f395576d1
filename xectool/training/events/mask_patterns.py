"""Look up the patterns of dead channels that a training hides, and keep them in its configuration."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from xectool.config.inputs import expand_inputs
from xectool.config.mask_patterns import MaskPatternsConfig
from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.dead_channel_maps import (
    BRANCH_PREFIX,
    DATABASE_SCHEMES,
    DeadChannelMap,
    DeadChannelQuery,
    IntArray,
    dead_from_readings,
    find_dead_channels,
)
from xectool.data.events import EventSource
from xectool.errors import DataUnusable

LOOKED_AT_EVENTS = 10_000
"""Events of a file that are searched for dead channels; a sensor that reads once in more is not dead for long."""
_CHECKED_EVENTS = 1000


def resolve_mask_patterns(config: RunConfig, train: EventSource) -> RunConfig:
    """Return the configuration with the sensors of every pattern, so that a checkpoint needs none of the origins.

    Raises:
        DataUnusable: No pattern holds a sensor that the training events have a reading of: nothing would be hidden.
        XecError: An origin cannot be read.
    """
    if isinstance(config, RegressorConfig) or not config.model.mask_patterns.wanted:
        return config
    patterns = config.model.mask_patterns
    if not patterns.sensors:
        found = _maps(patterns, config.data.tree_name, config.data.npho_branch)
        sensors = tuple(tuple(int(sensor) for sensor in ids) for ids in map(_require_sensors, found))
        patterns = patterns.model_copy(update={"sensors": sensors})
    _require_readings(patterns, train)
    model = config.model.model_copy(update={"mask_patterns": patterns})
    return config.model_copy(update={"model": model})


def _maps(patterns: MaskPatternsConfig, tree: str, npho_branch: str) -> list[DeadChannelMap]:
    """Return one map a text file, a run of a database, or a file that is looked at, each with its own origin."""
    found: list[DeadChannelMap] = []
    query = DeadChannelQuery(tree=tree, npho_branch=npho_branch, max_events=LOOKED_AT_EVENTS)
    for origin in patterns.origins:
        if origin.startswith(DATABASE_SCHEMES):
            found += [find_dead_channels(origin, replace(query, run_number=run)) for run in patterns.runs]
        elif origin == "data" or origin.startswith(BRANCH_PREFIX):
            files = expand_inputs(patterns.files)
            maps = [find_dead_channels(origin, replace(query, files=[file])) for file in files]
            found += [replace(map_, origin=f"{map_.origin} of {file}") for map_, file in zip(maps, files, strict=True)]
        else:
            found.append(find_dead_channels(os.path.expanduser(origin)))
    return found


def _require_sensors(found: DeadChannelMap) -> IntArray:
    """Return the sensors of a pattern; one without any would hide nothing in the events that draw it."""
    if not len(found.sensors):
        raise DataUnusable(
            "a pattern of dead channels is empty: no sensor is dead there",
            where=f"model.mask_patterns: {found.origin}",
            fix="leave this one out of model.mask_patterns (origins, files or runs)",
            code="CFG-62",
        )
    return found.sensors


def _require_readings(patterns: MaskPatternsConfig, train: EventSource) -> None:
    """Refuse patterns of sensors that are dead in the training events too: there is no truth to learn from."""
    files = [file.name for file in train.files]
    query = DeadChannelQuery(files, train.files[0].tree, train.branches.npho, max_events=_CHECKED_EVENTS)
    dead = dead_from_readings(query).mask
    if any(_has_reading(pattern, dead) for pattern in patterns.sensors):
        return
    raise DataUnusable(
        f"all sensors of the {len(patterns.sensors)} patterns are dead in the training events: nothing would be hidden",
        where=f"model.mask_patterns.origins: {', '.join(patterns.origins)}",
        fix="delete model.mask_patterns to hide random sensors, or name dead channels of other runs",
        code="CFG-62",
    )


def _has_reading(pattern: tuple[int, ...], dead: npt.NDArray[np.bool_]) -> bool:
    return not bool(dead[list(pattern)].all())

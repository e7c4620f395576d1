"""Where the events come from and how they are served."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator

from xectool.config.section import Bool, Float, Int, Section, Str, describe, knob, refuse, section
from xectool.config.tasks import TASK_NAMES, TRUTH_BRANCHES
from xectool.errors import nearest

_EVENT = re.compile(r".+:[0-9]{1,12}")


def _read_paths(value: object) -> object:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise refuse(f"expected a path or a list of paths, got {describe(value)}")


def _read_branches(value: object) -> object:
    if not isinstance(value, dict):
        raise refuse(f"expected a mapping of task to branch, got {describe(value)}")
    for task, branch in value.items():
        if task not in TASK_NAMES:
            meant = nearest(str(task), TASK_NAMES, 1)
            hint = f"did you mean '{meant[0]}'?" if meant else f"one of {', '.join(TASK_NAMES)}"
            raise refuse(f"unknown task '{task}'; {hint}", _mended(value), task)
        if not isinstance(branch, str) or not branch:
            raise refuse(f"expected a branch name for {task}, got {describe(branch)}", _mended(value), task)
    return dict(TRUTH_BRANCHES) | value


def _mended(branches: dict[object, object]) -> dict[str, str]:
    """Return the branches that were told, each misspelt task under the name that is nearest."""
    told = {task: branch for task, branch in branches.items() if isinstance(branch, str) and branch}
    known = {str(task): branch for task, branch in told.items() if task in TASK_NAMES}
    near = {found[0]: branch for task, branch in told.items() if (found := nearest(str(task), TASK_NAMES, 1))}
    return {**near, **known}


def _read_events(value: object) -> object:
    events = _listed(value) if isinstance(value, str) else () if value is None else value
    if not isinstance(events, list | tuple):
        raise refuse(f"expected a list of FILE:ENTRY, got {describe(value)}")
    for event in events:
        if not (isinstance(event, str) and _EVENT.fullmatch(event)):
            raise refuse(f"expected events as FILE:ENTRY, such as [a.root:17, b.root:3], got {describe(event)}")
    return tuple(events)


def _listed(text: str) -> list[str]:
    """Return the events of one text, ``a.root:17,b.root:3``; where a part is none, a comma belongs to a name."""
    parts = [part.strip() for part in text.split(",")]
    return parts if all(map(_EVENT.fullmatch, parts)) else [text]


def _read_cache(value: object) -> object:
    if value is False:  # YAML 1.1 reads a bare off as a boolean
        return "off"
    if isinstance(value, str) and (value in ("auto", "off") or value.startswith("~") or "/" in value):
        return value
    raise refuse(f"expected auto, off, or a directory with a slash such as ./cache, got {describe(value)}")


Cache = Annotated[str, BeforeValidator(_read_cache)]
Events = Annotated[tuple[str, ...], BeforeValidator(_read_events)]
Paths = Annotated[str | tuple[str, ...], BeforeValidator(_read_paths)]
Branches = Annotated[dict[str, str], BeforeValidator(_read_branches)]


class FiducialConfig(Section):
    """Keep only events whose true conversion point lies inside this volume."""

    enabled: Bool = knob(False, "Whether the cut is applied, to training and validation events")
    u_max: Float = knob(23.9, "Largest |u| kept", "cm", gt=0, le=200)
    v_max: Float = knob(67.9, "Largest |v| kept", "cm", gt=0, le=200)
    w_min: Float = knob(0.0, "Smallest depth w kept", "cm", ge=-100, le=200)
    w_max: Float | None = knob(None, "Largest depth w kept; null for no limit", "cm", gt=0, le=200)


class DataConfig(Section):
    """Files, branches, and the order and size in which events are read."""

    train_path: Paths = knob("", "Training files: file, glob, directory, @list, url, or a list of these", code="CFG-38")
    val_path: Paths = knob("", "Validation files, written the same way", code="CFG-38")
    tree_name: Str = knob("tree", "Name of the TTree or RNTuple in each file")
    batch_size: Int = knob(256, "Events in one batch of one rank", "events", gt=0, le=1_000_000)
    chunksize: Int = knob(8192, "Events held in memory for shuffling, in total", "events", gt=0, le=100_000_000)
    num_shards: Int = knob(8, "Interleaved streams of an epoch; part of the event order", "streams", gt=0, le=4096)
    num_workers: Int = knob(0, "Reader processes of a rank; 0 reads in threads of the main process", "1", ge=0, le=512)
    num_threads: Int = knob(2, "Reader threads of a process", "1", gt=0, le=512)
    prefetch_factor: Int | None = knob(
        None, "Windows each worker process reads ahead; needs num_workers > 0", "1", gt=0, le=64
    )
    persistent_workers: Bool | None = knob(None, "Keep workers between epochs; needs num_workers > 0")
    pin_memory: Bool | None = knob(None, "Page-locked batches; null: only with an accelerator")
    mp_context: Literal["forkserver", "spawn", "fork"] = knob("forkserver", "How worker processes start", code="CFG-19")
    timeout_s: Float = knob(600.0, "Longest wait for one window from a worker process", "s", gt=0, le=86_400)
    npho_branch: Str = knob("npho", "Branch with the photons of each sensor, 4760 numbers")
    time_branch: Str = knob("relative_time", "Branch with the time of each sensor, 4760 numbers in s")
    run_branch: Str = knob("run", "Branch with the run number")
    event_branch: Str = knob("event", "Branch with the event number")
    truth_branches: Branches = knob(dict(TRUTH_BRANCHES), "Branch that holds the truth of each task", code="CFG-04")
    log_invalid_npho: Bool = knob(True, "Report sensors whose photon number is invalid")
    exclude: Events = knob(
        (),
        "Events left out of training and validation: [FILE:ENTRY, ...], a file by its path or the end of it",
        code="CFG-38",
    )
    fiducial: FiducialConfig = section(FiducialConfig, "Cut on the true conversion point")
    cache: Cache = knob("auto", "Copy of the events that is faster to read: auto, off, or a directory such as ./cache")
    cache_precision: Literal["lossless", "compact"] = knob(
        "lossless", "Readings in the cache: as they are, or as 16-bit codes (half the disk; docs/scaling.md)"
    )
    cache_limit_gb: Float | None = knob(
        None,
        "Most that all files in the cache directory take; null leaves a tenth of the disk free, 10 GB at most",
        "GB",
        gt=0,
        le=1e6,
    )
    shuffle: Bool = knob(True, "Shuffle training events, over all files")
    drop_last: Bool = knob(False, "Leave out the short last batch of a training epoch")
    allow_overlap: Bool = knob(False, "Allow the same file for training and validation (smoke tests only)")

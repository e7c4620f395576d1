"""The fewest events that fail, as one file that needs nothing else: plain arrays, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xectool.data.batch import EventBatch
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import DiskError, UsageError
from xectool.runlog.arrays import read_arrays
from xectool.runlog.records import to_json

FORMAT = 1
TARGET_PREFIX = "targets_"
IDENTITY = ("file_index", "entry", "run", "event")


@dataclass(frozen=True)
class SavedBatch:
    """Events on their own.

    Attributes:
        window: Batches of one optimizer step.
        files: Paths that the file indices of the events mean.
        facts: ``config`` (resolved), ``checkpoint``, ``rank`` and what was found, as plain values.
    """

    window: tuple[EventBatch, ...]
    files: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def save_batch(path: Path, saved: SavedBatch) -> None:
    """Write events to an ``.npz`` file, whole or not at all.

    Raises:
        DiskError: The disk refuses.
    """
    arrays = {key: np.concatenate([_arrays(batch)[key] for batch in saved.window]) for key in _arrays(saved.window[0])}
    arrays["batches"] = np.array([[b.num_events, b.epoch, b.step] for b in saved.window], dtype=np.int64)
    arrays["files"] = np.array(saved.files, dtype=np.str_)
    arrays["facts"] = np.array(to_json({"format": FORMAT, **saved.facts}))
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        part.replace(path)
    except OSError as error:
        raise DiskError(
            f"the batch could not be written: {error.strerror}", where=str(path), fix="--output ANOTHER_PLACE.npz"
        ) from error


def load_batch(path: Path) -> SavedBatch:
    """Read what `save_batch`, or an incident of a run, wrote.

    Raises:
        UsageError: There is no such file, or it holds no events.
    """
    if not path.is_file():
        raise UsageError("no such batch file", where=str(path), fix="name the .npz that diagnose nan-batch wrote")
    try:
        arrays = read_arrays(path)
        facts = json.loads(str(arrays["facts"])) if "facts" in arrays else {}
        return SavedBatch(_window(arrays), tuple(map(str, arrays.get("files", []))), facts)
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"the file holds no batch of events: {error}",
            where=str(path),
            fix="name the .npz that diagnose nan-batch wrote, or batch.npz of an incident",
        ) from error


def _arrays(batch: EventBatch) -> dict[str, np.ndarray]:
    tensors = {"npho": batch.npho, "time": batch.time, "weight": batch.weight}
    tensors |= {TARGET_PREFIX + task: target for task, target in batch.targets.items()}
    return {key: value.cpu().numpy() for key, value in tensors.items()} | {key: getattr(batch, key) for key in IDENTITY}


def _window(arrays: Mapping[str, np.ndarray]) -> tuple[EventBatch, ...]:
    num_events = len(arrays["npho"])
    if arrays["npho"].shape != (num_events, NUM_SENSORS) or arrays["time"].shape != arrays["npho"].shape:
        raise ValueError(f"npho is {arrays['npho'].shape}, time {arrays['time'].shape}")
    batches = arrays.get("batches", np.array([[num_events, 1, 0]]))
    edges = np.cumsum([0, *batches[:, 0]])
    if edges[-1] != num_events:
        raise ValueError(f"{num_events} events in batches of {batches[:, 0].tolist()}")
    return tuple(
        _batch(arrays, slice(int(low), int(high)), int(epoch), int(step))
        for low, high, (_, epoch, step) in zip(edges, edges[1:], batches, strict=False)
    )


def _batch(arrays: Mapping[str, np.ndarray], rows: slice, epoch: int, step: int) -> EventBatch:
    def tensor(key: str) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(arrays[key][rows], dtype=np.float32))

    targets = {k.removeprefix(TARGET_PREFIX): tensor(k) for k in arrays if k.startswith(TARGET_PREFIX)}
    weight = tensor("weight") if "weight" in arrays else torch.ones(rows.stop - rows.start)
    identity = {key: arrays[key][rows] for key in IDENTITY}
    return EventBatch(
        npho=tensor("npho"), time=tensor("time"), targets=targets, weight=weight, epoch=epoch, step=step, **identity
    )


def plain_window(window: Sequence[EventBatch]) -> tuple[EventBatch, ...]:
    """Return batches without what a task added to them, on the CPU."""
    names = [item.name for item in fields(EventBatch)]
    return tuple(EventBatch(**{name: getattr(batch, name) for name in names}).to("cpu") for batch in window)

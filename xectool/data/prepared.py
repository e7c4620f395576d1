"""What is found out about the files of a data set before its first batch, once for all ranks and later runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from xectool.config.inputs import split_tree
from xectool.config.root import RegressorConfig, RunConfig
from xectool.data.blocks import SourceFile
from xectool.data.cache.identity import file_facts
from xectool.data.cache.tables import Arrays, PreparedTables, text_array, text_value
from xectool.data.event_weigher import EventWeigher
from xectool.data.events import EventSource
from xectool.data.intensity import IntensityReweighter
from xectool.data.selection import Overlap, find_overlap
from xectool.data.weights import SampleReweighter

Array = npt.NDArray[Any]


def event_weights(config: RunConfig, source: EventSource, tables: PreparedTables) -> EventWeigher | None:
    """Return the weights of training events, fitted on them; None where they are not weighed.

    Raises:
        ConfigError: A reweighted task is not trained.
        DataUnusable: No event can be weighed.
    """
    if isinstance(config, RegressorConfig):
        if not config.reweighting.enabled():
            return None
        settings = config.reweighting
        identity = source_identity(source, reweighting=settings.model_dump(mode="json"))
        fitted = tables.get("weights", identity, lambda: SampleReweighter.fit(source, settings).to_arrays())
        return SampleReweighter.from_arrays(fitted)
    intensity = config.training.intensity_reweighting
    if not intensity.enabled:
        return None
    identity = source_identity(source, intensity=intensity.model_dump(mode="json"))
    fitted = tables.get("weights", identity, lambda: IntensityReweighter.fit(source, intensity).to_arrays())
    return IntensityReweighter.from_arrays(fitted)


def overlap(train: EventSource, val: EventSource, tables: PreparedTables) -> Overlap:
    """Return the validation events that are also training events."""
    one, other = source_identity(train), source_identity(val)
    identity = None if one is None or other is None else {"train": one, "val": other}
    found = tables.get("overlap", identity, lambda: {"overlap": text_array(asdict(find_overlap(train, val)))})
    return Overlap(**text_value(found["overlap"]))


def source_identity(source: EventSource, **settings: Any) -> dict[str, Any] | None:
    """Return what a result found from all served events depends on; None where a file is a url."""
    files = files_identity([file.path for file in source.files])
    if files is None:
        return None
    chosen = [
        None if file.selected is None else xxhash.xxh3_128_hexdigest(file.selected.tobytes()) for file in source.files
    ]
    trees = [file.tree for file in source.files]
    branches = asdict(source.branches)
    return {"files": files, "trees": trees, "selected": chosen, "branches": branches, "settings": settings}


def files_identity(paths: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return facts of files that change when their content does; None where one is a url or not there."""
    found = []
    for path in paths:
        try:
            facts = file_facts(split_tree(path)[0])
        except OSError:
            return None
        if facts is None:
            return None
        found.append(facts | {"given": path})
    return found


def indexed_files(
    tables: PreparedTables,
    paths: Sequence[str],
    settings: Mapping[str, Any],
    open_files: Callable[[], tuple[list[SourceFile], list[str]]],
) -> tuple[list[SourceFile], list[str]]:
    """Return the files as the plan needs them, and the tasks whose truth some of them hold.

    Args:
        tables: Kept results.
        paths: The files.
        settings: What else the result depends on.
        open_files: Opens and checks every file.
    """
    files = files_identity(paths) if tables.directory is not None else None
    identity = None if files is None else {"files": files, "settings": dict(settings)}
    return _unpacked(tables.get("index", identity, lambda: _packed(*open_files())))


def _packed(files: list[SourceFile], tasks: list[str]) -> Arrays:
    starts = [np.asarray(file.cluster_starts, np.int64) for file in files]
    chosen = [np.empty(0, np.int64) if file.selected is None else file.selected for file in files]
    facts = [[file.path, file.tree, file.num_entries, file.selected is not None] for file in files]
    return {
        "facts": text_array({"files": facts, "tasks": tasks}),
        "starts": np.concatenate(starts),
        "num_starts": np.array([len(part) for part in starts]),
        "selected": np.concatenate(chosen),
        "num_selected": np.array([len(part) for part in chosen]),
    }


def _unpacked(arrays: Arrays) -> tuple[list[SourceFile], list[str]]:
    facts = text_value(arrays["facts"])
    starts = _parts(arrays["starts"], arrays["num_starts"])
    chosen = _parts(arrays["selected"], arrays["num_selected"])
    files = [
        SourceFile(path, tree, entries, tuple(start.tolist()), selected if cut else None)
        for (path, tree, entries, cut), start, selected in zip(facts["files"], starts, chosen, strict=True)
    ]
    return files, list(facts["tasks"])


def _parts(values: Array, counts: Array) -> list[Array]:
    return np.split(values, np.cumsum(counts)[:-1]) if len(counts) else []

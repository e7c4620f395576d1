"""Opens a data set as the configuration describes it: files found, branches checked, events selected."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from xectool.config.data import DataConfig
from xectool.config.inputs import expand_inputs, free_name, input_name
from xectool.config.left_out import left_out, refuse_beyond
from xectool.config.serialize import inline_yaml
from xectool.config.tasks import TASK_WIDTHS
from xectool.data.blocks import SourceFile
from xectool.data.cache.tables import PreparedTables
from xectool.data.events import EventSource, SourceBranches
from xectool.data.prepared import indexed_files
from xectool.data.selection import excluded_entries, fiducial_entries
from xectool.detector.constants import NUM_SENSORS
from xectool.errors import ConfigError, DataUnusable, in_shell
from xectool.findings import Finding, Severity
from xectool.rootio.reader import EventFile
from xectool.rootio.schema import ExpectedBranch, check_schema

__all__ = ["EventSource", "SourceBranches", "open_source"]

EventIdentity = tuple[int, int]
# Keys that what is found in a file depends on.
_INDEXED = {"tree_name", "npho_branch", "time_branch", "run_branch", "event_branch", "truth_branches", "fiducial"}
_NO_TABLES = PreparedTables()


def open_source(
    data: DataConfig,
    which: Literal["train", "val"] | Sequence[str],
    tasks: Sequence[str],
    require_truth: bool = True,
    exclude: Collection[EventIdentity] = (),
    tables: PreparedTables = _NO_TABLES,
) -> EventSource:
    """Open the training files, the validation files, or the given ones.

    The fiducial cut and ``data.exclude`` are applied to training and validation files, never to given ones. A file
    without run or event branch is served with run -1 and the entry as event number.

    Args:
        data: The data section of the configuration.
        which: ``"train"``, ``"val"``, or paths as ``expand_inputs`` takes them.
        tasks: Tasks whose truth is read.
        require_truth: Whether a file without the truth of a task is an error; else its truth is "unknown" (1e10), and
            a task without truth in any file is left out.
        exclude: Events that are not served, as (file index, entry).
        tables: What earlier runs found out about the files, so that none has to be opened.

    Raises:
        DataFileError: A file, tree or branch is absent or of another shape.
        DataUnusable: No file holds an event, or no event passes the selection.
        ConfigError: An event of ``data.exclude`` is in no file, or in one of several.
    """
    branches = {task: data.truth_branches[task] for task in tasks}
    cut = isinstance(which, str) and data.fiducial.enabled
    paths = expand_inputs(_paths(data, which))
    exclude = {*exclude, *(left_out(data, paths) if isinstance(which, str) else ())}
    settings = {"data": data.model_dump(mode="json", include=_INDEXED), "tasks": list(tasks), "cut": cut}
    settings |= {"truth": require_truth, "exclude": sorted((int(index), int(entry)) for index, entry in exclude)}

    def open_files() -> tuple[list[SourceFile], list[str]]:
        opened = [
            _opened(data, index, path, (branches, require_truth, cut, exclude)) for index, path in enumerate(paths)
        ]
        return [file for file, _ in opened], sorted({task for _, found in opened for task in found})

    files, present = indexed_files(tables, paths, settings, open_files)
    truth = {task: branch for task, branch in branches.items() if task in present}
    source = EventSource(
        tuple(files),
        SourceBranches(data.npho_branch, data.time_branch, data.run_branch, data.event_branch, truth),
        tuple(_empty_file(file) for file in files if file.num_entries == 0),
    )
    _check_not_empty(source, cut, bool(data.exclude))
    return source


def _opened(
    data: DataConfig,
    index: int,
    path: str,
    wanted: tuple[dict[str, str], bool, bool, Collection[EventIdentity]],
) -> tuple[SourceFile, set[str]]:
    """Return a file as the plan needs it, checked, and the tasks whose truth it holds."""
    branches, require_truth, cut, exclude = wanted
    with EventFile(path, data.tree_name) as file:
        present = {task for task, branch in branches.items() if branch in file.branch_names}
        instead = _without_truth(data, file) if require_truth and branches and not present else ""
        expected = _expected(data, file, branches, require_truth, cut)
        check_schema(file, expected, instead, data.truth_branches.values())
        selected = fiducial_entries(file, data) if cut else None
        gone = [entry for at, entry in exclude if at == index]
        refuse_beyond(data, path, gone, file.num_entries)
        selected = excluded_entries(selected, file.num_entries, gone)
        starts = file.cluster_starts(data.npho_branch)
        return SourceFile(file.path, file.tree, file.num_entries, starts, selected), present


def _without_truth(data: DataConfig, file: EventFile) -> str:
    """Return what trains on a file without the truth of any enabled task: another task, or a kind that needs none."""
    held = [task for task, branch in data.truth_branches.items() if branch in file.branch_names]
    if held:
        return f"--set tasks.{held[0]}.enabled=true"
    usual, new = DataConfig(), free_name("mae", ".yaml")
    keys = [key for key in vars(data) if key.endswith(("_path", "_branch")) or key in ("tree_name", "exclude")]
    kept = {key: value for key in keys if (value := getattr(data, key)) != getattr(usual, key)}
    settings = " ".join(f"--set {in_shell(f'data.{key}={inline_yaml(value)}')}" for key, value in kept.items())
    line = f"xectool config init --kind mae {settings} > {new} && xectool train {new} --dry-run"
    return f"{line}   # a regressor needs truth, this masked autoencoder of the same files none"


def _paths(data: DataConfig, which: str | Sequence[str]) -> str | Sequence[str]:
    if not isinstance(which, str):
        return which
    paths = {"train": data.train_path, "val": data.val_path}[which]
    if not paths:
        raise ConfigError(
            f"data.{which}_path is empty", where=f"data.{which}_path", fix=f"--set data.{which}_path=/path/to/*.root"
        )
    return paths


def _expected(
    data: DataConfig, file: EventFile, truth: dict[str, str], require_truth: bool, cut: bool
) -> list[ExpectedBranch]:
    expected = [
        ExpectedBranch(data.npho_branch, NUM_SENSORS, "photons of each sensor", "data.npho_branch"),
        ExpectedBranch(data.time_branch, NUM_SENSORS, "time of each sensor", "data.time_branch"),
    ]
    needed = dict(truth)
    if cut:
        needed["uvwFI"] = data.truth_branches["uvwFI"]
    expected += [
        ExpectedBranch(
            branch,
            TASK_WIDTHS[task],
            f"truth of task {task}",
            f"data.truth_branches.{task}",
            f"tasks.{task}.enabled=false" if task in truth else "",
        )
        for task, branch in needed.items()
        if require_truth or branch in file.branch_names or (cut and task == "uvwFI")
    ]
    numbers = (
        ("run number", data.run_branch, "data.run_branch"),
        ("event number", data.event_branch, "data.event_branch"),
    )
    expected += [ExpectedBranch(name, 1, role, option) for role, name, option in numbers if name in file.branch_names]
    return expected


def _empty_file(file: SourceFile) -> Finding:
    return Finding(
        code="XT-DATA-EMPTY-TREE",
        severity=Severity.WARNING,
        problem=f"'{file.path}' has no entries in tree '{file.tree}' and is left out",
        where=input_name(file.path, file.tree),
        fix="take it out of the list, or make it again",
    )


def _fewer(leaves_out: bool) -> str:
    return "--set 'data.exclude=[]'" if leaves_out else "serve fewer excluded events"


def _check_not_empty(source: EventSource, cut: bool, leaves_out: bool) -> None:
    total = sum(file.num_entries for file in source.files)
    if total == 0:
        raise DataUnusable(
            f"none of the {len(source.files)} files holds an event (first: '{source.files[0].path}')",
            where=source.files[0].path,
            fix="make the files again",
            code="XT-DATA-NO-EVENTS",
        )
    if source.num_events == 0:
        raise DataUnusable(
            f"none of the {total} events passes the selection",
            where="data.fiducial" if cut else "data.exclude",
            fix="--set data.fiducial.enabled=false" if cut else _fewer(leaves_out),
            code="XT-DATA-NO-EVENTS",
        )

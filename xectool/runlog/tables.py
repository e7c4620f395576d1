"""The record of a run as tables: columns of equal length, with null where nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xectool.runlog.layout import MAPS, StepBlock
from xectool.runlog.reader import RunReader
from xectool.runlog.records import AttemptRecord, EpochRecord, EventRecord, StepRecord, to_json
from xectool.runlog.storage import attempt_dir, attempts, open_source

_ARROW: Final = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
_SCALARS: Final = tuple(item.name for item in fields(StepRecord) if item.name not in MAPS)
_UNMEASURED: Final = frozenset({"lr", "grad_norm", "weight_norm"})  # NaN there means "not measured" on a sound step


def load_table(reader: RunReader, name: str) -> pa.Table:
    """Return one table of a run.

    Args:
        reader: The run.
        name: One of `TABLES`.
    """
    return _LOADERS[name](reader)


def _steps(reader: RunReader) -> pa.Table:
    """Return ``attempt``, the fields of a step, and ``loss_<term>`` for each term; one row a step that counts."""
    return _concatenated([_step_columns(attempt, block) for attempt, block in reader.step_blocks()], _empty_step())


def _rank_steps(reader: RunReader) -> pa.Table:
    """Return the same for every rank, with its number in ``rank``; one row a step and rank."""
    return _concatenated([_step_columns(attempt, block) for attempt, block in reader.rank_blocks()], _empty_step())


def _step_columns(attempt: int, block: StepBlock) -> pa.Table:
    columns: dict[str, Any] = {"attempt": pa.array(np.full(len(block.rows), attempt))}
    measured = block.column("nonfinite")
    for name in _SCALARS:
        values = block.column(name)
        unknown = np.isnan(values) & ~measured if name in _UNMEASURED else None
        columns[name] = pa.array(np.ascontiguousarray(values), mask=unknown, from_pandas=False)
    for key, term in block.layout.values:
        if key == "losses":
            values, present = block.values(key, term)
            columns[f"loss_{term}"] = pa.array(values, mask=~present, from_pandas=False)
    return pa.table(columns)


def _modules(reader: RunReader) -> pa.Table:
    """Return the gradient norm of each parameter block of each step, one row each."""
    parts = []
    for attempt, block in reader.step_blocks():
        for key, name in block.layout.values:
            if key == "block_norms":
                parts.append(_module_rows(attempt, block, name))
    return _concatenated(parts, _empty({"attempt": int, "epoch": int, "step": int, "block": str, "grad_norm": float}))


def _module_rows(attempt: int, block: StepBlock, name: str) -> pa.Table:
    norms, present = block.values("block_norms", name)
    count = int(present.sum())
    return pa.table(
        {
            "attempt": pa.array(np.full(count, attempt)),
            "epoch": pa.array(block.column("epoch")[present]),
            "step": pa.array(block.column("step")[present]),
            "block": pa.repeat(name, count),
            "grad_norm": pa.array(norms[present], from_pandas=False),
        }
    )


def _epochs(reader: RunReader) -> pa.Table:
    """Return the fields of each epoch and one column a metric, such as ``"val/loss"``."""
    epochs = reader.epochs()
    names = dict.fromkeys(name for record in epochs for name in record.metrics)
    table = _of_records(EpochRecord, epochs)
    for name in (name for name in names if name not in table.column_names):
        table = table.append_column(name, pa.array([record.metrics.get(name) for record in epochs], pa.float64()))
    return table


def _events(reader: RunReader) -> pa.Table:
    """Return all events with their attempt, and whether it was not given up at that step; ``data`` is JSON."""
    tagged, lineage = reader.tagged_events(), reader.lineage()
    table = _of_records(EventRecord, [event for _, event in tagged])
    table = table.append_column("attempt", pa.array([attempt for attempt, _ in tagged], pa.int64()))
    counts = [lineage.counts(attempt, event.step) for attempt, event in tagged]
    return table.append_column("counts", pa.array(counts, pa.bool_()))


def _attempts(reader: RunReader) -> pa.Table:
    """Return which process wrote each attempt."""
    found = [open_source(attempt_dir(reader.run_dir, number)).others().records for number in attempts(reader.run_dir)]
    return _of_records(AttemptRecord, [one for part in found for one in part if isinstance(one, AttemptRecord)])


def _stacks(reader: RunReader) -> pa.Table:
    """Return the lines of all dumped stacks, in the order they were written; empty where none was dumped."""
    rows = [
        (attempt, path.stem, number, line)
        for attempt in attempts(reader.run_dir)
        for path in sorted(attempt_dir(reader.run_dir, attempt).glob("*.stacks"))
        for number, line in enumerate(path.read_text(errors="replace", encoding="utf-8").splitlines(), 1)
    ]
    names = {"attempt": int, "source": str, "line": int, "text": str}
    if not rows:
        return _empty(names)
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def _of_records(kind: type, records: Sequence[Any]) -> pa.Table:
    columns = {}
    for item in (item for item in fields(kind) if item.name != "metrics"):
        values = [getattr(record, item.name) for record in records]
        text = item.type not in _ARROW
        columns[item.name] = pa.array(
            [to_json(value) for value in values] if text else values, _ARROW.get(str(item.type), pa.string())
        )
    return pa.table(columns)


def _empty(columns: Mapping[str, type]) -> pa.Table:
    return pa.table({name: pa.array([], _ARROW[kind.__name__]) for name, kind in columns.items()})


def _empty_step() -> pa.Table:
    types = {item.name: _ARROW[str(item.type)] for item in fields(StepRecord) if item.name in _SCALARS}
    return pa.table({name: pa.array([], kind) for name, kind in {"attempt": pa.int64(), **types}.items()})


def _concatenated(parts: Iterable[pa.Table], empty: pa.Table) -> pa.Table:
    return pa.concat_tables([empty, *parts], promote_options="default")


_LOADERS: Final[Mapping[str, Callable[[RunReader], pa.Table]]] = {
    "steps": _steps,
    "rank_steps": _rank_steps,
    "modules": _modules,
    "epochs": _epochs,
    "events": _events,
    "stacks": _stacks,
    "attempts": _attempts,
}
TABLES: Final = tuple(_LOADERS)
"""Names of the tables."""

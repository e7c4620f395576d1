"""Write predictions in physical units to a ROOT file, batch by batch, so memory does not grow with the events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from xectool.config.tasks import TASK_WIDTHS
from xectool.data.batch import EventBatch
from xectool.rootio.origin import Origin
from xectool.rootio.writer import TreeWriter
from xectool.tasks.base import MetricAccumulator
from xectool.training.stepping.evaluate import Predicted


@dataclass(frozen=True)
class PredictionRun:
    """What to do with each predicted batch.

    Attributes:
        tasks: Predicted tasks.
        sigma_tasks: Those with a predicted uncertainty.
        truth_tasks: Those whose truth the files hold.
        decode: Turns outputs into physical values by task, and ``sigma_<task>`` where predicted.
        accumulator: Collects metrics; None where no truth is known.
        texts: What is kept beside the tree, by name.
    """

    tasks: tuple[str, ...]
    decode: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    sigma_tasks: tuple[str, ...] = ()
    truth_tasks: tuple[str, ...] = ()
    accumulator: MetricAccumulator | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def write_predictions(predicted: Iterable[Predicted], output: Path | None, run: PredictionRun) -> tuple[int, float]:
    """Write predicted batches into ``output`` and return the number of events and events per second.

    The file has one tree ``tree`` with ``file_index, entry, run, event, pred_<task>[n]``, ``sigma_<task>[n]`` and
    ``truth_<task>[n]``; it gets its name when it is whole. Without ``output`` events are only scored.
    """
    began, num_events = time.perf_counter(), 0
    with (
        TreeWriter(output, _branches(run), origin=Origin.PREDICTIONS, texts=run.texts)
        if output is not None
        else nullcontext() as writer
    ):
        for batch, outputs in predicted:
            if writer is not None:
                writer.extend(_columns(batch, run.decode(outputs), run))
            if run.accumulator is not None:
                run.accumulator.update(outputs, batch)
            num_events += batch.num_events
            del batch, outputs
    return num_events, num_events / max(time.perf_counter() - began, 1e-9)


def _branches(run: PredictionRun) -> dict[str, tuple[str, tuple[int, ...]]]:
    branches: dict[str, tuple[str, tuple[int, ...]]] = {
        "file_index": ("i4", ()),
        "entry": ("i8", ()),
        "run": ("i8", ()),
        "event": ("i8", ()),
    }
    for prefix, names in (("pred", run.tasks), ("sigma", run.sigma_tasks), ("truth", run.truth_tasks)):
        branches |= {f"{prefix}_{name}": ("f4", (TASK_WIDTHS[name],)) for name in names}
    return branches


def _columns(batch: EventBatch, physical: Mapping[str, Tensor], run: PredictionRun) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {
        "file_index": np.asarray(batch.file_index, dtype=np.int32),
        "entry": np.asarray(batch.entry, dtype=np.int64),
        "run": np.asarray(batch.run, dtype=np.int64),
        "event": np.asarray(batch.event, dtype=np.int64),
    }
    columns |= {f"pred_{name}": _array(physical[name]) for name in run.tasks}
    columns |= {f"sigma_{name}": _array(physical[f"sigma_{name}"]) for name in run.sigma_tasks}
    columns |= {f"truth_{name}": _array(batch.targets[name]) for name in run.truth_tasks}
    return columns


def _array(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()

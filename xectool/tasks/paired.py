"""Metrics of the same events predicted in several ways, with the statistical errors of their differences.

Axes: B events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xectool.tasks.residuals import Columns, task_metrics

NUM_RESAMPLES = 200
"""Bootstrap samples; the error of an error is then 1 / sqrt(2 x 200) = 5 %."""
MAX_DRAWN = 20_000
"""Events of a sample at most; from more of them the error is scaled by sqrt(drawn / B)."""
_SEED = 20240601

Draws = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class PairedMetric:
    """One metric of one task.

    Attributes:
        task: Task name.
        metric: Name of the metric.
        values: By variant.
        differences: Variant minus the reference variant, without the reference.
        errors: Standard error of each difference: variants see the same events, so most of the spread cancels.
        value_errors: Standard error of each value.
        events: Events with a truth of the task: those behind the values.
    """

    task: str
    metric: str
    values: Mapping[str, float]
    differences: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    value_errors: Mapping[str, float] = field(default_factory=dict)
    events: int = 0


def paired_metrics(task: str, columns: Mapping[str, Columns], reference: str) -> list[PairedMetric]:
    """Return every metric of a task for every variant.

    Errors come from a paired bootstrap: events are drawn with replacement, the same ones for all variants, and each
    sample gives a difference of metrics; their standard deviation is the error (Efron, Ann. Statist. 7, 1979).

    Args:
        task: Task name.
        columns: By variant, as `residual_columns` returns them; the same events in the same order.
        reference: The variant that the others are compared with.
    """
    found = {name: task_metrics(task, variant) for name, variant in columns.items()}
    others = [name for name in columns if name != reference]
    draws, scale = _draws(task, columns)

    def spread(values: npt.NDArray[np.float64]) -> float:
        return float(np.std(values, ddof=1) * scale)

    return [
        PairedMetric(
            task,
            metric,
            {name: values.get(metric, float("nan")) for name, values in found.items()},
            {name: found[name].get(metric, float("nan")) - value for name in others},
            {name: spread(draws[name][metric] - draws[reference][metric]) for name in others},
            {name: spread(draws[name][metric]) for name in columns},
            len(columns[reference]["residual"]),
        )
        for metric, value in found[reference].items()
    ]


def _draws(task: str, columns: Mapping[str, Columns]) -> tuple[dict[str, Draws], float]:
    """Return every metric of every bootstrap sample by variant, and what their spread is to be multiplied with."""
    num_events = len(next(iter(columns.values()))["residual"])
    drawn = min(num_events, MAX_DRAWN)
    draws: dict[str, Draws] = {name: defaultdict(_unknown) for name in columns}
    generator = np.random.default_rng(_SEED)
    for sample in range(NUM_RESAMPLES if num_events > 1 else 0):
        rows = generator.integers(0, num_events, drawn)
        for name, variant in columns.items():
            for metric, value in task_metrics(task, {key: column[rows] for key, column in variant.items()}).items():
                draws[name][metric][sample] = value
    return draws, float(np.sqrt(drawn / num_events)) if num_events else 1.0


def _unknown() -> npt.NDArray[np.float64]:
    return np.full(NUM_RESAMPLES, np.nan)

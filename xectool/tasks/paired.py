"""Metrics of the same events predicted in several ways, with the statistical errors of their differences.

Axes: B events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from xectool.tasks.residuals import Columns, task_metrics

NUM_RESAMPLES = 200
"""Bootstrap samples; the error of an error is then 1 / sqrt(2 x 200) = 5 %."""
_SEED = 20240601


@dataclass(frozen=True)
class PairedMetric:
    """One metric of one task.

    Attributes:
        task: Task name.
        metric: Name of the metric.
        values: By variant.
        differences: Variant minus the reference variant, without the reference.
        errors: Standard error of each difference: variants see the same events, so most of the spread cancels.
    """

    task: str
    metric: str
    values: Mapping[str, float]
    differences: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)


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
    spread = _spread(task, columns, reference, others) if others else {}
    return [
        PairedMetric(
            task,
            metric,
            {name: values.get(metric, float("nan")) for name, values in found.items()},
            {name: found[name].get(metric, float("nan")) - value for name in others},
            {name: spread[name].get(metric, float("nan")) for name in others},
        )
        for metric, value in found[reference].items()
    ]


def _spread(
    task: str, columns: Mapping[str, Columns], reference: str, others: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the standard deviation over bootstrap samples of each difference, by variant and metric."""
    num_events = len(columns[reference]["residual"])
    if num_events < 2:
        return {name: {} for name in others}
    generator = np.random.default_rng(_SEED)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in others}
    for _ in range(NUM_RESAMPLES):
        rows = generator.integers(0, num_events, num_events)
        drawn = {
            name: task_metrics(task, {key: column[rows] for key, column in variant.items()})
            for name, variant in columns.items()
        }
        for name in others:
            samples[name].append({m: drawn[name].get(m, float("nan")) - v for m, v in drawn[reference].items()})
    return {
        name: {metric: float(np.std([draw.get(metric, np.nan) for draw in draws], ddof=1)) for metric in draws[0]}
        for name, draws in samples.items()
    }

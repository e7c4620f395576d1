"""Which of a network's metrics conventional estimators were scored on too, over the same events."""

from __future__ import annotations

from collections.abc import Iterable

from xectool.config.tasks import HEADLINE_METRICS

PREFIX = "baseline_"
CONSTANT = "constant"
"""Estimator that does not look at the event; a masked autoencoder, which hides most sensors, has no other beside it."""
_OF_A_TASK = {metric: PREFIX + task for task, metric in HEADLINE_METRICS.items()}


def conventional(metric: str, recorded: Iterable[str]) -> dict[str, str]:
    """Return the metric of each conventional estimator that answers to a network's, by the estimator's name.

    Args:
        metric: A metric of the network.
        recorded: Names of all metrics of an epoch: ``baseline_<task>`` answers to the headline metric of a task,
            ``baseline_<estimator>_<metric>`` to those of hidden sensors.

    >>> conventional("energy_res_68pct", ["energy_res_68pct", "baseline_energy"])
    {'conventional': 'baseline_energy'}
    >>> conventional("mae_npho", ["mae_npho", "baseline_neighbour_mae_npho"])
    {'neighbour': 'baseline_neighbour_mae_npho'}
    """
    found = {}
    for name in recorded:
        if name == _OF_A_TASK.get(metric):
            found["conventional"] = name
        elif name.startswith(PREFIX) and name.endswith(f"_{metric}"):
            found[name.removeprefix(PREFIX).removesuffix(f"_{metric}")] = name
    return found

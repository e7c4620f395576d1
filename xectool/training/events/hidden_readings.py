"""Refuse sensor-level training on events in which nothing that could be learnt is ever hidden."""

from __future__ import annotations

from collections.abc import Iterable

from xectool.config.root import RunConfig
from xectool.data.batch import EventBatch
from xectool.data.events import EventSource
from xectool.errors import DataUnusable
from xectool.tasks.base import TrainingTask
from xectool.tasks.sensor_task import SensorTask
from xectool.training.events.baseline import events_in_order, first_events


def require_hidden_readings(config: RunConfig, task: TrainingTask, source: EventSource, key: str) -> None:
    """Refuse events of which no hidden reading enters the loss: it would be NaN in every epoch.

    The first events tell, as a rule; the others are only read where nothing is hidden in those.

    Args:
        config: The run.
        task: What is learnt; nothing is asked of a regressor, whose truth has been looked at.
        source: Training or validation events.
        key: Where they are named.

    Raises:
        DataUnusable: Nothing is hidden in any event.
    """
    if not isinstance(task, SensorTask):
        return
    if _any_counts(task, first_events(config, source)) or _any_counts(task, events_in_order(config, source)):
        return
    raise DataUnusable(
        f"in none of {source.num_events} events is a sensor hidden that has a reading of {' or '.join(task.channels)}: "
        "there is nothing to learn or to validate on",
        where=key,
        fix="xectool check-data DATA --config CONFIG   # which sensors read; a larger model.mask_ratio hides more",
        code="XT-DATA-NOTHING-HIDDEN",
    )


def _any_counts(task: SensorTask, batches: Iterable[EventBatch]) -> bool:
    device = task.groups.members.device
    return any(bool((task.counts(batch.to(device)) > 0).any()) for batch in batches)

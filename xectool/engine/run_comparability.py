"""What of two runs cannot be compared, and why: losses that mean something else, metrics without an error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from xectool.config.serialize import dotted_values
from xectool.config.tasks import TASK_NAMES
from xectool.errors import counted

_OF_TASKS: Final = ("loss_fn", "loss_beta", "weight", "log_transform", "scale")
# Readings are compared in network units, and of those that were hidden.
_OF_SENSORS: Final = (
    "training.loss_fn", "training.loss_beta", "training.npho_weight", "training.time.", "training.npho_loss_weight.",
    "training.auto_channel_weight", "model.predict_channels", "model.mask_ratio", "model.mask_npho_flat",
    "model.mask_patterns.", "normalization.",
)  # fmt: skip
_SHOWN: Final = 4
_ROUNDING: Final = 1e-6


def losses_differ(configs: Sequence[Mapping[str, Any] | None]) -> str:
    """Return why the losses of runs are not comparable, in one line; empty where they are, or that is not known.

    Args:
        configs: Resolved configuration of each run; None where it is gone.
    """
    known = [dotted_values(config) for config in configs if config is not None]
    if len(known) < len(configs):
        return ""
    keys = list(dict.fromkeys(_of_losses(known)))
    values = {key: [own[key] for own in known if key in own] for key in keys}
    differing = [key for key, of in values.items() if not all(is_same(of[0], value) for value in of[1:])]
    if "kind" in differing:
        differing = ["kind"]
    if not differing:
        return ""
    more = f" and {counted(len(differing) - _SHOWN, 'further key')}" if len(differing) > _SHOWN else ""
    return f"losses are not comparable: the runs differ in {', '.join(differing[:_SHOWN])}{more}"


def is_same(first: Any, other: Any) -> bool:
    """Return whether two settings are the same but for rounding, as of a scale that was fitted twice.

    >>> is_same(0.012877, 0.0128770001), is_same(1e-4, 1.01e-4), is_same("l1", "l1")
    (True, False, True)
    """
    if isinstance(first, float) and isinstance(other, float):
        return math.isclose(first, other, rel_tol=_ROUNDING)
    return bool(first == other)


def _of_losses(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the keys that the losses of runs are made of; of tasks, of those that all of them learn."""
    yield "kind"
    yield "loss_balance"
    for task in TASK_NAMES:
        yield f"tasks.{task}.enabled"
        if all(values.get(f"tasks.{task}.enabled") for values in runs):
            yield from (f"tasks.{task}.{field}" for field in _OF_TASKS)
    if not any(key.startswith("tasks.") for values in runs for key in values):
        yield from (key for values in runs for key in values if key.startswith(_OF_SENSORS))


def errors_missing(without: int, events: int, reason: str) -> str:
    """Return why metrics have no error, in one line; empty where all have one.

    Args:
        without: Metrics without an error.
        events: Events whose predictions gave the errors of the others; 0 without any.
        reason: Why there are none.
    """
    if not without:
        return ""
    if not events:
        return f"no metric has an error: {reason}"
    return f"{counted(without, 'metric')} without an error: recorded as one number an epoch, not of single events"

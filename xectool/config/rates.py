"""Learning rates to try where one makes a training diverge."""

from __future__ import annotations

from typing import Final

from xectool.config.root import RunConfig, base_of

LR_DIVISOR: Final = 10.0  # F033: training.lr: OLD/10
LEAST_LR: Final = 1e-9
LARGEST_LR: Final = 1e-2  # CFG-29: beyond it AdamW learns nothing
_DEFAULT: Final = 3e-4  # defaults of training.lr, of the regressor and of the sensor-level kinds
_DEFAULT_SENSORS: Final = 1e-4


def default_lr(kind: str) -> float:
    """Return the default learning rate of a kind.

    >>> default_lr("regressor"), default_lr("mae")
    (0.0003, 0.0001)
    """
    return _DEFAULT if base_of(kind) == "regressor" else _DEFAULT_SENSORS


def plausible_lr(lr: float, kind: str) -> float:
    """Return a learning rate, or the default of the kind where AdamW cannot take it.

    >>> plausible_lr(0.5, "regressor"), plausible_lr(1e-3, "regressor")
    (0.0003, 0.001)
    """
    return max(lr, LEAST_LR) if lr < LARGEST_LR else default_lr(kind)


def gentler_lr(config: RunConfig) -> float:
    """Return a tenth of the learning rate of a training that diverges, or the default where that is beyond AdamW."""
    return plausible_lr(config.training.lr / LR_DIVISOR, config.kind)

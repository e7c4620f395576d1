"""Learning rates to set: the keys that hold one, and a gentler one where a training diverges."""

from __future__ import annotations

from typing import Final, Protocol

from xectool.config.root import RunConfig, base_of

LR_DIVISOR: Final = 10.0  # F033: training.lr: OLD/10
LEAST_LR: Final = 1e-9
LARGEST_LR: Final = 1e-2  # CFG-29: AdamW usually learns below a tenth of it
_DEFAULT: Final = 3e-4  # defaults of training.lr, of the regressor and of the sensor-level kinds
_DEFAULT_SENSORS: Final = 1e-4


class Schedule(Protocol):
    """The keys of ``training`` that rates are in: of a configuration, or as a run has recorded them."""

    @property
    def lr(self) -> float:
        """Peak of every schedule but one cycle with a peak of its own."""

    @property
    def max_lr(self) -> float | None:
        """Peak of one cycle; None: ``lr``."""

    @property
    def lr_min(self) -> float:
        """The lowest rate."""

    @property
    def lr_scheduler(self) -> str:
        """The course of the rate."""


def key_of(training: Schedule) -> str:
    """Return the key whose rate counts: ``max_lr`` goes before ``lr`` where the schedule is one cycle."""
    one_cycle = training.lr_scheduler == "onecycle" and training.max_lr is not None
    return "training.max_lr" if one_cycle else "training.lr"


def peak_lr(training: Schedule) -> float:
    """Return the highest rate of the schedule."""
    highest = training.max_lr if key_of(training).endswith("max_lr") else training.lr
    return highest if highest is not None else training.lr


def settings_of(training: Schedule, lr: float) -> dict[str, float]:
    """Return the keys a rate goes into: the one that counts, and those that would lie on its wrong side."""
    found = {key_of(training): lr}
    if "training.max_lr" in found and training.lr > lr:
        found["training.lr"] = lr
    if training.lr_min > found.get("training.lr", training.lr):
        found["training.lr_min"] = float(f"{lr / 100:.2g}")
    return found


def lines_of(training: Schedule, lr: float) -> tuple[str, ...]:
    """Return the same as settings to paste."""
    return tuple(f"{key}={value:.3g}" for key, value in settings_of(training, lr).items())


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


def gentler(config: RunConfig) -> tuple[str, ...]:
    """Return the settings of a tenth of the rate of a training that diverges, or of the default where it is beyond."""
    lr = plausible_lr(peak_lr(config.training) / LR_DIVISOR, config.kind)
    return lines_of(config.training, lr)


def gentler_options(config: RunConfig) -> str:
    """Return the same as options of a command."""
    return " ".join(f"--set {setting}" for setting in gentler(config))

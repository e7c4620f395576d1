"""What the files of a run directory say about it, beside its record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from xectool.config.document import CONFIG_FILE
from xectool.config.serialize import from_yaml
from xectool.errors import UsageError, in_shell
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord
from xectool.runlog.run_dirs import LISTING, require_record

BEST_METRIC: Final = "val/loss"
_SECTIONS: Final = (
    "data", "normalization", "model", "tasks", "training", "validation", "checkpoint", "mlflow", "distributed",
    "export", "guards", "reweighting",
)  # fmt: skip


def best_epoch(epochs: list[EpochRecord]) -> EpochRecord | None:
    """Return the epoch of the lowest validation loss; a loss that is not finite is never the best."""
    measured = [record for record in epochs if math.isfinite(record.metrics.get(BEST_METRIC, math.nan))]
    return min(measured, key=lambda record: record.metrics[BEST_METRIC], default=None)


@dataclass(frozen=True)
class Measurement:
    """What a run is known by: the metrics of its best epoch; without any epoch, those measured at its end.

    Attributes:
        epoch: That epoch; 0 where none was finished.
        step: Optimizer steps of the weights that were measured.
        metrics: What was measured.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The validation loss; NaN where none was measured."""
        return self.metrics.get(BEST_METRIC, math.nan)


def measurement(reader: RunReader, epochs: list[EpochRecord]) -> Measurement | None:
    """Return what a run is known by; None of one that finished no epoch and has not come to its end.

    Args:
        reader: Its record.
        epochs: Its epochs, as the record gives them.
    """
    if best := best_epoch(epochs) or (epochs[-1] if epochs else None):
        return Measurement(best.epoch, best.step, best.metrics)
    end = next((event for event in reversed(reader.last_events()) if event.kind == "finished"), None)
    metrics = end.data.get("metrics") if end is not None else None
    if end is None or not isinstance(metrics, Mapping):
        return None
    numbers = {str(name): float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    return Measurement(0, end.step, numbers)


def resolved_config(run_dir: Path) -> Mapping[str, Any]:
    """Return the configuration a run was trained with.

    Raises:
        UsageError: The directory holds none, or it cannot be read.
    """
    path = run_dir / CONFIG_FILE
    if not path.exists():
        require_record(run_dir)
        raise UsageError("this directory holds no resolved configuration", where=str(path), fix=LISTING)
    try:
        content = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        content = str(error).partition("\n")[0]
    if isinstance(content, Mapping):
        flat = next((name for name in _SECTIONS if not isinstance(content.get(name) or {}, Mapping)), "")
        if not flat:
            return content
        content = f"{flat} is no section"
    problem = f"the resolved configuration cannot be read: {content or 'it is empty'}"
    raise UsageError(problem, where=str(path), fix=f"head {in_shell(path)}")

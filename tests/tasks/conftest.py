from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from xectool.config.tasks import TASK_WIDTHS, TaskConfig
from xectool.data.batch import EventBatch
from xectool.models.heads import TargetTransform
from xectool.tasks.balance import LossBalance, ManualBalance
from xectool.tasks.regression import RegressionTask


def batch_of(targets: dict[str, torch.Tensor], first_entry: int = 0, **fields: object) -> EventBatch:
    count = len(next(iter(targets.values())))
    values: dict[str, object] = {
        "npho": torch.ones(1, 4760).expand(count, -1),
        "time": torch.zeros(1, 4760).expand(count, -1),
        "weight": torch.ones(count),
        "file_index": np.zeros(count, np.int32),
        "entry": np.arange(first_entry, first_entry + count),
        "run": np.full(count, 430001),
        "event": np.arange(first_entry, first_entry + count) + 1000,
        "epoch": 0,
        "step": 0,
    }
    return EventBatch(targets=targets, **(values | fields))  # type: ignore[arg-type]


def task_of(balance: LossBalance | None = None, **settings: TaskConfig) -> RegressionTask:
    transforms = {
        name: TargetTransform(TASK_WIDTHS[name], setting.scale, setting.shift, setting.log_transform)
        for name, setting in settings.items()
    }
    weights = [setting.weight for setting in settings.values()]
    return RegressionTask(settings, transforms, balance or ManualBalance(weights))


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., EventBatch]:
    return batch_of


@pytest.fixture(scope="session")
def make_task() -> Callable[..., RegressionTask]:
    return task_of

"""What a run is made of, put together once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from xectool.config.root import RunConfig
from xectool.data.loader import EventLoader
from xectool.tasks.base import TrainingTask
from xectool.training.events.baseline import Baseline
from xectool.training.events.quarantine import Quarantine
from xectool.training.optimization.ema import WeightAverage
from xectool.training.optimization.schedule import LearningRate
from xectool.training.process.device import Execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.step import Stepper
from xectool.training.symptoms.nonfinite import NonFiniteGuard
from xectool.training.symptoms.spike import SpikeDetector


@dataclass(frozen=True)
class RunParts:
    """The parts of a run.

    Attributes:
        config: The resolved configuration: no ``auto`` is left in it that training depends on.
        model: The network, on its device.
        task: Loss, denominators, metrics.
        stepper: Takes optimizer steps.
        average: The averaged weights.
        schedule: The learning rate.
        guard: Counts and limits skipped steps.
        spikes: Knows what loss is normal.
        quarantine: Events that are left out.
        baseline: What a prediction that ignores the event reaches.
        train_loader: Training events.
        val_loader: Validation events.
        execution: Device, precision, compile mode.
        ranks: The other processes.
    """

    config: RunConfig
    model: nn.Module
    task: TrainingTask
    stepper: Stepper
    average: WeightAverage
    schedule: LearningRate
    guard: NonFiniteGuard
    spikes: SpikeDetector
    quarantine: Quarantine
    baseline: Baseline
    train_loader: EventLoader
    val_loader: EventLoader
    execution: Execution
    ranks: Ranks

"""One real optimizer step of a configuration on this machine, to see what an estimate leaves out."""

from __future__ import annotations

import numpy as np
import torch

from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.tasks import TASK_WIDTHS
from xectool.config.training import decay_in
from xectool.data.batch import EventBatch
from xectool.detector.constants import NUM_SENSORS
from xectool.models.build import build_model
from xectool.tasks import build_task
from xectool.training.memory_estimate.network import LONG_RUN, without_data_scaling
from xectool.training.memory_estimate.request import StepRequest
from xectool.training.memory_estimate.step import DTYPES
from xectool.training.optimization.ema import WeightAverage
from xectool.training.optimization.optim import build_optimizer
from xectool.training.process.device import Execution
from xectool.training.process.memory import peak_resident_bytes
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.build import seed_everything
from xectool.training.stepping.step import Stepper

STEPS = 3  # the second step is the first one with optimizer state; the third shows what the allocator keeps


def measured(config: RunConfig, request: StepRequest, device: torch.device) -> dict[str, int]:
    """Run some steps on random events.

    Returns:
        ``base_bytes``, ``peak_bytes`` and ``allocator_bytes``, as `child.measure` describes them.
    """
    config, _ = without_data_scaling(config)
    stepper = real_stepper(config, request.amp, device)
    # One event first: what libraries load on their first use is not the step's.
    _run(stepper, config, 1, request.accum)
    base = peak_resident_bytes()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    _run(stepper, config, request.batch_size, request.accum)
    allocator = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {"base_bytes": base, "peak_bytes": peak_resident_bytes(), "allocator_bytes": allocator}


def _run(stepper: Stepper, config: RunConfig, size: int, accum: int) -> None:
    for number in range(STEPS):
        window = [random_batch(config, size, number * accum + index) for index in range(accum)]
        stepper.run(window, config.training.lr)


def real_stepper(config: RunConfig, amp: str, device: torch.device, compile_mode: str | None = None) -> Stepper:
    """Return the step of a configuration with real tensors, put together as the composition root does."""
    training = config.training
    seed_everything(training.seed)
    model = build_model(config).to(device)
    task = build_task(config, model).to(device)
    optimizer = build_optimizer([model, task], training.lr, training.weight_decay)
    dtype = DTYPES[amp]
    execution = Execution(device, dtype, dtype is torch.float16, compile_mode)
    average = WeightAverage(model, decay_in(training.ema_decay, LONG_RUN))
    model.train()
    task.train()
    return Stepper(model, task, optimizer, average, execution, training, Ranks())


def random_batch(config: RunConfig, size: int, step: int) -> EventBatch:
    """Return events of plausible light and times, all sensors alive."""
    random = torch.Generator().manual_seed(step)
    tasks = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    numbers = np.arange(size)
    return EventBatch(
        npho=torch.rand(size, NUM_SENSORS, generator=random) * 300 + 1,
        time=torch.rand(size, NUM_SENSORS, generator=random) * 1e-8,
        targets={task: torch.rand(size, TASK_WIDTHS[task], generator=random) for task in tasks},
        weight=torch.ones(size),
        file_index=numbers.astype(np.int32),
        entry=numbers,
        run=numbers,
        event=numbers,
        epoch=1,
        step=step,
    )

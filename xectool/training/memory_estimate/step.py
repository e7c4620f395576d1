"""Runs the real optimizer step and the real validation pass on tensors without data, and tapes what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from xectool.config.root import RegressorConfig, RunConfig
from xectool.config.tasks import TASK_WIDTHS
from xectool.data.batch import EventBatch
from xectool.detector.constants import NUM_SENSORS
from xectool.models import event_parts
from xectool.tasks.base import TrainingTask
from xectool.tasks.sensor_task import SensorTask
from xectool.training.memory_estimate.gpu_autocast import as_on_gpu
from xectool.training.memory_estimate.host import checkpoint_bytes_of
from xectool.training.memory_estimate.network import Emptier, EmptyNetwork, hidden_share, objective, replaced
from xectool.training.memory_estimate.recording import Recording
from xectool.training.memory_estimate.request import StepRequest
from xectool.training.memory_estimate.shares import TrueShares
from xectool.training.memory_estimate.tape import Tape, without_data
from xectool.training.optimization.optim import build_optimizer
from xectool.training.process.device import Execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.evaluate import run_model
from xectool.training.stepping.step import Stepper

VALIDATION: Final = "validation"
"""Name of the phase."""
DTYPES: Final = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class _Setting:
    """What the two passes share."""

    network: EmptyNetwork
    task: TrainingTask
    stepper: Stepper
    tape: Tape
    request: StepRequest


def record(config: RunConfig, request: StepRequest, validation_most: int = 0) -> Recording:
    """Tape one optimizer step and one batch of validation.

    Args:
        config: The run; its batch size, accumulation and precision are those of ``request``.
        request: Sizes, precision, and what is known of the events.
        validation_most: What the peak of validation cannot exceed, bytes; it is left out where the step's lies above.
            0 where no bound is known.
    """
    network = EmptyNetwork.build(config)
    checkpoint_bytes = checkpoint_bytes_of(network.model, config)
    emptier = Emptier()
    shares = TrueShares(emptier.tables)
    policy = getattr(getattr(network.model, "hider", None), "policy", None)
    hidden = None if policy is None else hidden_share(policy, request.valid_npho)
    most = 1 if hidden is None else int(np.ceil(hidden.max() * NUM_SENSORS))
    tape = Tape(shares, most, request.on_gpu)
    with without_data(tape), ExitStack() as stack:
        setting = _set_up(network, emptier, tape, request)
        if hidden is not None:
            stack.enter_context(_knowing_masks(setting, hidden, shares))
        stack.enter_context(_one_part(request.on_gpu))
        if request.on_gpu:
            stack.enter_context(as_on_gpu())
        _warm_up(setting)
        stack.enter_context(tape.naming(network.model))
        _train(setting)
        if request.validation_batch and not 0 < validation_most < tape.recording(request.batch_size).peak():
            _validate(setting)
    return tape.recording(request.batch_size, network.notes, checkpoint_bytes)


def _set_up(network: EmptyNetwork, emptier: Emptier, tape: Tape, request: StepRequest) -> _Setting:
    """Make every tensor of the run one without data, and put the step together as the composition root does."""
    training = network.config.training
    tape.enter("build")
    for module in network.modules():
        emptier.empty(module)
    task = objective(network)
    emptier.empty(task)
    tape.label("parameters", [*network.model.parameters(), *task.parameters()])
    tape.label("buffers", [*network.model.buffers(), *task.buffers()])
    averaged = [value for module in network.modules() if module is not network.model for value in _tensors(module)]
    tape.label("ema", averaged)
    optimizer = build_optimizer([network.model, task], training.lr, training.weight_decay)
    dtype = DTYPES[request.amp]
    execution = Execution(torch.device("cpu"), dtype, dtype is torch.float16, None)
    stepper = Stepper(network.model, task, optimizer, network.average, execution, training, Ranks())
    stepper.on_phase = tape.enter
    network.model.train()
    task.train()
    return _Setting(network, task, stepper, tape, request)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


@contextmanager
def _one_part(whole: bool) -> Iterator[None]:
    """Work on the first part of the events only: the others come to the same memory; on a GPU it is the whole."""
    parts = event_parts.of
    event_parts.of = lambda values, most_bytes: event_parts.WHOLE if whole else parts(values, most_bytes)[:1]
    try:
        yield
    finally:
        event_parts.of = parts


@contextmanager
def _knowing_masks(setting: _Setting, hidden: Any, shares: TrueShares) -> Iterator[None]:
    """Say which share of the readings is valid and of the sensors hidden, wherever the model finds it out."""
    task, request = cast(SensorTask, setting.task), setting.request
    normalizer, prepare = task.normalizer, task.prepare
    normalize = normalizer.normalize
    valid = np.array([request.valid_npho, request.valid_time])

    def normalized(npho: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        x, known = normalize(npho, time)
        shares.set(known, valid)
        return x, known

    def prepared(batch: EventBatch) -> Any:
        found = prepare(batch)
        shares.set(found.mask, hidden)
        setting.tape.label("inputs", [found.mask, found.x, found.valid])
        return found

    with replaced(normalizer, "normalize", normalized), replaced(task, "prepare", prepared):
        yield


def _warm_up(setting: _Setting) -> None:
    """Give the optimizer the state that it has after its first step."""
    optimizer = setting.stepper.optimizer
    for parameter in setting.stepper.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state = [value for held in optimizer.state.values() for value in held.values() if isinstance(value, Tensor)]
    setting.tape.label("optimizer", state)


def _train(setting: _Setting) -> None:
    tape, request = setting.tape, setting.request
    window = [_batch(setting.network.config, request.batch_size, step) for step in range(request.accum)]
    tape.label("inputs", [tensor for batch in window for tensor in _inputs(batch)])

    def enter(phase: str) -> None:
        tape.enter(phase)
        if phase in ("forward", "optimizer"):
            gradients = [parameter.grad for parameter in setting.stepper.parameters() if parameter.grad is not None]
            tape.label("gradients", gradients)

    setting.stepper.on_phase = enter
    if request.accum > 1:
        _leave_only_gradients(setting.stepper.batch_loss)
    setting.stepper.run(window, setting.network.config.training.lr)
    tape.enter("between steps")


def _leave_only_gradients(batch_loss: nn.Module) -> None:
    """Take the first batch of a window as one without events: all that it leaves to the others are its gradients."""

    def emptied(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        handle.remove()
        return (None, *given[1:])

    handle = batch_loss.register_forward_pre_hook(emptied)


def _validate(setting: _Setting) -> None:
    """Run one batch of validation on the averaged weights, where these are what is validated."""
    config, tape = setting.network.config, setting.tape
    model = setting.network.average.best_model if config.validation.use_ema else setting.network.model
    setting.task.eval()
    tape.enter(VALIDATION)
    batch = _batch(config, setting.request.validation_batch, 0)
    tape.label("inputs", list(_inputs(batch)))
    for _ in run_model(model, setting.task, [batch], setting.stepper.execution):
        pass


def _batch(config: RunConfig, size: int, step: int) -> EventBatch:
    tasks: Sequence[str] = tuple(config.tasks.enabled()) if isinstance(config, RegressorConfig) else ()
    numbers = np.broadcast_to(np.zeros((), dtype=np.int64), (size,))
    return EventBatch(
        npho=torch.empty(size, NUM_SENSORS),
        time=torch.empty(size, NUM_SENSORS),
        targets={task: torch.empty(size, TASK_WIDTHS[task]) for task in tasks},
        weight=torch.empty(size),
        file_index=numbers.astype(np.int32),
        entry=numbers.copy(),
        run=numbers,
        event=numbers,
        epoch=1,
        step=step,
    )


def _inputs(batch: EventBatch) -> Iterator[Tensor]:
    yield from (batch.npho, batch.time, batch.weight, *batch.targets.values())

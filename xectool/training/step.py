"""One optimizer step over a window of batches, exactly equal to one step over the union of them.

Losses are sums divided by the window's own counts, so gradients of micro-batches of any size add up to the
gradient of the big batch, whatever the share of events with known truth in each.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from xectool.config.training import TrainingConfig
from xectool.data.batch import EventBatch
from xectool.tasks.base import TrainingTask
from xectool.training.augment import drop_channels
from xectool.training.device import Execution
from xectool.training.distributed import Ranks
from xectool.training.ema import WeightAverage
from xectool.training.evaluate import Forward, in_float32
from xectool.training.guards import nonfinite_gradients
from xectool.training.optim import set_lr

MIN_SCALE = 1.0  # gradients that overflow float16 even unscaled are broken, not scaled too far
CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by the norm plus this


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did.

    Attributes:
        finite: Whether the step was taken; False means the weights are untouched.
        loss: Objective over the window, before the step.
        sums: Loss sums per term, shape (T,) float64.
        counts: Denominators per term, shape (T,) float64.
        grad_norm: L2 norm of all gradients before clipping.
        clip_coef: Factor the gradients were multiplied with, in (0, 1].
        num_events: Events in the window on this rank.
        overflow: Whether the step was skipped only because a scaled gradient left the range of float16; the scale is
            halved and training goes on, so this is no fault.
        fault: What is non-finite and where, or an empty string.
        seconds: Time in ``transfer``, ``forward``, ``backward`` and ``optimizer``.
    """

    finite: bool
    loss: float
    sums: Tensor
    counts: Tensor
    grad_norm: float
    clip_coef: float
    num_events: int
    overflow: bool = False
    fault: str = ""
    seconds: dict[str, float] = field(default_factory=dict)


class PhaseClock:
    """Seconds spent in named phases; each mark ends the phase that began at the previous one.

    Args:
        device: Waited for at each mark, so that its work counts where it was asked for; None reads the clock only.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._since = time.perf_counter()

    def mark(self, phase: str) -> None:
        """Add the time since the last mark to ``phase``."""
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


class Stepper:
    """Runs optimizer steps.

    Args:
        model: The network; called with raw npho and time.
        task: The objective.
        optimizer: Its learning rate is set here before every step.
        average: The weight average that follows the steps.
        execution: Device, precision and compile mode.
        config: The training section.
        ranks: The other processes of the run.
    """

    def __init__(  # noqa: PLR0913 - the composition root hands over the parts of the loop once
        self,
        model: nn.Module,
        task: TrainingTask,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage,
        execution: Execution,
        config: TrainingConfig,
        ranks: Ranks,
    ) -> None:
        self.model = model
        self.task = task
        self.optimizer = optimizer
        self.average = average
        self.execution = execution
        self.config = config
        self.ranks = ranks
        self.scaler = torch.amp.GradScaler(execution.device.type, enabled=execution.use_scaler)
        self.forward: Forward = compiled(model, execution, config)

    def run(self, window: Sequence[EventBatch], lr: float) -> StepResult:
        """Take one step over the batches of ``window``, or leave everything untouched if it is not finite."""
        device = self.execution.device
        clock = PhaseClock(device if self.config.profile else None)
        self.optimizer.zero_grad(set_to_none=True)
        batches = [self.task.prepare(batch.to(device, non_blocking=True)) for batch in window if batch.num_events]
        counts = torch.zeros(len(self.task.terms), dtype=torch.float64, device=device)
        for batch in batches:
            counts += self.task.counts(batch)
        counts = self.ranks.sum(counts)
        clock.mark("transfer")
        sums = torch.zeros_like(counts)
        finite_loss = torch.ones((), dtype=torch.bool, device=device)
        for batch in batches:
            total, batch_sums = self._forward(batch, counts)
            clock.mark("forward")
            torch.autograd.backward(self.scaler.scale(total))
            finite_loss &= torch.isfinite(total.detach())
            sums += batch_sums
            clock.mark("backward")
        scale = float(self.scaler.get_scale())
        grad_norm, clip_coef, finite = self._update(bool(finite_loss), lr)
        fault = "" if finite else self._fault(bool(finite_loss))
        if not finite:
            self.optimizer.zero_grad(set_to_none=True)
        clock.mark("optimizer")
        sums = self.ranks.sum(sums).cpu()
        counts = counts.cpu()
        return StepResult(
            finite=finite,
            loss=self.task.combine(sums, counts),
            sums=sums,
            counts=counts,
            grad_norm=grad_norm,
            clip_coef=clip_coef,
            num_events=sum(batch.num_events for batch in window),
            overflow=self.execution.use_scaler and not finite and bool(finite_loss) and scale > MIN_SCALE,
            fault=fault,
            seconds=clock.seconds,
        )

    def _forward(self, batch: EventBatch, counts: Tensor) -> tuple[Tensor, Tensor]:
        seed_batch(self.config.seed, batch.epoch, batch.step, self.ranks.rank)
        npho, times, *added = self.task.inputs(batch)
        npho, times = drop_channels(npho, times, self.config.channel_dropout_rate)
        with self.execution.autocast():
            outputs = self.forward(npho, times, *added)
        # losses always in float32: log, exp and squares of reduced precision overflow or lose the target's digits
        terms = self.task.loss(in_float32(outputs), batch, counts)
        return terms.total, terms.sums.to(counts.device)

    def _update(self, finite_loss: bool, lr: float) -> tuple[float, float, bool]:
        set_lr(self.optimizer, lr)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not parameters:
            return 0.0, 1.0, self.ranks.all(finite_loss)
        if self.execution.use_scaler:
            self.scaler.unscale_(self.optimizer)
        norm_tensor = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = float(norm_tensor)
        finite = self.ranks.all(finite_loss and norm == norm and norm != float("inf"))
        clip_coef = 1.0
        if finite and self.config.grad_clip > 0:
            clip_coef = min(1.0, self.config.grad_clip / (norm + CLIP_EPSILON))
            nn.utils.clip_grads_with_norm_(parameters, self.config.grad_clip, norm_tensor)
        if finite:
            self.scaler.step(self.optimizer)
            self.average.update()
        if self.execution.use_scaler:
            self.scaler.update()
        return norm, clip_coef, finite

    def _fault(self, finite_loss: bool) -> str:
        if not finite_loss:
            return "non-finite loss"
        named = nonfinite_gradients(self.model) or nonfinite_gradients(self.task)
        return f"non-finite gradient in {named}" if named else "non-finite gradient on another rank"


def compiled(model: nn.Module, execution: Execution, config: TrainingConfig) -> Forward:
    """Return the model's forward, compiled if the execution plan says so."""
    if execution.compile_mode is None:
        return model
    mode = None if execution.compile_mode == "default" else execution.compile_mode
    forward: Forward = torch.compile(model, mode=mode, fullgraph=config.compile_fullgraph)
    return forward


def seed_batch(seed: int, epoch: int, step: int, rank: int) -> None:
    """Give the random numbers of one batch a stream of their own.

    Dropout and augmentation of a batch then depend on nothing that happened before, so a resumed run repeats them
    and a recorded step can be replayed alone.
    """
    key = hashlib.blake2b(f"{seed} {epoch} {step} {rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(key, "little") >> 1)

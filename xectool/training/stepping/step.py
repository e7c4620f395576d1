"""One optimizer step over a window of batches, exactly equal to one step over the union of them.

Losses are sums divided by the window's own counts, so gradients of micro-batches of any size add up to the
gradient of the big batch, whatever the share of events with known truth in each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from xectool.config.training import TrainingConfig
from xectool.data.batch import EventBatch
from xectool.tasks.base import TrainingTask
from xectool.training.optimization.ema import WeightAverage
from xectool.training.optimization.optim import set_lr
from xectool.training.optimization.parameter_blocks import ParameterBlocks
from xectool.training.process.device import Execution
from xectool.training.ranks.base import Ranks
from xectool.training.stepping.batch_loss import BatchLoss, stream_seed
from xectool.training.symptoms.nonfinite import Refusal, nonfinite_gradients

MIN_SCALE = 1.0  # gradients that overflow float16 even unscaled are broken, not scaled too far
Veto = Callable[[float], bool]
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
        total_events: Events in the window on all ranks.
        overflow: Whether the step was skipped only because a scaled gradient left the range of float16; the scale is
            halved and training goes on, so this is no fault.
        fault: What is non-finite and where, or an empty string.
        seconds: Time in ``transfer``, ``forward``, ``backward`` and ``optimizer``.
        block_norms: L2 norm of the gradients of each parameter block before clipping.
        rng: Seed of the random numbers of the first batch.
        held: Whether a finite step was not taken because it was vetoed; the weights are untouched.
        tallies: What the task counts beside its loss, added over the window.
        lr: Highest learning rate the optimizer had for the step, whoever set it.
    """

    finite: bool
    loss: float
    sums: Tensor
    counts: Tensor
    grad_norm: float
    clip_coef: float
    num_events: int
    total_events: int = 0
    overflow: bool = False
    fault: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    block_norms: dict[str, float] = field(default_factory=dict)
    rng: int = 0
    held: bool = False
    tallies: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    lr: float = 0.0

    @property
    def taken(self) -> bool:
        """Whether the weights were updated."""
        return self.finite and not self.held


class PhaseClock:
    """Seconds spent in named phases; each mark ends the phase that began at the previous one.

    Args:
        device: Waited for at each mark, so that its work counts where it was asked for; None reads the clock only.
        on_phase: Told the name of each phase as it begins.
    """

    def __init__(self, device: torch.device | None, on_phase: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._on_phase = on_phase
        self._since = time.perf_counter()

    def mark(self, phase: str, then: str) -> None:
        """Add the time since the last mark to ``phase``; ``then`` begins."""
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now
        self._on_phase(then)


@dataclass(frozen=True)
class _Update:
    """What became of the gradients of a step; names as in `StepResult`."""

    finite: bool
    held: bool = False
    grad_norm: float = 0.0
    clip_coef: float = 1.0
    block_norms: dict[str, float] = field(default_factory=dict)


def allow(loss: float) -> bool:
    """Return False: no step is vetoed."""
    return False


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

    Attributes:
        refusal: Which steps are not taken.
        on_phase: Told ``transfer``, ``forward``, ``backward``, ``optimizer``, ``compile`` as each begins.
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
        self.grad_clip = config.grad_clip
        self.refusal = Refusal()
        self.scaler = torch.amp.GradScaler(execution.device.type, enabled=execution.use_scaler)
        self.batch_loss = ranks.parallel(BatchLoss(model, task, execution, config, ranks.rank))
        self.blocks = ParameterBlocks({"": model, "loss": task})
        self.on_phase: Callable[[str], None] = lambda phase: None
        self._forward_phase = "forward" if execution.compile_mode is None else "compile"

    def run(self, window: Sequence[EventBatch], lr: float, veto: Veto = allow) -> StepResult:
        """Take one step over the batches of ``window``, or leave everything untouched if it is not finite.

        Args:
            window: The micro-batches.
            lr: Learning rate.
            veto: Asked with the loss of a finite step before the update; True on any rank leaves everything untouched.
        """
        device = self.execution.device
        self.on_phase("transfer")
        clock = PhaseClock(device if self.config.profile else None, self.on_phase)
        self.optimizer.zero_grad(set_to_none=True)
        batches, counts, total_events = self._prepared(window)
        clock.mark("transfer", self._forward_phase)
        own_sums, own_finite = self._accumulate(batches, counts, clock, total_events)
        self.on_phase("optimizer")
        sums, tallies, finite_loss = self._summed(own_sums, self._tallies(batches), own_finite)
        counts = counts.cpu()
        loss, scale = self.task.combine(sums, counts), float(self.scaler.get_scale())
        update = self._update(finite_loss, lr, lambda: veto(loss))
        fault = "" if update.finite else self._fault(finite_loss, own_finite)
        if not update.finite or update.held:
            self.optimizer.zero_grad(set_to_none=True)
        clock.mark("optimizer", "collective")
        return StepResult(
            finite=update.finite,
            loss=loss,
            sums=sums,
            counts=counts,
            grad_norm=update.grad_norm,
            clip_coef=update.clip_coef,
            num_events=sum(batch.num_events for batch in window),
            total_events=total_events,
            overflow=self.execution.use_scaler and not update.finite and finite_loss and scale > MIN_SCALE,
            fault=fault,
            seconds=clock.seconds,
            block_norms=update.block_norms,
            rng=stream_seed(self.config.seed, window[0].epoch, window[0].step, self.ranks.rank),
            held=update.held,
            tallies=tallies,
            lr=max(float(group["lr"]) for group in self.optimizer.param_groups),
        )

    def objective(self, window: Sequence[EventBatch]) -> float:
        """Return the objective of a window as a step would find it; nothing is changed, and nothing kept."""
        batches, counts, _ = self._prepared(window)
        sums = torch.zeros_like(counts)
        for batch in batches:
            sums += self.batch_loss(batch, counts)[1]
        return self.task.combine(self.ranks.sum(sums).cpu(), counts.cpu())

    def parameters(self) -> list[nn.Parameter]:
        """Return all trained parameters in the order of the optimizer."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _prepared(self, window: Sequence[EventBatch]) -> tuple[list[EventBatch], Tensor, int]:
        """Return the batches that hold events, on the device, and denominators and number of events of all ranks."""
        device = self.execution.device
        batches = [self.task.prepare(batch.to(device, non_blocking=True)) for batch in window if batch.num_events]
        counts = torch.zeros(len(self.task.terms), dtype=torch.float64, device=device)
        for batch in batches:
            counts += self.task.counts(batch)
        events = sum(batch.num_events for batch in batches)
        if self.ranks.world_size == 1:
            return batches, counts, events
        totals = self.ranks.sum(torch.cat([counts, counts.new_full((1,), events)]))
        return batches, totals[:-1], int(totals[-1])

    def _tallies(self, batches: Sequence[EventBatch]) -> Tensor:
        totals = torch.zeros(self.task.num_tallies, dtype=torch.float64, device=self.execution.device)
        for batch in batches:
            totals += self.task.tallies(batch)
        return totals

    def _summed(self, sums: Tensor, tallies: Tensor, finite: bool) -> tuple[Tensor, Tensor, bool]:
        """Return loss sums and tallies of all ranks, and whether the losses of all of them are finite."""
        bad = sums.new_full((1,), not finite)
        totals = self.ranks.sum(torch.cat([sums, bad, tallies])).cpu()
        num_terms = len(sums)
        return totals[:num_terms], totals[num_terms + 1 :], not totals[num_terms]

    def _accumulate(
        self, batches: Sequence[EventBatch], counts: Tensor, clock: PhaseClock, total_events: int
    ) -> tuple[Tensor, bool]:
        """Add up the gradients of some batches, at the last one those of all ranks.

        A rank without events takes part with nothing, unless no rank has any.

        Returns:
            The loss sums of this rank, and whether each of its losses is finite.
        """
        sums = torch.zeros_like(counts)
        finite = torch.ones((), dtype=torch.bool, device=counts.device)
        waits = self.ranks.world_size > 1 and total_events > 0
        parts: list[EventBatch | None] = [*batches] or [None] * waits
        for number, batch in enumerate(parts, start=1):
            with nullcontext() if number == len(parts) else self.ranks.alone(self.batch_loss):
                total, batch_sums = self.batch_loss(batch, counts)
                # the backward pass is compiled when it first runs; of several ranks, others may wait in it
                first = self._forward_phase == "compile" and self.ranks.world_size == 1
                clock.mark("forward", "compile" if first else "backward")
                torch.autograd.backward(self.scaler.scale(total))
            finite &= torch.isfinite(total.detach())
            sums += batch_sums
            self._forward_phase = "forward"
            clock.mark("backward", "forward")
        return sums, bool(finite)

    def _update(self, finite_loss: bool, lr: float, veto: Callable[[], bool]) -> _Update:
        set_lr(self.optimizer, lr)
        parameters = [parameter for parameter in self.parameters() if parameter.grad is not None]
        if not parameters:
            return _Update(self.ranks.all(finite_loss))
        if self.execution.use_scaler:
            self.scaler.unscale_(self.optimizer)
        norm_tensor, block_norms = self.blocks.gradient_norms(parameters)
        norm = float(norm_tensor)
        finite = self.ranks.all(self.refusal.allows(finite_loss, norm))
        held = finite and self.ranks.any(veto())
        clip_coef = 1.0
        if finite and not held and self.grad_clip > 0:
            clip_coef = min(1.0, self.grad_clip / (norm + CLIP_EPSILON))
            nn.utils.clip_grads_with_norm_(parameters, self.grad_clip, norm_tensor)
        if finite and not held:
            self.scaler.step(self.optimizer)
            self.average.update()
        if self.execution.use_scaler:
            self.scaler.update()
        return _Update(finite, held, norm, clip_coef, block_norms)

    def _fault(self, finite_loss: bool, own_finite: bool) -> str:
        if not finite_loss:
            bad = [rank for rank, finite in enumerate(self.ranks.gather(own_finite)) if not finite]
            alone = self.ranks.world_size == 1
            return "non-finite loss" if alone else f"non-finite loss on rank {', '.join(map(str, bad))}"
        named = nonfinite_gradients(self.model) or nonfinite_gradients(self.task)
        return f"non-finite gradient in {named}" if named else "non-finite gradient"

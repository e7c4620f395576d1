"""One step tried on a scratch copy: does it stay finite, and if not, at which stage does it stop being so."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xectool.data.batch import EventBatch
from xectool.errors import XecError
from xectool.probes.instruments.bench import Bench
from xectool.training.optimization.optim import set_lr
from xectool.training.symptoms.nonfinite import norm_is_finite

LOSS, GRADIENT, UPDATE = "loss", "gradient", "parameter"
STAGES = (LOSS, GRADIENT, UPDATE)


@dataclass(frozen=True)
class StepTrial:
    """What happened when a step was tried.

    Attributes:
        stage: ``loss``, ``gradient`` or ``parameter``, the first that was not finite; empty where all was.
        loss: The objective; NaN where the step did not get so far.
        grad_norm: L2 norm of all gradients before clipping; NaN where the step did not get so far.
        refused: Why the loss refuses the truth, e.g. a logarithm of a negative number.
        parameters: Parameters whose value, gradient or moment is not finite.
    """

    stage: str
    loss: float = math.nan
    grad_norm: float = math.nan
    refused: XecError | None = None
    parameters: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether the step did not stay finite."""
        return bool(self.stage)


def try_step(bench: Bench, window: Sequence[EventBatch], until: str = UPDATE) -> StepTrial:
    """Try a step up to a stage; weights, moments and gradients are afterwards as before.

    Gradients are taken without the scaling of float16: a scaled gradient that overflows is no fault.

    Args:
        bench: What is tried.
        window: Batches of one optimizer step, prepared or not.
        until: The last stage that is looked at; as validation uses the network there is but the loss.
    """
    bench.set_mode()
    bench.optimizer.zero_grad(set_to_none=True)
    try:
        return _try(bench, window, LOSS if bench.evaluating else until)
    finally:
        bench.optimizer.zero_grad(set_to_none=True)


def _try(bench: Bench, window: Sequence[EventBatch], until: str) -> StepTrial:
    batches = bench.prepared(window)
    try:
        counts = bench.counts(batches)
    except XecError as error:
        return StepTrial(LOSS, refused=error)
    loss = 0.0
    for batch in batches:
        with torch.set_grad_enabled(until != LOSS):
            total = bench.loss(bench.forward(batch), batch, counts).total
        loss += float(total.detach())
        if not math.isfinite(loss):
            return StepTrial(LOSS, loss)
        if until != LOSS and total.requires_grad:
            torch.autograd.backward(total)
    if until == LOSS:
        return StepTrial("", loss)
    norm, bad = _gradients(bench)
    if bad or not math.isfinite(norm):
        return StepTrial(GRADIENT, loss, norm, parameters=bad)
    broken = _updated(bench, norm) if until == UPDATE else ()
    return StepTrial(UPDATE if broken else "", loss, norm, parameters=broken)


def _gradients(bench: Bench) -> tuple[float, tuple[str, ...]]:
    """Return the total norm and the parameters whose gradient is not finite."""
    named = [(name, p.grad) for name, p in named_parameters(bench) if p.grad is not None]
    if not named:
        return 0.0, ()
    norm = float(nn.utils.get_total_norm([grad for _, grad in named]))
    if math.isfinite(norm):
        return norm, ()
    return norm, tuple(name for name, grad in named if not bool(torch.isfinite(grad).all()))


def _updated(bench: Bench, norm: float) -> tuple[str, ...]:
    """Take the step as training would and undo it, one parameter after the other; return what it made non-finite.

    AdamW updates each parameter by itself, so a copy of the largest one is all the memory that undoing needs.
    """
    changed = [(name, p, grad) for name, p in named_parameters(bench) if (grad := p.grad) is not None]
    clip = bench.config.training.grad_clip
    if clip > 0 and changed:
        nn.utils.clip_grads_with_norm_([parameter for _, parameter, _ in changed], clip, torch.tensor(norm))
    rates = [group["lr"] for group in bench.optimizer.param_groups]
    set_lr(bench.optimizer, bench.lr)
    bench.optimizer.zero_grad(set_to_none=True)
    broken = [found for name, parameter, grad in changed for found in _updated_alone(bench, name, parameter, grad)]
    for group, rate in zip(bench.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return tuple(broken)


@torch.no_grad()
def _updated_alone(bench: Bench, name: str, parameter: nn.Parameter, grad: Tensor) -> list[str]:
    """Update one parameter and undo it; return its name and those of its moments where they became non-finite."""
    moments = bench.optimizer.state
    before, moments_before = parameter.clone(), copy.deepcopy(moments.get(parameter))
    parameter.grad = grad
    bench.optimizer.step()
    parameter.grad = None
    results = {name: parameter, **{f"{name}: {moment}": value for moment, value in moments[parameter].items()}}
    sound = norm_is_finite(list(results.values()))
    broken = [] if sound else [result for result, value in results.items() if not bool(torch.isfinite(value).all())]
    parameter.copy_(before)
    if moments_before is None:
        del moments[parameter]
    else:
        moments[parameter] = moments_before
    return broken


def nonfinite_moments(bench: Bench) -> list[str]:
    """Return ``<parameter>: <moment>`` for each state of the optimizer that holds NaN or infinity."""
    names = {id(p): name for name, p in named_parameters(bench)}
    moments = [
        (f"{names.get(id(parameter), 'parameter')}: {moment}", value)
        for parameter, state in bench.optimizer.state.items()
        for moment, value in state.items()
        if isinstance(value, Tensor)
    ]
    if norm_is_finite([value for _, value in moments]):
        return []
    return [name for name, value in moments if not bool(torch.isfinite(value).all())]


def named_parameters(bench: Bench) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of network and loss; those of the loss carry ``loss.`` before their name."""
    return [*bench.model.named_parameters(), *((f"loss.{name}", p) for name, p in bench.task.named_parameters())]

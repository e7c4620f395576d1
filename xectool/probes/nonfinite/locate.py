"""The first module and operation of a step that is not finite, in forward pass, loss, gradient or update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xectool.data.batch import EventBatch
from xectool.probes.instruments.backward import GradientWatch, NodeOwners
from xectool.probes.instruments.bench import Bench
from xectool.probes.instruments.trace import LOSS_OWNER, OpTrace, Origin
from xectool.probes.instruments.trial import GRADIENT, LOSS, UPDATE, StepTrial, named_parameters, nonfinite_moments
from xectool.training.symptoms.nonfinite import nonfinite_weights

INPUT, MODULE = "input", "module"


@dataclass(frozen=True)
class Place:
    """Where a number first is not finite.

    Attributes:
        stage: ``input``, ``module``, ``loss``, ``gradient`` or ``parameter``.
        module: Dotted name of the module; ``loss`` or ``loss.<term>`` outside of the network.
        op: The operation, or the name of the tensor that holds the value.
        kind: ``NaN`` or ``Inf``.
        parameter: The parameter whose value, gradient or moment it is; empty elsewhere.
        input_absmax: Largest absolute value that went into the operation.
        dtype: Precision of its result.
        terms: Loss terms that are not finite.
    """

    stage: str
    module: str
    op: str
    kind: str = "NaN"
    parameter: str = ""
    input_absmax: float = 0.0
    dtype: str = ""
    terms: tuple[str, ...] = ()


def broken_weights(bench: Bench) -> list[Place]:
    """Return weights, buffers and moments that are not finite before any event is looked at."""
    own = dict(bench.model.state_dict())
    found = [_weight(name, own[name]) for name in nonfinite_weights(bench.model)]
    learned = bench.task.state_dict()
    found += [_weight(f"loss.{name}", learned[name]) for name in nonfinite_weights(bench.task)]
    for entry in nonfinite_moments(bench):
        name, moment = entry.split(": ")
        found.append(Place("parameter", name.rpartition(".")[0], f"optimizer {moment}", parameter=name))
    return found


def _weight(name: str, value: Tensor) -> Place:
    module, _, own = name.rpartition(".")
    kind = "NaN" if bool(torch.isnan(value).any()) else "Inf"
    return Place("parameter", module, own, kind, parameter=name)


def locate(bench: Bench, window: Sequence[EventBatch], trial: StepTrial) -> Place:
    """Return where a step that fails (`StepTrial.stage`) first is not finite; give it the fewest events that fail."""
    bench.set_mode()
    bench.optimizer.zero_grad(set_to_none=True)
    try:
        if trial.refused is not None:
            return Place(LOSS, LOSS_OWNER, "domain of the truth", terms=bench.task.terms)
        if trial.stage == UPDATE:
            return _in_update(trial)
        return _in_loss(bench, window) if trial.stage == LOSS else _in_gradient(bench, window, trial)
    finally:
        bench.optimizer.zero_grad(set_to_none=True)


def _in_loss(bench: Bench, window: Sequence[EventBatch]) -> Place:
    batches = bench.prepared(window)
    counts = bench.counts(batches)
    summed: Tensor | float = 0.0
    for batch in batches:
        stack = NodeOwners()
        with stack.following(bench.model), OpTrace(stack) as trace:
            outputs = bench.forward(batch)
            terms = bench.loss(outputs, batch, counts)
            summed = summed + terms.total
            origin = trace.origin(terms.total) or trace.origin(summed)
        if origin is not None:
            bad = tuple(t for t, s in zip(bench.task.terms, terms.sums, strict=True) if not bool(torch.isfinite(s)))
            return _place(MODULE if origin.module != LOSS_OWNER else LOSS, origin, bad)
    return Place(LOSS, LOSS_OWNER, "sum over the window")


def _in_gradient(bench: Bench, window: Sequence[EventBatch], trial: StepTrial) -> Place:
    batches = bench.prepared(window)
    counts = bench.counts(batches)
    for batch in batches:
        owners = NodeOwners()
        with owners.following(bench.model):
            outputs = bench.forward(batch)
        total = bench.loss(outputs, batch, counts).total
        owners.claim(total)
        watch = GradientWatch(owners)
        torch.autograd.backward(total)
        watch.close()
        if watch.origin is not None:
            return _place(GRADIENT, watch.origin, parameter=_nearest(watch.origin.module, trial.parameters))
    return _overflowing_norm(bench)


def _nearest(module: str, parameters: tuple[str, ...]) -> str:
    """Return the parameter of a module among those without a finite gradient, else the last one before it."""
    own = [name for name in parameters if name.rpartition(".")[0] == module]
    return next(iter(own), parameters[-1] if parameters else "")


def _overflowing_norm(bench: Bench) -> Place:
    """Return the parameter with the largest gradient: each number is finite, their norm is not."""
    with_grad = [(name, p.grad) for name, p in named_parameters(bench) if p.grad is not None]
    name, grad = max(with_grad, key=lambda pair: float(pair[1].abs().max()))
    absmax = float(grad.abs().max())
    return Place(GRADIENT, name.rpartition(".")[0], "norm of all gradients", "Inf", name, absmax)


def _in_update(trial: StepTrial) -> Place:
    name, _, moment = trial.parameters[0].partition(": ")
    return Place(UPDATE, name.rpartition(".")[0], f"optimizer {moment}" if moment else "optimizer", parameter=name)


def _place(stage: str, origin: Origin, terms: tuple[str, ...] = (), parameter: str = "") -> Place:
    module = origin.module
    if module == LOSS_OWNER and len(terms) == 1:
        module = f"{LOSS_OWNER}.{terms[0]}"
    return Place(stage, module, origin.op, origin.kind, parameter, origin.input_absmax, origin.dtype, terms)

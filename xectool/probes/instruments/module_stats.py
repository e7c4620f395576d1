"""Numbers of every module in one step: what it puts out, and the gradient that reaches it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from xectool.data.batch import EventBatch
from xectool.probes.instruments.bench import Bench


@dataclass(frozen=True)
class ModuleStats:
    """One module over all its calls of a step.

    Attributes:
        module: Dotted name.
        kind: Class.
        mean: Mean of the finite outputs.
        std: Their standard deviation.
        absmax: Their largest absolute value.
        nonfinite: Outputs that are NaN or infinite.
        grad_norm: L2 norm of the gradient of its own parameters, before clipping; None for a module without any.
        output_grad_norm: The same of the gradient that reaches its outputs; None where none does, NaN if not finite.
        nonfinite_grad: Gradients of its outputs and parameters that are NaN or infinite.
    """

    module: str
    kind: str
    mean: float
    std: float
    absmax: float
    nonfinite: int
    grad_norm: float | None = None
    output_grad_norm: float | None = None
    nonfinite_grad: int = 0


@dataclass
class _Sums:
    """Sums over the calls of one module, in float64."""

    kind: str
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    absmax: float = 0.0
    nonfinite: int = 0
    grad_squares: float = 0.0
    num_grads: int = 0
    nonfinite_grad: int = 0

    def add(self, output: Tensor) -> None:
        values = output.detach()
        finite = torch.isfinite(values)
        known = values[finite].double()
        self.nonfinite += int(values.numel() - known.numel())
        if known.numel():
            self.count += known.numel()
            self.total += float(known.sum())
            self.squares += float(known.square().sum())
            self.absmax = max(self.absmax, float(known.abs().max()))

    def add_gradient(self, grad: Tensor) -> None:
        self.num_grads += 1
        self.grad_squares += float(grad.detach().double().square().sum())
        self.nonfinite_grad += int((~torch.isfinite(grad)).sum())


@dataclass(frozen=True)
class StepStats:
    """A step looked at from inside.

    Attributes:
        loss: The objective.
        modules: Every module that ran, in the order of their first outputs.
    """

    loss: float
    modules: tuple[ModuleStats, ...] = field(default=())


def step_stats(bench: Bench, window: Sequence[EventBatch]) -> StepStats:
    """Return the numbers of every module in one step; nothing is updated, and looking changes no number."""
    bench.model.train()
    bench.task.train()
    bench.optimizer.zero_grad(set_to_none=True)
    sums: dict[str, _Sums] = {}
    batches = bench.prepared(window)
    counts, loss = bench.counts(batches), 0.0
    with ExitStack() as stack:
        for name, module in bench.model.named_modules():
            stack.callback(module.register_forward_hook(_look(sums, name)).remove)
        for batch in batches:
            total = bench.loss(bench.forward(batch), batch, counts).total
            loss += float(total.detach())
            torch.autograd.backward(total)
    found = tuple(_finished(bench.model, sums))
    bench.optimizer.zero_grad(set_to_none=True)
    return StepStats(loss, found)


def _look(sums: dict[str, _Sums], name: str) -> Any:
    def look(module: nn.Module, inputs: Any, outputs: Any) -> None:
        own = sums.setdefault(name, _Sums(type(module).__name__))
        for output in tree_leaves(outputs):
            if not isinstance(output, Tensor) or not output.is_floating_point():
                continue
            own.add(output)
            if output.requires_grad:
                output.register_hook(own.add_gradient)  # type: ignore[no-untyped-call]  # torch's own

    return look


def _finished(model: nn.Module, sums: dict[str, _Sums]) -> Iterator[ModuleStats]:
    modules = dict(model.named_modules())
    for name, own in sums.items():
        grads = [p.grad for p in modules[name].parameters(recurse=False) if p.grad is not None]
        mean = own.total / own.count if own.count else math.nan
        spread = math.sqrt(max(own.squares / own.count - mean**2, 0.0)) if own.count else math.nan
        yield ModuleStats(
            name, own.kind, mean, spread, own.absmax, own.nonfinite,
            float(nn.utils.get_total_norm(grads)) if grads else None,
            _root(own.grad_squares) if own.num_grads else None,
            own.nonfinite_grad + sum(int((~torch.isfinite(grad)).sum()) for grad in grads),
        )  # fmt: skip


def _root(square: float) -> float:
    return math.sqrt(square) if math.isfinite(square) else math.nan

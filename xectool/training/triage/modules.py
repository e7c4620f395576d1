"""The first module of a network in which a number stops being finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from xectool.data.batch import EventBatch
from xectool.tasks.base import TrainingTask
from xectool.training.process.device import Execution
from xectool.training.stepping.evaluate import in_float32

LOSS = "loss"
_Call = tuple[str, nn.Module, tuple[Any, ...]]
"""Name of a module, the module, and what it was given."""


@dataclass(frozen=True)
class ModuleFault:
    """Where a value first is NaN or infinite.

    Attributes:
        name: Path of the module, such as ``heads.energy.2``; the name of the loss term in the phase ``loss``; empty
            for the model's own input.
        phase: ``input``, ``forward``, ``loss`` or ``backward``.
        kind: Class of the module.
        input_absmax: Largest finite size of what the module was given; NaN where it is unknown.
        num_nan: Count of NaN in its output, or in the gradient it hands back.
        num_inf: Count of infinities there.
        parameters: Parameters of the module that are not finite themselves, or whose gradient is not.
    """

    name: str
    phase: str
    kind: str = ""
    input_absmax: float = float("nan")
    num_nan: int = 0
    num_inf: int = 0
    parameters: tuple[str, ...] = ()


def first_nonfinite_module(
    model: nn.Module, task: TrainingTask, batch: EventBatch, execution: Execution, *, gradient: bool = True
) -> ModuleFault | None:
    """Return where forward pass, loss or gradient of a batch first is not finite; None where everything is.

    A module counts before the modules that contain it; one that is given what is not finite, though all modules before
    it are, leaves it to the module around it. In the backward pass the module named is the one whose own derivative is
    at fault: the gradient it was handed is finite, the one it hands on is not.

    Args:
        model: The network, in the mode it is to be tried in; its weights and gradients stay as they are.
        task: The objective.
        batch: Raw events.
        execution: Device and precision.
        gradient: Whether to look at the backward pass where the loss is finite.
    """
    prepared = task.prepare(batch.to(execution.device))
    inputs = task.inputs(prepared)
    watch = _Watch(model, gradient)
    with watch, torch.set_grad_enabled(gradient), execution.autocast():
        outputs = model(*inputs)
    if watch.fault is not None:
        return watch.fault
    counts = task.counts(prepared)
    with torch.set_grad_enabled(gradient):
        terms = task.loss(in_float32(outputs), prepared, counts)
    if not bool(torch.isfinite(terms.total)):
        return _loss_fault(task, terms.sums, outputs)
    return watch.backward(terms.total, task) if gradient and terms.total.requires_grad else None


class _Watch:
    """Looks at the output of every module as it comes."""

    def __init__(self, model: nn.Module, gradient: bool) -> None:
        self.fault: ModuleFault | None = None
        self._model, self._gradient = model, gradient
        self._order: list[str] = []  # modules in the order in which their outputs were complete
        self._outputs: list[Tensor] = []
        self._absmax: dict[str, float] = {}
        self._running: list[_Call] = []  # the innermost last
        self._stack = ExitStack()

    def __enter__(self) -> _Watch:
        for name, module in self._model.named_modules():
            self._stack.callback(module.register_forward_pre_hook(self._begin(name), with_kwargs=True).remove)
            self._stack.callback(module.register_forward_hook(self._look, always_call=True).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self, name: str) -> Callable[..., None]:
        return lambda module, given, named: self._running.append((name, module, given or tuple(named.values())))

    def _look(self, _module: nn.Module, _given: object, output: Any) -> None:
        call = self._running.pop()
        if self.fault is not None:
            return
        tensors = list(_tensors(output))
        bad = next((tensor for tensor in tensors if not bool(torch.isfinite(tensor).all())), None)
        if bad is not None:
            at, around, their_input = self._origin(call)
            self.fault = _fault(at, "forward", around, bad, _absmax(their_input))
        elif self._gradient:
            self._keep(call[0], tensors, call[2])

    def _origin(self, call: _Call) -> _Call:
        """Return the call, or one around it, in whose own code a number stopped being finite."""
        around = [call, *reversed(self._running)]
        # Of the arguments the first: a mask may be infinite.
        return next((one for one in around if all(map(_is_finite, _tensors(one[2][:1])))), call)

    def _keep(self, name: str, tensors: list[Tensor], given: tuple[Any, ...]) -> None:
        tracked = [tensor for tensor in tensors if tensor.requires_grad]
        self._order += [name] * len(tracked)
        self._outputs += tracked
        self._absmax[name] = _absmax(given)

    def backward(self, total: Tensor, task: TrainingTask) -> ModuleFault | None:
        """Return the module whose derivative is not finite."""
        named = [*self._model.named_parameters(), *task.named_parameters()]
        wanted = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        found = torch.autograd.grad(total, [*self._outputs, *(parameter for _, parameter in wanted)], allow_unused=True)
        seen, grads = found[: len(self._outputs)], found[len(self._outputs) :]
        parameters = [name for (name, _), grad in zip(wanted, grads, strict=True) if not _is_finite(grad)]
        for place in reversed(range(len(seen))):
            if not _is_finite(seen[place]):
                return self._culprit(place, seen, parameters, task)
        if not parameters:
            return None
        owner = parameters[0].rpartition(".")[0]
        grad = dict(zip((name for name, _ in wanted), grads, strict=True))[parameters[0]]
        module = dict(self._model.named_modules()).get(owner, task)
        fault = _fault(owner, "backward", module, grad, self._absmax.get(owner, float("nan")))
        return replace(fault, parameters=tuple(parameters))

    def _culprit(
        self, place: int, seen: tuple[Tensor | None, ...], parameters: list[str], task: TrainingTask
    ) -> ModuleFault:
        """Return the module that was handed a finite gradient last, before the first that is not."""
        after = next((later for later in range(place + 1, len(seen)) if seen[later] is not None), None)
        modules = dict(self._model.named_modules())
        name = LOSS if after is None else self._order[after]
        fault = _fault(name, "backward", modules.get(name, task), seen[place], self._absmax.get(name, float("nan")))
        return replace(fault, parameters=tuple(parameters))


def _loss_fault(task: TrainingTask, sums: Tensor, outputs: Any) -> ModuleFault:
    bad = [term for term, value in zip(task.terms, torch.isfinite(sums).tolist(), strict=True) if not value]
    nan, inf = int(torch.isnan(sums).sum()), int(torch.isinf(sums).sum())
    return ModuleFault(", ".join(bad) or LOSS, "loss", type(task).__name__, _absmax(outputs), nan, inf)


def _fault(name: str, phase: str, module: nn.Module, bad: Tensor | None, input_absmax: float) -> ModuleFault:
    broken = [own for own, p in module.named_parameters(recurse=False) if not bool(torch.isfinite(p).all())]
    return ModuleFault(
        name=name,
        phase=phase,
        kind=type(module).__name__,
        input_absmax=input_absmax,
        num_nan=0 if bad is None else int(torch.isnan(bad).sum()),
        num_inf=0 if bad is None else int(torch.isinf(bad).sum()),
        parameters=tuple(f"{name}.{own}" if name else own for own in broken),
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for item in value:
            yield from _tensors(item)


def _absmax(value: Any) -> float:
    sizes = [t.detach().float().abs() for t in _tensors(value) if t.numel()]
    finite = [size[torch.isfinite(size)] for size in sizes]
    return max((float(size.max()) for size in finite if size.numel()), default=float("nan"))


def _is_finite(grad: Tensor | None) -> bool:
    return grad is None or bool(torch.isfinite(grad).all())

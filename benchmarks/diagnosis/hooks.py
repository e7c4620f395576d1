"""Places in a training at which a fault is put in; used in the process that trains, which ends with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from xectool.data.batch import EventBatch
from xectool.data.loader import EventLoader
from xectool.training.stepping.step import Stepper
from xectool.training.trainer import Trainer


def before_fit(action: Callable[[Trainer], object]) -> None:
    """Call ``action`` with the trainer before its first step."""
    fit = Trainer.fit

    def patched(self: Trainer, progress: Any) -> Any:
        action(self)
        return fit(self, progress)

    Trainer.fit = patched  # type: ignore[method-assign]


def before_step(action: Callable[[int, Stepper], object]) -> None:
    """Call ``action`` with the number of the step in this process, from 1, and the stepper."""
    run, seen = Stepper.run, dict[tuple[int, int], int]()

    def patched(self: Stepper, window: Sequence[EventBatch], *args: Any, **options: Any) -> Any:
        place = (window[0].epoch, window[0].step)
        if place not in seen:  # a step that is tried again is the same step
            seen[place] = len(seen) + 1
            action(seen[place], self)
        return run(self, window, *args, **options)

    Stepper.run = patched  # type: ignore[method-assign]


def at_step(number: int, action: Callable[[Stepper], object]) -> None:
    """Call ``action`` before one step."""
    before_step(lambda step, stepper: action(stepper) if step == number else None)


def each_batch(change: Callable[[EventBatch], Sequence[EventBatch]]) -> None:
    """Let the training loader yield other batches in place of each of its own."""
    epoch = EventLoader.epoch

    def patched(self: EventLoader, number: int, *where: int) -> Any:
        for batch in epoch(self, number, *where):
            yield from change(batch) if number else [batch]  # validation is epoch 0

    EventLoader.epoch = patched  # type: ignore[method-assign]


class Chosen:
    """One linear layer of those that the first step has called: some weights are used without their module.

    Args:
        parts: Parts of a run.
        place: Which of them, as a share of all, in the order of the calls.
    """

    def __init__(self, parts: Any, place: float) -> None:
        idle = [f"heads.{name}." for name in getattr(parts.model, "heads", {}) if name not in parts.task.terms]
        self._place = place
        self._called: list[nn.Module] = []
        self.step = 0
        self.modules = [
            module
            for name, module in parts.model.named_modules()
            if type(module) is nn.Linear and not name.startswith(tuple(idle))
        ]
        before_step(lambda step, _: setattr(self, "step", step))

    def is_it(self, module: nn.Module) -> bool:
        """Return whether a call is one of the chosen layer; none is in the first step."""
        if self.step <= 1:
            self._called += [] if module in self._called else [module]
            return False
        return bool(self._called) and module is self._called[int(self._place * len(self._called))]

    def hook(self, action: Callable[[nn.Module, Any], Any]) -> None:
        """Give the chosen layer's output, with the layer, to ``action``, which may return another."""
        for module in self.modules:
            module.register_forward_hook(lambda m, given, output: action(m, output) if self.is_it(m) else None)


def matrices(stepper: Stepper) -> list[tuple[str, nn.Parameter]]:
    """Return the weight matrices that have had a gradient, by name."""
    trained = {id(p) for p in stepper.parameters()}
    idle = [f"heads.{name}." for name in getattr(stepper.model, "heads", {}) if name not in stepper.task.terms]
    return [
        (name, p)
        for name, p in stepper.model.named_parameters()
        if id(p) in trained and p.ndim > 1 and p.numel() > 64 and not name.startswith(tuple(idle))
    ]


def set_entry(parameter: torch.Tensor, index: int, value: float) -> None:
    """Set one number of a parameter."""
    with torch.no_grad():
        parameter.view(-1)[index % parameter.numel()] = value

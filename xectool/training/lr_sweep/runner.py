"""Runs the steps of a sweep with the stepper of a run, and leaves the run as it was."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from xectool.config.platform import available_memory
from xectool.models.build import build_model
from xectool.tasks import build_task
from xectool.training.lr_sweep.curves import Curve, Numbers, compared_length
from xectool.training.lr_sweep.windows import MEMORY_SHARE, SharedWindows
from xectool.training.stepping.build import seed_everything
from xectool.training.stepping.parts import RunParts
from xectool.training.stepping.state import random_state_kept

Start = Callable[[], None]
"""Loads the weights a run starts from into the parts, over those of the seed."""
Taken = tuple[float, float, bool]
"""Loss, gradient norm and soundness of a step."""


@dataclass(frozen=True)
class Sweeper:
    """Takes steps at chosen rates.

    Args:
        parts: The run; nothing of it is changed in the end.
        steps: Steps at each rate.
        start: Called after the weights of a seed were drawn.
        budget_bytes: Memory for the batches; a quarter of what is free without.
        on_step: Told of each step that was taken.
    """

    parts: RunParts
    steps: int
    start: Start = lambda: None
    budget_bytes: float | None = None
    on_step: Callable[[], None] = lambda: None

    def windows(self, number: int, seeds: int = 1) -> SharedWindows:
        """Return the batches of a seed, counted from 0; ``seeds`` of them share the memory."""
        size = self.parts.config.training.grad_accum_steps
        budget = MEMORY_SHARE * available_memory() if self.budget_bytes is None else self.budget_bytes
        return SharedWindows(self.parts.train_loader, size, self.steps, number, budget / seeds)

    def grid(
        self, rates: Sequence[float], number: int, windows: SharedWindows, start_losses: Numbers | None = None
    ) -> Iterator[Curve]:
        """Yield the curve of each rate, all from the same weights over the same batches.

        Where no step at the first rate can be taken the weights never move: nothing else could come out at another
        rate, and none is run.

        Args:
            rates: Rates in the order they are run.
            number: Which seed.
            windows: Its batches.
            start_losses: What an earlier sweep of that seed found, where there was one.
        """
        with self._put_back():
            self._begin(number)
            before = _state(self.parts)
            if start_losses is None:
                compared = deque(windows, maxlen=compared_length(self.steps, len(rates)))
                # Without a graph to keep; but a compiled network would be compiled once more for that.
                with torch.set_grad_enabled(self.parts.execution.compile_mode is not None):
                    start_losses = np.array([self.parts.stepper.objective(window) for window in compared])
            for place, lr in enumerate(rates):
                _load(self.parts, before)
                curve = self._curve([lr] * self.steps, number, windows, start_losses)
                yield curve
                if not curve.finite.any():
                    yield from (_same_at(curve, other) for other in rates[place + 1 :])
                    return

    def ramp(self, rates: Sequence[float], number: int, windows: SharedWindows) -> tuple[Curve | None, bool]:
        """Return the curve of one run whose rate is another at each step, and whether Ctrl-C has cut it.

        It is None where that came before a step.
        """
        taken: list[Taken] = []
        with self._put_back():
            self._begin(number)
            try:
                self._take(rates, windows, taken)
            except KeyboardInterrupt:
                return _as_curve(rates[0], number, taken) if taken else None, True
        return _as_curve(rates[0], number, taken), False

    def _curve(self, rates: Sequence[float], number: int, windows: SharedWindows, start_losses: Numbers) -> Curve:
        taken: list[Taken] = []
        self._take(rates, windows, taken)
        return _as_curve(rates[0], number, taken, start_losses)

    def _take(self, rates: Sequence[float], windows: SharedWindows, taken: list[Taken]) -> None:
        """Add each step to a list as soon as it is taken, which an interrupt leaves."""
        stepper = self.parts.stepper
        for lr, window in zip(rates, windows, strict=True):
            result = stepper.run(window, lr)
            norm = result.grad_norm if result.loss == result.loss else math.nan
            # A step skipped because a scaled gradient left the range of float16 says nothing about the rate.
            taken.append((result.loss, norm, result.finite or result.overflow))
            self.on_step()

    def _begin(self, number: int) -> None:
        """Draw the weights of a seed; those of the first are the ones the run itself begins with."""
        parts, config = self.parts, self.parts.config
        seed_everything(config.training.seed + number)
        model = build_model(config)
        parts.task.load_state_dict(build_task(config, model).state_dict())
        parts.model.load_state_dict(model.state_dict())
        self.start()
        parts.model.train()
        parts.task.train()

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        parts = self.parts
        before, modes = _state(parts), (parts.model.training, parts.task.training)
        with random_state_kept():
            try:
                yield
            finally:
                _load(parts, before)
                parts.stepper.optimizer.zero_grad(set_to_none=True)
                parts.model.train(modes[0])
                parts.task.train(modes[1])


def _state(parts: RunParts) -> dict[str, Any]:
    """Return a copy of everything steps change."""
    average = (parts.average.weights(), parts.average.num_averaged)
    holders = {name: holder.state_dict() for name, holder in _holders(parts).items()}
    return copy.deepcopy({"holders": holders, "average": average})


def _load(parts: RunParts, state: dict[str, Any]) -> None:
    for name, holder in _holders(parts).items():
        saved = state["holders"][name]
        # An optimizer adopts the tensors it is given, so each load gets a copy of its own.
        holder.load_state_dict(copy.deepcopy(saved) if name == "optimizer" else saved)
    weights, count = state["average"]
    if weights:
        parts.average.load(weights, count)


def _holders(parts: RunParts) -> dict[str, Any]:
    stepper = parts.stepper
    named = {"model": parts.model, "task": parts.task, "optimizer": stepper.optimizer}
    return {**named, "scaler": stepper.scaler} if stepper.scaler.is_enabled() else named


def _as_curve(lr: float, number: int, taken: Sequence[Taken], start_losses: Numbers | None = None) -> Curve:
    losses, norms, finite = (np.array(values) for values in zip(*taken, strict=True))
    return Curve(lr, number, losses, norms, finite, np.empty(0) if start_losses is None else start_losses)


def _same_at(curve: Curve, lr: float) -> Curve:
    return Curve(lr, curve.seed, curve.losses, curve.grad_norms, curve.finite, curve.start_losses)

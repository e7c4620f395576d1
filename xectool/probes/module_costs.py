"""Time and memory of every module, forward and backward.

Each operation counts for the innermost module it runs in; what runs outside of the network counts for the loss. In the
backward pass each node of the graph counts for the module that made it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xectool.data.batch import EventBatch
from xectool.probes.instruments.backward import NodeOwners
from xectool.probes.instruments.bench import Bench
from xectool.probes.instruments.trace import LOSS_OWNER


@dataclass(frozen=True)
class ModuleCost:
    """One module, without the modules in it; times are medians over the measured steps.

    Attributes:
        module: Dotted name; ``loss`` for what runs outside of the network, empty for the network's own code.
        kind: Class.
        calls: Calls in a step.
        forward_s: Seconds of its forward passes in a step.
        backward_s: Seconds of its backward passes in a step.
        share: Share of all forward and backward time.
        parameters: Numbers in its own parameters.
        activation_bytes: What it keeps for the backward pass, each tensor counted once.
    """

    module: str
    kind: str
    calls: int
    forward_s: float
    backward_s: float
    share: float
    parameters: int
    activation_bytes: int


@dataclass(frozen=True)
class CostReport:
    """What a step of the network costs.

    Attributes:
        modules: All modules that took time or memory, the slowest first.
        steps: Measured steps.
        warmup: Steps before them.
        events: Events of a step.
        step_s: Seconds of forward and backward pass as training has them, median.
        measured_step_s: The same with all clocks in place.
        overhead: Their ratio minus one.
    """

    modules: tuple[ModuleCost, ...]
    steps: int
    warmup: int
    events: int
    step_s: float
    measured_step_s: float
    overhead: float


class _Clock(NodeOwners):
    """Seconds of every module in one step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.forward: dict[str, float] = defaultdict(float)
        self.backward: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.saved: dict[str, dict[int, int]] = defaultdict(dict)
        self._device = device
        self._since = 0.0

    def now(self) -> float:
        """Return the time when all work asked for so far is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def start(self) -> None:
        """Begin to count for the module on top."""
        self._since = self.now()

    def count(self) -> None:
        """Count the time since the last look for the module on top."""
        now = self.now()
        self.forward[self.top] += now - self._since
        self._since = now

    def entering(self, inputs: Any) -> None:
        """Count what ran before a module for the one that calls it."""
        self.count()
        super().entering(inputs)
        self._since = self.now()

    def leaving(self, outputs: Any) -> None:
        """Count what the module ran."""
        self.count()
        self.calls[self.top] += 1
        super().leaving(outputs)
        self._since = self.now()

    def keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor that is kept for the backward pass; each memory counts once, for its first keeper."""
        storage = tensor.untyped_storage()
        known = any(storage.data_ptr() in own for own in self.saved.values())
        if not known and not isinstance(tensor, nn.Parameter):
            self.saved[self.top][storage.data_ptr()] = storage.nbytes()
        return tensor

    def watch_backward(self) -> list[Any]:
        """Time every node of the graph; return the handles."""
        return [handle for node, name in self.owners.items() for handle in self._timed(node, name)]

    def _timed(self, node: Any, name: str) -> tuple[Any, Any]:
        began = [0.0]

        def before(given: Any) -> None:
            began[0] = self.now()

        def after(results: Any, given: Any) -> None:
            self.backward[name] += self.now() - began[0]

        return node.register_prehook(before), node.register_hook(after)


def measure(bench: Bench, window: Sequence[EventBatch], steps: int = 5, warmup: int = 2) -> CostReport:
    """Measure forward and backward pass of a step.

    Args:
        bench: What is trained.
        window: Batches of the step; the first is measured.
        steps: Measured steps, with and without clocks in turn.
        warmup: Steps before them.
    """
    bench.model.train()
    bench.task.train()
    batch = bench.prepared(window)[0]
    counts = bench.counts([batch])
    for _ in range(warmup):
        _plain(bench, batch, counts)
        _clocked(bench, batch, counts)  # its first hooks import what a step does not need
    plain, clocks, timed = [], [], []
    for _ in range(steps):
        plain.append(_plain(bench, batch, counts))
        clock, seconds = _clocked(bench, batch, counts)
        clocks.append(clock)
        timed.append(seconds)
    step_s, measured_s = statistics.median(plain), statistics.median(timed)
    modules = _costs(bench.model, clocks, _activations(bench, batch, counts))
    return CostReport(modules, steps, warmup, batch.num_events, step_s, measured_s, measured_s / step_s - 1)


def _plain(bench: Bench, batch: EventBatch, counts: Tensor) -> float:
    clock = _Clock(bench.execution.device)
    bench.optimizer.zero_grad(set_to_none=True)
    began = clock.now()
    torch.autograd.backward(bench.loss(bench.forward(batch), batch, counts).total)
    return clock.now() - began


def _clocked(bench: Bench, batch: EventBatch, counts: Tensor) -> tuple[_Clock, float]:
    clock = _Clock(bench.execution.device)
    bench.optimizer.zero_grad(set_to_none=True)
    began = clock.now()
    clock.start()
    with clock.following(bench.model):
        outputs = bench.forward(batch)
    total = bench.loss(outputs, batch, counts).total
    clock.count()
    spent = clock.now() - began
    clock.claim(total)
    handles = clock.watch_backward()
    began = clock.now()
    torch.autograd.backward(total)
    spent += clock.now() - began
    for handle in handles:
        handle.remove()
    return clock, spent


def _activations(bench: Bench, batch: EventBatch, counts: Tensor) -> dict[str, int]:
    """Return what each module keeps for the backward pass, in a pass of its own: the hooks take time."""
    clock = _Clock(bench.execution.device)
    weights = {p.untyped_storage().data_ptr() for p in (*bench.model.parameters(), *bench.model.buffers())}
    with ExitStack() as stack:
        stack.enter_context(clock.following(bench.model))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(clock.keep, _same))
        total = bench.loss(bench.forward(batch), batch, counts).total
    del total
    return {name: sum(size for place, size in own.items() if place not in weights) for name, own in clock.saved.items()}


_same: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731


def _costs(model: nn.Module, clocks: Sequence[_Clock], activations: dict[str, int]) -> tuple[ModuleCost, ...]:
    modules = dict(model.named_modules())
    names = [*modules, LOSS_OWNER]

    forward = {name: statistics.median(clock.forward.get(name, 0.0) for clock in clocks) for name in names}
    backward = {name: statistics.median(clock.backward.get(name, 0.0) for clock in clocks) for name in names}
    whole = sum(forward.values()) + sum(backward.values())
    found = [
        ModuleCost(
            name,
            type(modules[name]).__name__ if name in modules else "loss",
            clocks[0].calls.get(name, 0),
            forward[name],
            backward[name],
            (forward[name] + backward[name]) / whole if whole else 0.0,
            sum(p.numel() for p in modules[name].parameters(recurse=False)) if name in modules else 0,
            activations.get(name, 0),
        )
        for name in names
        if forward[name] or backward[name] or activations.get(name)
    ]
    return tuple(sorted(found, key=lambda cost: -(cost.forward_s + cost.backward_s)))
